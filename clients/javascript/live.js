// Requests to a Fyrehose server and what their answers mean, events that survive lost connections, and one connection for
// many tabs: for the client in fyrehose.js, and for the page of a server.

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
const JSON_TYPE = "application/json", EVENTS = "text/event-stream";
export const LINES = "application/x-ndjson";
const CUT = Symbol("an answer that ended early");
/** The server sends a comment every 15 s; a connection that is silent for this long is lost. */
const SILENCE_MS = 45_000;
/** What a tab that joins others says to them, and how many items may wait in a tab. */
const JOINED = "joined", MOST_WAITING = 1000;

/** Sends requests to one server, again after failures that may pass. */
export class Caller {
  /** Whether the server itself, and not a proxy, has answered before: if not, the URL may be another program's. */
  #met = false;

  /**
   * @param {string} url of the listener
   * @param {{token?: string | (() => string | Promise<string>), retries?: number, fetch?: typeof fetch}} options
   */
  constructor(url, options = {}) {
    this.url = String(url).replace(/\/+$/, "");
    this.token = options.token;
    this.retries = options.retries ?? 8;
    this.fetch = options.fetch ?? ((...args) => globalThis.fetch(...args));
  }

  /** Send a request until it is answered or refused for good; return its answer, of which `body` is what it says. */
  async retried(method, path, options = {}) {
    for (let failures = 1; ; failures += 1) {
      try {
        return await this.ask(method, path, options);
      } catch (error) {
        if (!isTransient(error, options.signal) || failures > (options.retries ?? this.retries)) throw error;
        await pause(failures, error.retryAfter, options.signal);
      }
    }
  }

  /**
   * Send a request, and return its answer. The answer of a proxy, and one whose body ends early, is a lost connection.
   * `body` is the object or the list of records of the answer; for events it is a stream. `sent` is when it was asked for.
   */
  async ask(method, path, { headers = {}, body, signal, type = JSON_TYPE } = {}) {
    const token = typeof this.token === "function" ? await this.token() : this.token;
    const credentials = token ? { Authorization: `Bearer ${token}` } : {};
    const sent = performance.now();
    let answer, found;
    try {
      answer = await this.fetch(this.url + path, { method, headers: { ...credentials, ...headers }, body, signal });
      found = answer.ok && type === EVENTS ? answer.body : await answer.text();
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new FyrehoseError(`no answer from ${this.url}: ${error.message}`, 0, true);
    }
    const { status } = answer, said = mediaType(answer);
    if (answer.ok) {
      const meant = status === 204 ? undefined : said === type ? parsed(found, type) : null;
      if (meant === CUT) throw new FyrehoseError(`the answer of ${this.url} ended early`, status, true);
      if (meant !== null) {
        this.#met = true;
        return { headers: answer.headers, body: meant, sent };
      }
    }
    const refusal = said === JSON_TYPE && !answer.ok ? parsed(found, JSON_TYPE) : null;
    const own = typeof refusal?.error === "string" && ![502, 504].includes(status);
    this.#met ||= own;
    const transient = TEMPORARY.includes(status) || (own ? refusal.retriable === true : this.#met || status >= 500);
    const reason = own ? refusal.error : `HTTP ${status}, and the answer is not that of a Fyrehose server`;
    const error = new FyrehoseError(reason, status, transient);
    if (own && refusal.refused) error.refused = refusal.refused;
    error.retryAfter = secondsOf(answer.headers);
    throw error;
  }

  /**
   * Yield the events of one live answer after another: `{type, data}`. `path()` is asked for the path of each. Events of
   * this function are `opened`, whose data is the head of an answer, and `lost`, whose data says why.
   */
  async *live(path, signal) {
    for (let failures = 1; ; failures += 1) {
      let lost;
      try {
        const { headers, body } = await this.ask("GET", path(), { signal, type: EVENTS });
        failures = 1;
        yield { type: "opened", data: Object.fromEntries(headers) };
        for await (const event of events(body, signal)) {
          if (event.type === "ended" && !event.data.retry) throw new FyrehoseError(event.data.error, 0, false);
          yield event;
        }
      } catch (error) {
        if (!isTransient(error, signal)) throw error;
        lost = error;
      }
      yield { type: "lost", data: lost?.message ?? "the server has ended the connection" };
      await pause(failures, lost?.retryAfter, signal); // an answer may end properly when a proxy loses the server
    }
  }
}

/**
 * Yield what `source(signal)` yields; of all tabs that do so under one name, only one has a source: the one that holds a
 * lock. It tells the others, and begins again when another one joins. Where there are no locks, as in a page that is not
 * secure or in Node, each has a source of its own.
 */
export async function* together(name, source, signal) {
  if (!globalThis.navigator?.locks || !globalThis.BroadcastChannel) return yield* source(signal);
  const channel = new BroadcastChannel(name), left = new AbortController(), waiting = [];
  const over = either(signal, left.signal);
  let again, wake, failed;
  const take = (item) => {
    if (waiting.length >= MOST_WAITING) waiting.length = 0; // the tab is too slow, or has stopped
    waiting.push(item);
    wake?.();
  };
  const lead = async () => {
    for (;;) {
      again = new AbortController();
      try {
        for await (const item of source(either(over, again.signal))) {
          channel.postMessage(item);
          take(item);
        }
      } catch (error) {
        if (over.aborted || !again.signal.aborted) throw error;
      }
    }
  };
  channel.onmessage = ({ data }) => (data === JOINED ? again?.abort() : take(data));
  channel.postMessage(JOINED);
  navigator.locks.request(name, { signal: over }, lead).catch((error) => {
    failed = error;
    wake?.();
  });
  try {
    for (;;) {
      while (waiting.length) yield waiting.shift();
      if (failed) throw failed;
      await new Promise((resolve) => (wake = resolve));
    }
  } finally {
    left.abort();
    channel.close();
  }
}

/** Return a signal that fires with the first of two; each may be missing. */
export function either(...signals) {
  return AbortSignal.any(signals.filter(Boolean));
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
        const event = { type: "message" };
        for (const line of text.slice(0, end).split("\n")) {
          if (line.startsWith("event: ")) event.type = line.slice(7);
          if (line.startsWith("data: ")) event.data = JSON.parse(line.slice(6));
        }
        text = text.slice(end + 2);
        if (event.data !== undefined) yield event;
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

export function isTransient(error, signal) {
  return !signal?.aborted && error instanceof FyrehoseError && error.retriable;
}

/** Wait before a retry: as long as the answer asks for, within a bound, or twice as long each time. */
function pause(failures, seconds, signal) {
  const doubled = FIRST_WAIT_MS * 2 ** Math.min(failures - 1, 10);
  return sleep(Math.min(LONGEST_WAIT_MS, seconds > 0 ? seconds * 1000 : doubled), signal);
}

/** Wait; fail when the signal fires. */
export function sleep(milliseconds, signal) {
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
