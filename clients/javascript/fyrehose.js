// A client of Fyrehose's HTTP protocol for browsers and Node (20 or later), without dependencies.
//
//   const server = new Fyrehose("http://127.0.0.1:8117")
//   await server.publish("notes", "hello")
//   for await (const record of server.follow("notes")) console.log(record.seq, record.payload)

/** A request that the server refused, or that failed too often. */
export class FyrehoseError extends Error {
  /**
   * @param {string} message
   * @param {number} status the HTTP status; 0: there was no answer
   * @param {boolean} retriable whether the same request may succeed later
   */
  constructor(message, status, retriable) {
    super(message);
    this.name = "FyrehoseError";
    this.status = status;
    this.retriable = retriable;
  }
}

const FIRST_WAIT_MS = 1000, LONGEST_WAIT_MS = 30_000;
/** The server sends a comment every 15 s; a connection that is silent for this long is lost. */
const SILENCE_MS = 45_000;

export class Fyrehose {
  /**
   * @param {string} url of the HTTP listener
   * @param {{token?: string | (() => string | Promise<string>), retries?: number, fetch?: typeof fetch}} options
   */
  constructor(url, options = {}) {
    this.url = String(url).replace(/\/+$/, "");
    this.token = options.token;
    this.retries = options.retries ?? 8;
    this.fetch = options.fetch ?? ((...args) => globalThis.fetch(...args));
  }

  /** Publish one message: text, bytes, or a value that becomes JSON. It is stored once, however often it is sent. */
  async publish(stream, message, options = {}) {
    const raw = typeof message === "string" || message instanceof Uint8Array || message instanceof ArrayBuffer;
    const type = options.contentType ?? (raw ? "application/octet-stream" : "application/json");
    return this.#post(stream, raw ? message : JSON.stringify(message), type, options);
  }

  /** Publish many messages, each of them text without a line feed, or a value that becomes JSON; at most 1 MiB. */
  async publishMany(stream, messages, options = {}) {
    const lines = Array.from(messages, (each) => (typeof each === "string" ? each : JSON.stringify(each)));
    if (lines.some((line) => line === "" || /[\n\r]/.test(line))) {
      throw new TypeError("a message of publishMany is empty or has a line break; publish it by itself");
    }
    if (!lines.length) return { stream, count: 0 };
    return this.#post(stream, lines.join("\n"), "application/x-ndjson", options);
  }

  /** Read records from number `from` on, at most `limit`; or behind the position of a named subscription. */
  async read(stream, options = {}) {
    return (await this.#read(stream, options)).records;
  }

  /** List the streams whose names match a pattern; all pages of them. */
  async streams(match = "*", options = {}) {
    const found = [];
    for (let page = 0; ; page += 1) {
      const answer = await this.#retried("GET", `/streams?${new URLSearchParams({ match, page: String(page) })}`, options);
      const { streams, matching } = await answer.json();
      found.push(...streams);
      if (!streams.length || found.length >= matching) return found;
    }
  }

  /**
   * Follow a stream: yield each record as it becomes durable, and `{gap: [first, last]}` for records that are lost.
   * It connects again behind the last record. Without `from` it begins with the next record.
   */
  async *follow(stream, options = {}) {
    let next = options.from, failures = 0;
    for (;;) {
      try {
        const query = next === undefined ? "" : `?from=${next}`;
        const answer = await this.#ask("GET", `/streams/${encodeURIComponent(stream)}/live${query}`, { signal: options.signal });
        // Where the first answer begins, so that nothing is missed if it ends before the first record.
        next ??= Number(answer.headers.get("Fyrehose-Last")) + 1;
        failures = 0;
        for await (const event of events(answer.body, options.signal)) {
          if (event.type === "gap") {
            const { first, last } = JSON.parse(event.data);
            next = last + 1;
            yield { gap: [first, last] };
          } else if (event.type === "ended") {
            const { error, retry } = JSON.parse(event.data);
            if (!retry) throw new FyrehoseError(error, 0, false);
          } else if (event.type === "message") {
            const record = JSON.parse(event.data);
            next = record.seq + 1;
            yield record;
          }
        }
      } catch (error) {
        if (!isTransient(error, options.signal)) throw error;
        failures += 1;
      }
      await pause(failures, undefined, options.signal);
    }
  }

  /** Use the named subscription `name` of a stream, whose position the server keeps. */
  subscription(name, stream) {
    return new Subscription(this, name, stream);
  }

  // For Subscription.

  async #read(stream, options) {
    const query = new URLSearchParams();
    for (const name of ["from", "limit", "subscription", "wait"]) {
      if (options[name] !== undefined) query.set(name, String(options[name]));
    }
    if (options.takeover) query.set("takeover", "1");
    const answer = await this.#retried("GET", `/streams/${encodeURIComponent(stream)}?${query}`, options);
    const generation = answer.headers.get("Fyrehose-Generation");
    const records = (await answer.text()).split("\n").filter(Boolean).map((line) => JSON.parse(line));
    return { records, generation: generation === null ? undefined : Number(generation) };
  }

  /** @internal */
  static reading(server, stream, options) {
    return server.#read(stream, options);
  }

