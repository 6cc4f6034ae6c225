// A client of Fyrehose's HTTP protocol for browsers and Node (20 or later), without dependencies.
//
//   const server = new Fyrehose("http://127.0.0.1:8117")
//   await server.publish("notes", "hello")
//   for await (const record of server.follow("notes")) console.log(record.seq, record.payload)

import { Caller, FyrehoseError, LINES, isTransient, sleep, together } from "./live.js";

export { FyrehoseError };

/** How many lease times a record is extended by default, at most, so that a handler that hangs does not keep it for ever. */
const LONGEST = 10;
/** How often loops without an end send a request again. */
const ENDLESS = { retries: Infinity };
/** Refusals after which the lease is still the worker's. */
const KEPT = ["later", "not-leading"];

/** A server; its constructor is that of `Caller`. */
export class Fyrehose extends Caller {
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

  /** Read records from number `from` on, or from a time such as "-1h", at most `limit`; or behind the position of a named subscription. */
  async read(stream, options = {}) {
    return (await this.reading(stream, options)).records;
  }

  /** List the streams whose names match a pattern; all pages of them. */
  async streams(match = "*", options = {}) {
    const found = [];
    for (let page = 0; ; page += 1) {
      const path = `/streams?${new URLSearchParams({ match, page: String(page) })}`;
      const { streams, matching } = (await this.retried("GET", path, options)).body;
      found.push(...streams);
      if (!streams.length || found.length >= matching) return found;
    }
  }

  /**
   * Follow a stream: yield each record as it becomes durable, and `{gap: [first, last]}` for records that are lost.
   * It connects again behind the last record. Without `from`, a number or a time such as "2026-11-28T12:00" or "-1h", it
   * begins with the next record. If the server has another
   * journal, such as a restored backup, it yields `{restarted: end, epoch}`, and then the stream from its start; `end` is
   * the last number there. `epoch` in the options is that of `from`, if the program has kept it. With `shared`, all tabs
   * of a site that follow the stream have one connection together, where the browser has locks.
   */
  async *follow(stream, { from, epoch = "", signal, shared = false } = {}) {
    const own = { next: typeof from === "string" ? await this.#numberOf(stream, from, signal) : from, epoch };
    if (!shared) {
      for await (const item of this.#items(stream, own, signal)) if (item.next === undefined) yield item;
      return;
    }
    let connection; // where the connection is, if it is this tab's
    const source = (inner) => this.#items(stream, (connection ??= { ...own }), inner);
    for await (const item of together(`${this.url} ${stream}`, source, signal)) {
      if (item.restarted !== undefined || (own.epoch && item.epoch && item.epoch !== own.epoch)) {
        yield { restarted: item.restarted ?? item.next - 1, epoch: item.epoch };
        own.next = 1;
      }
      own.epoch = item.epoch ?? own.epoch;
      if (item.restarted !== undefined) continue;
      const [first, next] = item.gap ? [item.gap[0], item.gap[1] + 1] : [item.seq ?? item.next, item.next ?? item.seq + 1];
      own.next ??= first;
      if (own.next < first) yield* this.#between(stream, own, first, signal);
      if (own.next >= next) continue; // this tab has it
      yield item.gap ? { gap: [own.next, item.gap[1]] } : item;
      own.next = next;
    }
  }

  /** Yield what follows `at.next`, which moves with it, and at the begin of each answer `{next, epoch}`. */
  async *#items(stream, at, signal) {
    const path = () => {
      const query = at.next === undefined ? "" : `?from=${at.next}${at.epoch && `&epoch=${encodeURIComponent(at.epoch)}`}`;
      return `/streams/${encodeURIComponent(stream)}/live${query}`;
    };
    for await (const { type, data } of this.live(path, signal)) {
      if (type === "opened") {
        // Where the first answer begins, so that nothing is missed if it ends before the first record.
        at.next ??= Number(data["fyrehose-last"]) + 1;
        at.epoch ||= data["fyrehose-epoch"] ?? ""; // an event `restarted` changes it
        yield { ...at };
      } else if (type === "gap") {
        at.next = data.last + 1;
        yield { gap: [data.first, data.last] };
      } else if (type === "restarted") {
        [at.next, at.epoch] = [1, data.epoch];
        yield { restarted: data.end, epoch: data.epoch };
      } else if (type === "message") {
        at.next = data.seq + 1;
        yield data;
      }
    }
  }

  /** Yield the records from `at.next`, which moves with them, up to number `end`, and the gaps between them. */
  async *#between(stream, at, end, signal) {
    while (at.next < end) {
      const records = await this.read(stream, { from: at.next, limit: Math.min(1000, end - at.next), signal, ...ENDLESS });
      for (const record of records.length ? records : [{ seq: end }]) {
        const seq = Math.min(record.seq, end);
        if (seq > at.next) yield { gap: [at.next, seq - 1] };
        at.next = seq;
        if (seq === end) break;
        yield record;
        at.next = seq + 1;
      }
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

  /** @internal */
  async reading(stream, options) {
    const query = new URLSearchParams();
    for (const name of ["from", "limit", "subscription", "consumer", "lease", "wait"]) {
      if (options[name] !== undefined) query.set(name, String(options[name]));
    }
    if (options.takeover) query.set("takeover", "1");
    const path = `/streams/${encodeURIComponent(stream)}?${query}`;
    const { body, headers } = await this.retried("GET", path, { ...options, type: LINES });
    const generation = headers.get("Fyrehose-Generation");
    return { records: body, generation: generation === null ? undefined : Number(generation) };
  }

  /** @internal */
  async managing(method, path, body, options = {}) {
    const headers = body === undefined ? {} : { "Content-Type": "application/json" };
    const content = body === undefined ? undefined : JSON.stringify(body);
    const answer = await this.retried(method, path, { ...options, headers, body: content });
    return options.whole ? answer : answer.body;
  }

  /** Return the number of the first record at a time or later; 1 if the stream does not exist yet. */
  async #numberOf(stream, time, signal) {
    const path = `/streams/${encodeURIComponent(stream)}?from=${encodeURIComponent(time)}&limit=0`;
    try {
      const { headers } = await this.retried("GET", path, { signal, type: LINES });
      return Number(headers.get("Fyrehose-From") ?? time);
    } catch (error) {
      if (error.status === 404) return 1;
      throw error;
    }
  }

  async #post(stream, body, type, options) {
    const headers = { "Content-Type": type, "Idempotency-Key": options.key ?? unique() };
    const path = `/streams/${encodeURIComponent(stream)}`;
    return (await this.retried("POST", path, { headers, body, signal: options.signal })).body;
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
    const { records, generation } = await this.server.reading(this.stream, query);
    this.generation = generation;
    return records;
  }

