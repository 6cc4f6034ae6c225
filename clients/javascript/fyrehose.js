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

/** The first pause before a repetition, and the longest, also if an answer asks for a longer one. */
const FIRST_WAIT_MS = 1000, LONGEST_WAIT_MS = 30_000;
/** Statuses after which the same request may succeed later; 502 and 504 only a proxy sends. */
const TEMPORARY = [408, 429, 502, 503, 504];
const JSON_TYPE = "application/json", LINES = "application/x-ndjson", EVENTS = "text/event-stream";
const CUT = Symbol("an answer that ended early");
/** The server sends a comment every 15 s; a connection that is silent for this long is lost. */
const SILENCE_MS = 45_000;

export class Fyrehose {
  /** Whether the server itself, and not a proxy, has answered before: if not, the URL may be another program's. */
  #met = false;

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
      const path = `/streams?${new URLSearchParams({ match, page: String(page) })}`;
      const { streams, matching } = (await this.#retried("GET", path, options)).body;
      found.push(...streams);
      if (!streams.length || found.length >= matching) return found;
    }
  }

  /**
   * Follow a stream: yield each record as it becomes durable, and `{gap: [first, last]}` for records that are lost.
   * It connects again behind the last record. Without `from` it begins with the next record. If the server has another
   * journal, such as a restored backup, it yields `{restarted: end, epoch}`, and then the stream from its start; `end` is
   * the last number there. `epoch` in the options is that of `from`, if the program has kept it.
   */
  async *follow(stream, options = {}) {
    let { from: next, epoch = "" } = options, failures = 0;
    for (;;) {
      let retryAfter;
      try {
        const query = next === undefined ? "" : `?from=${next}${epoch && `&epoch=${encodeURIComponent(epoch)}`}`;
        const path = `/streams/${encodeURIComponent(stream)}/live${query}`;
        const answer = await this.#ask("GET", path, { signal: options.signal, type: EVENTS });
        // Where the first answer begins, so that nothing is missed if it ends before the first record.
        next ??= Number(answer.headers.get("Fyrehose-Last")) + 1;
        epoch ||= answer.headers.get("Fyrehose-Epoch") ?? ""; // an event `restarted` changes it
        failures = 0;
        for await (const event of events(answer.body, options.signal)) {
          if (event.type === "gap") {
            const { first, last } = JSON.parse(event.data);
            next = last + 1;
            yield { gap: [first, last] };
          } else if (event.type === "restarted") {
            const { end, epoch: other } = JSON.parse(event.data);
            [next, epoch] = [1, other];
            yield { restarted: end, epoch };
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
        retryAfter = error.retryAfter;
      }
      failures += 1; // An answer may end properly when a proxy loses the server.
      await pause(failures, retryAfter, options.signal);
    }
  }

  /** Use the named subscription `name` of a stream, whose position the server keeps. */
  subscription(name, stream, options = {}) {
    return new Subscription(this, name, stream, options);
  }

  /** Use the shared subscription `name`, whose records several workers share by leases. */
  shared(name) {
    return new SharedSubscription(this, name);
  }

  // For Subscription.

  async #read(stream, options) {
    const query = new URLSearchParams();
    for (const name of ["from", "limit", "subscription", "consumer", "lease", "wait"]) {
      if (options[name] !== undefined) query.set(name, String(options[name]));
    }
    if (options.takeover) query.set("takeover", "1");
    const path = `/streams/${encodeURIComponent(stream)}?${query}`;
    const { body, headers } = await this.#retried("GET", path, { ...options, type: LINES });
    const generation = headers.get("Fyrehose-Generation");
    return { records: body, generation: generation === null ? undefined : Number(generation) };
  }

  /** @internal */
  static reading(server, stream, options) {
    return server.#read(stream, options);
  }

  /** @internal */
  static async managing(server, method, path, body, options = {}) {
    const headers = body === undefined ? {} : { "Content-Type": "application/json" };
    const content = body === undefined ? undefined : JSON.stringify(body);
    return (await server.#retried(method, path, { ...options, headers, body: content })).body;
  }

  async #post(stream, body, type, options) {
    const headers = { "Content-Type": type, "Idempotency-Key": options.key ?? unique() };
    const path = `/streams/${encodeURIComponent(stream)}`;
    return (await this.#retried("POST", path, { headers, body, signal: options.signal })).body;
  }

  /** Send a request until it is answered or refused for good; return its answer, of which `body` is what it says. */
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

  /**
   * Send a request, and return its answer. The answer of a proxy, and one whose body ends early, is a lost connection.
   * `body` is the object or the list of records of the answer; for events it is a stream.
   */
  async #ask(method, path, { headers = {}, body, signal, type = JSON_TYPE } = {}) {
    const token = typeof this.token === "function" ? await this.token() : this.token;
    const credentials = token ? { Authorization: `Bearer ${token}` } : {};
    let answer, found;
    try {
      answer = await this.fetch(this.url + path, { method, headers: { ...credentials, ...headers }, body, signal });
      found = answer.ok && type === EVENTS ? answer.body : await answer.text();
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new FyrehoseError(`no answer from ${this.url}: ${error.message}`, 0, true);
    }
    const { status } = answer, sent = mediaType(answer);
    if (answer.ok) {
      const said = status === 204 ? undefined : sent === type ? parsed(found, type) : null;
      if (said === CUT) throw new FyrehoseError(`the answer of ${this.url} ended early`, status, true);
      if (said !== null) {
        this.#met = true;
        return { headers: answer.headers, body: said };
      }
    }
    const refusal = sent === JSON_TYPE && !answer.ok ? parsed(found, JSON_TYPE) : null;
    const own = typeof refusal?.error === "string" && ![502, 504].includes(status);
    this.#met ||= own;
    const transient = TEMPORARY.includes(status) || (own ? refusal.retriable === true : this.#met || status >= 500);
    const reason = own ? refusal.error : `HTTP ${status}, and the answer is not that of a Fyrehose server`;
    const error = new FyrehoseError(reason, status, transient);
    if (own && refusal.refused) error.refused = refusal.refused;
    error.retryAfter = secondsOf(answer.headers);
    throw error;
  }
}

/** A named subscription: the server keeps the position of its consumer. */
export class Subscription {
  constructor(server, name, stream, options = {}) {
    this.server = server;
    this.name = name;
    this.stream = stream;
    // A name, because the requests of one consumer may use several connections.
    this.consumer = options.consumer ?? unique();
    this.generation = undefined;
  }

  /** Read the records behind the position; `wait` for the first, for up to 50 s unless the server allows more. The position does not move. */
  async read(options = {}) {
    const query = { ...options, subscription: this.name, consumer: this.consumer };
    const { records, generation } = await Fyrehose.reading(this.server, this.stream, query);
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

/** A worker throws it to make a record a dead letter at once, without another attempt. */
export class Reject extends Error {}

/** A shared subscription: each record goes to one worker for a limited time, until one has settled it. */
export class SharedSubscription {
  #requests = Date.now() * 100; // beyond those of an earlier program with the same consumer, and below 2^48

  constructor(server, name) {
    this.server = server;
    this.name = name;
  }

  /** Create it, or do nothing if it exists with the same options: `{stream or match, lease, limit, dead, ...}`. */
  async create(options, { signal } = {}) {
    return Fyrehose.managing(this.server, "PUT", this.#path, { ...options, shared: true }, { signal });
  }

  /** Lease up to `most` records, and wait for the first, for up to 50 s unless the server allows more. */
  async lease({ consumer, most = 1, wait = 0, request = (this.#requests += 1), signal }) {
    // With the same number in `request`, a repetition after a lost answer gets the same leases.
    return Fyrehose.managing(this.server, "POST", `${this.#path}/lease`, { consumer, most, wait, request }, { signal });
  }

  /** Settle leased records: lists of items `[seq, token]`, of a pattern `[stream, seq, token]`. */
  async settle(lists, { signal } = {}) {
    return Fyrehose.managing(this.server, "POST", `${this.#path}/settle`, lists, { signal });
  }

  async pause(paused = true, options = {}) {
    return Fyrehose.managing(this.server, "POST", `${this.#path}/pause`, { paused }, options);
  }

  /** Publish all dead letters again, to the streams that they come from; return their number. */
  async redrive(options = {}) {
    for (let count = 0; ; ) {
      const { redriven, left } = await Fyrehose.managing(this.server, "POST", `${this.#path}/redrive`, {}, options);
      count += redriven;
      if (!left || !redriven) return count;
    }
  }

  /** Forget what is settled, and continue behind a number, or at "start" or "latest". */
  async rewind(seq, options = {}) {
    return Fyrehose.managing(this.server, "POST", `${this.#path}/rewind`, { seq }, options);
  }

  async show(options = {}) {
    return Fyrehose.managing(this.server, "GET", this.#path, undefined, options);
  }

  async delete(options = {}) {
    await Fyrehose.managing(this.server, "DELETE", this.#path, undefined, options);
  }

  /**
   * Lease records, and pass each to `handle`, at most `most` at a time, until `signal` is aborted or the subscription
   * is deleted. Leases are extended while `handle` runs. A record is done when its promise is fulfilled; the messages
   * that it returns (`[{stream, payload}]`) are published in the same commit. If it throws, the record comes again;
   * if it throws `Reject`, the record is a dead letter. After the abort, running records are finished.
   */
  async work(handle, { consumer = unique(), most = 1, wait = 30, signal } = {}) {
    const { pattern } = await this.show({ signal });
    const item = ({ stream, seq, token }, ...more) => (pattern ? [stream, seq, token, ...more] : [seq, token, ...more]);
    const running = new Map(); // the promise of each leased record that is not settled
    let failed, timer, request;
    const fail = (error) => (failed ??= error);
    const extend = async () => {
      if (!running.size) return;
      const { extended } = await this.settle({ extend: Array.from(running.keys(), (record) => item(record)) });
      for (const { stream, seq, token } of extended) {
        for (const record of running.keys()) {
          if (record.seq === seq && (stream ?? record.stream) === record.stream) record.token = token;
        }
      }
    };
    try {
      while (!signal?.aborted && !failed) {
        request = this.#requests += 1;
        const { lease, records } = await this.lease({ consumer, most: most - running.size, wait, request, signal });
        timer ??= setInterval(() => extend().catch(fail), (lease * 1000) / 3);
        for (const record of records) {
          const settled = this.#handle(handle, record, item).catch(fail).finally(() => running.delete(record));
          running.set(record, settled);
        }
        if (running.size >= most) await Promise.race(running.values());
      }
    } catch (error) {
      if (!signal?.aborted) fail(error);
      // The abort may have crossed an answer with leases: return them, so that nobody waits for their end.
      else await this.#giveBack({ consumer, most, request }, item, running).catch(fail);
    }
    await Promise.all(running.values());
    clearInterval(timer);
    if (failed && ![404, 410].includes(failed.status)) throw failed;
  }

  /** Return the leases of a request that was aborted, except for those of records that are being handled. */
  async #giveBack(asked, item, running) {
    const { records } = await this.lease(asked);
    const same = (one) => (other) => one.seq === other.seq && one.stream === other.stream;
    const untried = records.filter((record) => ![...running.keys()].some(same(record)));
    if (untried.length) await this.settle({ untried: untried.map((record) => item(record)) });
  }

  /** Handle one leased record, and settle it. */
  async #handle(handle, record, item) {
    let lists;
    try {
      const published = await handle(record);
      lists = { done: [item(record)], ...(published?.length ? { publish: published } : {}) };
    } catch (error) {
      const why = String(error?.message ?? error);
      lists = error instanceof Reject ? { reject: [item(record, { why })] } : { failed: [item(record)] };
    }
    try {
      await this.settle(lists);
    } catch (error) {
      if (!error.refused) throw error; // else another worker has the record, or it is settled already
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

/** Return a random text; crypto.randomUUID exists only in pages with a secure origin. */
function unique() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (each) => each.toString(16).padStart(2, "0")).join("");
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

function mediaType(answer) {
  return (answer.headers.get("Content-Type") ?? "").split(";")[0].trim().toLowerCase();
}

/** Return the object of an answer, its records, or its stream of events; CUT if it ended early; null: not the server's. */
function parsed(text, type) {
  if (type === EVENTS) return text;
  if (type === LINES && text !== "" && !text.endsWith("\n")) return CUT;
  try {
    if (type === LINES) return text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
    const found = JSON.parse(text);
    return found !== null && typeof found === "object" && !Array.isArray(found) ? found : null;
  } catch {
    return CUT;
  }
}

/** Return how many seconds `Retry-After` asks to wait: a number, or a date by the clock of the program that sent it. */
function secondsOf(headers) {
  const value = headers.get("Retry-After") ?? "";
  return /^[0-9.]+$/.test(value) ? Number(value) : (Date.parse(value) - Date.parse(headers.get("Date") ?? "")) / 1000;
}

function isTransient(error, signal) {
  return !signal?.aborted && error instanceof FyrehoseError && error.retriable;
}

/** Wait before a retry: as long as the answer asks for, within a bound, or twice as long each time. */
function pause(failures, seconds, signal) {
  const doubled = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** Math.max(0, failures - 1));
  const milliseconds = seconds > 0 ? Math.min(LONGEST_WAIT_MS, seconds * 1000) : failures ? doubled : 0;
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