  /** @internal */
  static async managing(server, method, path, body, options = {}) {
    const headers = body === undefined ? {} : { "Content-Type": "application/json" };
    const content = body === undefined ? undefined : JSON.stringify(body);
    const answer = await server.#retried(method, path, { ...options, headers, body: content });
    return answer.status === 204 ? undefined : answer.json();
  }

  async #post(stream, body, type, options) {
    const headers = { "Content-Type": type, "Idempotency-Key": options.key ?? crypto.randomUUID() };
    const path = `/streams/${encodeURIComponent(stream)}`;
    const answer = await this.#retried("POST", path, { headers, body, signal: options.signal });
    return answer.json();
  }

  /** Send a request until it is answered or refused for good. */
  async #retried(method, path, options) {
    for (let failures = 1; ; failures += 1) {
      try {
        return await this.#ask(method, path, options);
      } catch (error) {
        if (!isTransient(error, options.signal) || failures > this.retries) throw error;
        await pause(failures, error.retryAfter, options.signal);
      }
    }
  }

  async #ask(method, path, { headers = {}, body, signal } = {}) {
    const token = typeof this.token === "function" ? await this.token() : this.token;
    const credentials = token ? { Authorization: `Bearer ${token}` } : {};
    let answer;
    try {
      answer = await this.fetch(this.url + path, { method, headers: { ...credentials, ...headers }, body, signal });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new FyrehoseError(`no answer from ${this.url}: ${error.message}`, 0, true);
    }
    if (answer.ok) return answer;
    const text = await answer.text();
    let refusal = {};
    try {
      refusal = JSON.parse(text);
    } catch {
      // A proxy may answer with something else; its status decides.
    }
    const retriable = refusal.retriable ?? [408, 429, 503].includes(answer.status);
    const error = new FyrehoseError(refusal.error ?? `HTTP ${answer.status}`, answer.status, retriable);
    const seconds = Number(answer.headers.get("Retry-After"));
    if (seconds > 0) error.retryAfter = seconds;
    throw error;
  }
}

/** A named subscription: the server keeps the position of its consumer. */
export class Subscription {
  constructor(server, name, stream) {
    this.server = server;
    this.name = name;
    this.stream = stream;
    this.generation = undefined;
  }

  /** Read the records behind the position; `wait` for the first for up to 300 s. The position does not move. */
  async read(options = {}) {
    const { records, generation } = await Fyrehose.reading(this.server, this.stream, { ...options, subscription: this.name });
    this.generation = generation;
    return records;
  }

  /** Move the position to a number, and return the subscription when that is durable. */
  async acknowledge(seq, options = {}) {
    const body = this.generation === undefined ? { seq } : { seq, generation: this.generation };
    return Fyrehose.managing(this.server, "POST", `${this.#path}/ack`, body, options);
  }

  /** Continue behind a number, or at "start" or "latest". */
  async rewind(seq, options = {}) {
    return Fyrehose.managing(this.server, "POST", `${this.#path}/rewind`, { seq }, options);
  }

  async show(options = {}) {
    return Fyrehose.managing(this.server, "GET", this.#path, undefined, options);
  }

  async delete(options = {}) {
    await Fyrehose.managing(this.server, "DELETE", this.#path, undefined, options);
  }

  /** Yield records for ever, and acknowledge each batch when all of it was processed. */
  async *consume(options = {}) {
    for (;;) {
      const records = await this.read({ limit: 100, wait: 30, ...options });
      for (const record of records) yield record;
      if (records.length) await this.acknowledge(records.at(-1).seq, options);
    }
  }

  get #path() {
    return `/subscriptions/${encodeURIComponent(this.name)}`;
  }
}

/** Return the payload of a record as bytes. */
export function bytesOf(record) {
  if (record.payload !== undefined) return new TextEncoder().encode(record.payload);
  return Uint8Array.from(atob(record.payload_base64), (each) => each.charCodeAt(0));
}

/** Yield the server-sent events of a body; end when the connection is silent for too long. */
async function* events(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await within(SILENCE_MS, reader.read());
      if (done) return;
      text += value;
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const event = { type: "message", data: "" };
        let named = false;
        for (const line of text.slice(0, end).split("\n")) {
          if (line.startsWith("event: ")) event.type = line.slice(7);
          if (line.startsWith("data: ")) [event.data, named] = [line.slice(6), true];
        }
        text = text.slice(end + 2);
        if (named) yield event;
      }
    }
  } catch (error) {
    if (signal?.aborted || error instanceof FyrehoseError) throw error;
    throw new FyrehoseError(`the connection was lost: ${error.message}`, 0, true);
  } finally {
    reader.cancel().catch(() => {}); // it is lost already
  }
}

function within(milliseconds, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new FyrehoseError("the connection is silent", 0, true)), milliseconds);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

function isTransient(error, signal) {
  return !signal?.aborted && error instanceof FyrehoseError && error.retriable;
}

/** Wait before a retry: as long as the server asks for, or twice as long each time. */
function pause(failures, seconds, signal) {
  const doubled = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** Math.max(0, failures - 1));
  const milliseconds = seconds ? seconds * 1000 : failures ? doubled : 0;
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}