  /** Move the position to a number, and return the subscription when that is durable. */
  async acknowledge(seq, options = {}) {
    const body = this.generation === undefined ? { seq } : { seq, generation: this.generation };
    return this.server.managing("POST", `${this.#path}/ack`, body, options);
  }

  /** Continue behind a number, or at "start" or "latest". */
  async rewind(seq, options = {}) {
    return this.server.managing("POST", `${this.#path}/rewind`, { seq }, options);
  }

  async show(options = {}) {
    return this.server.managing("GET", this.#path, undefined, options);
  }

  async delete(options = {}) {
    await this.server.managing("DELETE", this.#path, undefined, options);
  }

  /** Yield records for ever, and acknowledge each batch when all of it was processed. */
  async *consume(options = {}) {
    for (;;) {
      const records = await this.read({ limit: 100, wait: 30, ...ENDLESS, ...options });
      for (const record of records) yield record;
      if (records.length) await this.acknowledge(records.at(-1).seq, { ...ENDLESS, ...options });
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
    return this.server.managing("PUT", this.#path, { ...options, shared: true }, { signal });
  }

  /** Lease up to `most` records, and wait for the first, for up to 50 s unless the server allows more. */
  async lease({ consumer, most = 1, wait = 0, request = (this.#requests += 1), ...options }) {
    // With the same number in `request`, a repetition after a lost answer gets the same leases.
    return this.server.managing("POST", `${this.#path}/lease`, { consumer, most, wait, request }, options);
  }

  /** Settle leased records: lists of items `[seq, token]`, of a pattern `[stream, seq, token]`. */
  async settle(lists, options = {}) {
    return this.server.managing("POST", `${this.#path}/settle`, lists, options);
  }

  async pause(paused = true, options = {}) {
    return this.server.managing("POST", `${this.#path}/pause`, { paused }, options);
  }

  /** Publish all dead letters again, to the streams that they come from; return their number. */
  async redrive(options = {}) {
    for (let count = 0; ; ) {
      const { redriven, left } = await this.server.managing("POST", `${this.#path}/redrive`, {}, options);
      count += redriven;
      if (!left || !redriven) return count;
    }
  }

  /** Forget what is settled, and continue behind a number, or at "start" or "latest". */
  async rewind(seq, options = {}) {
    return this.server.managing("POST", `${this.#path}/rewind`, { seq }, options);
  }

  async show(options = {}) {
    return this.server.managing("GET", this.#path, undefined, options);
  }

  async delete(options = {}) {
    await this.server.managing("DELETE", this.#path, undefined, options);
  }

  /**
   * Lease records, and pass each to `handle`, at most `most` at a time, until `signal` is aborted or the subscription
   * is deleted. A record is done when the promise of `handle` is fulfilled; the messages that it returns (`[{stream,
   * payload}]`) are published in the same commit. If it throws, the record comes again; if it throws `Reject`, the record
   * is a dead letter. Leases are extended while `handle` runs, for up to `longest` lease times. Its second argument is an
   * AbortSignal that fires when the lease is lost: another worker may have the record. `work` goes on with other records
   * then. After the abort of `signal`, running records are finished.
   */
  async work(handle, { consumer = unique(), most = 1, wait = 30, longest = LONGEST, signal } = {}) {
    const { pattern } = await this.show({ signal, ...ENDLESS });
    const running = new Map(), ended = new AbortController();
    let failed, request, extending;
    const fail = (error) => (failed ??= error);
    try {
      while (!signal?.aborted && !failed) {
        request = this.#requests += 1;
        const asked = { consumer, most: most - running.size, wait, request, signal, whole: true, ...ENDLESS };
        const { sent, body: { lease, waited, records } } = await this.lease(asked);
        extending ??= this.#extend(running, lease, longest, ended.signal).catch(fail);
        for (const record of records) {
          const held = new Held(record, pattern, sent + 1000 * waited, lease);
          const over = Promise.race([this.#handle(handle, held), held.gone]);
          running.set(held, over.catch(fail).finally(() => running.delete(held)));
        }
        if (running.size >= most) await Promise.race(running.values());
      }
    } catch (error) {
      if (!signal?.aborted) fail(error);
      // The abort may have crossed an answer with leases: return them, so that nobody waits for their end.
      else await this.#giveBack({ consumer, most, request }, pattern, running).catch(fail);
    }
    await Promise.all(running.values());
    ended.abort();
    if (failed && ![404, 410].includes(failed.status)) throw failed;
  }

  /** Return the leases of a request that was aborted, except for those of records that are being handled. */
  async #giveBack(asked, pattern, running) {
    const { records } = await this.lease(asked);
    const known = Array.from(running.keys(), (held) => held.name);
    const others = records.map((record) => new Held(record, pattern, 0, 0)).filter((held) => !known.includes(held.name));
    if (others.length) await this.settle({ untried: others.map((held) => held.item()) });
  }

  /** Extend the leases of the records that are being handled, until `ended` is aborted. */
  async #extend(running, lease, longest, ended) {
    for (const third = Math.ceil((lease * 1000) / 3); ; ) {
      await sleep(third, ended).catch(() => {});
      if (ended.aborted) return;
      const now = performance.now();
      const due = [...running.keys()].filter((held) => !held.settling && now < held.since + longest * lease * 1000);
      if (!due.length) continue;
      try {
        const lists = { extend: due.map((held) => held.item()) };
        const { extended, refused } = await this.settle(lists, { retries: 0, signal: AbortSignal.timeout(third) });
        for (const held of due) {
          held.extend(extended.find(held.isOf)?.token, now + lease * 1000);
          const why = refused.find(held.isOf)?.why;
          if (why && !held.settling && !KEPT.includes(why)) held.lose(why);
        }
      } catch (error) {
        if (error.name !== "TimeoutError" && !isTransient(error)) throw error; // else the next attempt may be in time
      }
    }
  }

  /** Handle one leased record, and settle it. */
  async #handle(handle, held) {
    let lists;
    try {
      const published = await handle(held.record, held.signal);
      lists = { done: [held.item()], ...(published?.length ? { publish: published } : {}) };
    } catch (error) {
      if (held.signal.aborted) return; // it cannot be returned any more
      const why = String(error?.message ?? error);
      lists = error instanceof Reject ? { reject: [held.item({ why })] } : { failed: [held.item()] };
    }
    held.settle(); // also if it is late: that counts while nobody else has had the record
    const { refused } = await this.settle(lists, ENDLESS).catch((error) => {
      if (!error.refused) throw error;
      return error;
    });
    const why = refused[0]?.why; // `final`: somebody has settled it, perhaps this request, whose answer was lost
    if (why && why !== "final") held.lose(why);
  }

  get #path() {
    return `/subscriptions/${encodeURIComponent(this.name)}`;
  }
}

/** A record that a worker has leased, until it is settled or the lease is lost. */
class Held {
  settling = false;
  #pattern;
  #lost = new AbortController();
  #timer;

  /** `since`: when the lease began at the latest, by `performance.now()`; `lease`: how long it lasts, in seconds. */
  constructor(record, pattern, since, lease) {
    this.record = record;
    this.since = since;
    this.#pattern = pattern;
    this.name = `${record.stream} ${record.seq}`;
    this.signal = this.#lost.signal;
    this.gone = new Promise((resolve) => this.signal.addEventListener("abort", resolve, { once: true }));
    if (lease) this.extend(record.token, since + lease * 1000);
  }

  item(...more) {
    const { stream, seq, token } = this.record;
    return [...(this.#pattern ? [stream] : []), seq, token, ...more];
  }

  isOf = ({ stream = this.record.stream, seq }) => stream === this.record.stream && seq === this.record.seq;

  /** The lease has this token, and lasts until a time; without a token it was not extended. */
  extend(token, until) {
    if (!token || this.settling) return;
    this.record.token = token;
    clearTimeout(this.#timer);
    // One percent early, because clocks drift.
    this.#timer = setTimeout(() => this.lose(), 0.99 * (until - performance.now()));
  }

  settle() {
    this.settling = true;
    clearTimeout(this.#timer);
  }

  /** Tell the handler that the lease is lost: the server says `why`, or the time is over. */
  lose(why) {
    clearTimeout(this.#timer);
    const detail = why ?? "it was not extended in time";
    this.#lost.abort(new FyrehoseError(`the lease of record ${this.record.seq} of ${this.record.stream} is lost: ${detail}`, 0, false));
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
