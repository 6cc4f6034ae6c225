// Relink for Node (20 or later), without dependencies: a publisher and a subscriber whose links survive broken
// connections and restarts of the server. Each uses one channel, with an id of size 0: docs/protocols/relink-wire.md.
//
//   const publisher = new RelinkPublisher("127.0.0.1:7733", "notes")
//   await publisher.publish("hello")                                  // on disk, and stored once
//   for await (const record of new RelinkSubscriber("127.0.0.1:7733", "notes", { after: 0 })) console.log(record.seq)

import { Buffer } from "node:buffer";
import { connect as connectTcp } from "node:net";

/** The server did not store a message, or nobody knows whether it did, or it violated the protocol. */
export class RelinkError extends Error {
  /**
   * @param {string} message
   * @param {"unknown" | "not-stored" | "violation"} outcome
   */
  constructor(message, outcome) {
    super(message);
    this.name = "RelinkError";
    this.outcome = outcome;
  }
}

/** Largest number of messages that are not consumed, and of messages in one transaction. */
const WINDOW = 1024;
const HANDSHAKE_MS = 10_000, PING_MS = 15_000, SILENCE_MS = 45_000, FIRST_PAUSE_MS = 100, LONGEST_PAUSE_MS = 5_000;
// The first byte of each packet: bit 0 channel, bit 1 multicast, bits 2-4 format, bits 5-7 type or flags.
const NOP = 0x00, PING = 0x20, PONG = 0x40, RESUME = 0x60, SHUTDOWN = 0x80;
const MESSAGE = 0x11, LONG = 0x20, LARGE = 0x40, COMMIT = 0x01, CLOSE = 0x41, CLOSED = 0x85;
const RECEIVED = 0x05, CONSUMED = 0x25, COMMITTED = 0x45, UNCOMMITTED = 0x65;
/** The bit of a commit and of an acknowledgement with a sequence number. */
const NUMBERED = 0x08;
/** Flags of a hello. */
const TRANSACTIONS = 1, REQUIRE_OLD_LINK = 4;
/** The largest record, its padding, and its number. */
const LARGEST_MESSAGE = (16 << 20) + 8192, MOST_PARTS = 1026;

const packet = (first) => Buffer.from([first, 0, 0, 0, 0, 0, 0, 0]);
const padded = (size) => (size + 7) & ~7;

function numbered(first, number) {
  const data = packet(first | NUMBERED);
  data.writeUInt32LE(number % 2 ** 32, 4);
  return data;
}

function messagePacket(payload) {
  const large = payload.length > 0xffff;
  const head = Buffer.alloc(large ? 16 : 8);
  head.set([large ? MESSAGE | LARGE : MESSAGE, 1]);
  if (large) head.writeBigUInt64LE(BigInt(payload.length), 8);
  else head.writeUInt16LE(payload.length, 2);
  return Buffer.concat([head, payload, Buffer.alloc(padded(payload.length) - payload.length)]);
}

/** Return a stream's name as the name of an endpoint has it. */
const escaped = (stream) => stream.replace(/[%?@]/g, encodeURIComponent);

/**
 * A link: its connections, one after the other, and their handshakes.
 *
 * A subclass has `endpoint()`, the name to ask for; `flags`; `linked(resumed)`, which begins a connection; and the
 * generator `receive(head)`, which handles a packet of which 8 bytes have arrived, and returns false for a violation.
 */
class Link {
  epoch = 0n;
  id = 0n;
  flags = 0;
  /** The socket of the connection; null between connections and during a handshake. */
  socket = null;
  /** Whether shutdown was sent, and whether it has arrived. */
  mine = false;
  theirs = false;
  over = false;
  #name;
  #pause = FIRST_PAUSE_MS;
  #timer;
  #current;

  constructor(address, endpoint, { connect = connectTcp, signal } = {}) {
    const [, host, port] = /^\[?([^\]]*?)\]?:(\d+)$/.exec(address) ?? [];
    if (!port) throw new TypeError(`invalid address ${JSON.stringify(address)}: expected HOST:PORT`);
    if (Buffer.byteLength(endpoint) > 255) throw new TypeError(`the name ${endpoint} has more than 255 bytes`);
    this.open = () => connect({ host, port: Number(port), noDelay: true });
    this.ended = new Promise((resolve, reject) => Object.assign(this, { resolve, reject }));
    this.ended.catch(() => {}); // for programs that do not wait for the end
    signal?.addEventListener("abort", () => this.destroy(signal.reason), { once: true });
    queueMicrotask(() => {
      if (signal?.aborted) this.destroy(signal.reason);
      else if (!this.over) this.#start();
    });
  }

  /** End at once, without telling the server: it keeps the link for a while. */
  destroy(error) {
    if (this.over) return;
    this.over = true;
    clearTimeout(this.#timer);
    this.#current?.destroy();
    if (error) this.reject(error);
    else this.resolve();
  }

  /** End when everything that was written has left. */
  leave() {
    this.over = true;
    clearTimeout(this.#timer);
    if (this.socket) this.socket.end();
    else {
      this.#current?.destroy();
      this.resolve();
    }
  }

  /** Forget the link, which is lost. */
  forget() {
    this.epoch = this.id = 0n;
  }

  #start() {
    const socket = (this.#current = this.open());
    const talk = this.#talk(socket);
    let chunks = [], size = 0, wanted = talk.next().value;
    const handshake = setTimeout(() => this.socket === socket || socket.destroy(), HANDSHAKE_MS);
    const drop = setTimeout(() => socket.destroy(), SILENCE_MS);
    const ping = setTimeout(() => this.socket === socket && socket.write(packet(PING)), PING_MS);
    socket.write(Buffer.alloc(8)); // version 0
    socket.on("data", (more) => {
      drop.refresh();
      ping.refresh();
      chunks.push(more);
      size += more.length;
      while (size >= wanted && !this.over) {
        const data = chunks.length === 1 ? chunks[0] : Buffer.concat(chunks);
        chunks = [data.subarray(wanted)];
        size -= wanted;
        const { value, done } = talk.next(data.subarray(0, wanted));
        wanted = done ? Infinity : value;
        if (!done) continue;
        if (value !== "closes") this.forget(); // a violation of the protocol ends the link, too
        socket.destroy();
      }
    });
    socket.on("error", () => {}); // "close" follows
    socket.on("close", () => {
      for (const timer of [handshake, drop, ping]) clearTimeout(timer);
      // Closed before the reply: the server is being stopped, or refuses the name of the endpoint or its terms.
      this.#pause = this.socket === socket ? FIRST_PAUSE_MS : Math.min(2 * this.#pause, LONGEST_PAUSE_MS);
      this.socket = null;
      this.disconnected();
      if (this.mine && this.theirs) this.destroy();
      if (this.over) this.resolve();
      else this.#timer = setTimeout(() => this.#start(), this.#pause * (0.8 + 0.4 * Math.random()));
    });
  }

  /** A connection: yields the number of bytes that it needs next; ends with a violation, or when the server closes. */
  *#talk(socket) {
    const version = yield 8;
    if (version[0] !== 0) return "violation";
    if (this.id === 0n) this.#name = this.endpoint(); // a link resumes with the terms that it began with
    const name = Buffer.from(this.#name);
    const flags = this.id === 0n ? this.flags & ~REQUIRE_OLD_LINK : this.flags;
    const head = Buffer.from([name.length, ...name, 0, 0, flags]);
    const link = Buffer.alloc(16);
    link.writeBigUInt64LE(this.epoch);
    link.writeBigUInt64LE(this.id, 8);
    socket.write(Buffer.concat([head, Buffer.alloc(padded(head.length) - head.length), link]));
    const reply = yield 16;
    const [epoch, id] = [reply.readBigUInt64LE(), reply.readBigUInt64LE(8)];
    const resumed = this.id !== 0n && this.epoch === epoch && this.id === id;
    if (id === 0n && flags & REQUIRE_OLD_LINK) {
      this.lost();
      this.forget();
      return "closes";
    }
    if (!epoch || !id || id >> 63n || (flags & REQUIRE_OLD_LINK && !resumed)) return "violation";
    this.socket = socket;
    if (!resumed) {
      this.lost();
      Object.assign(this, { epoch, id });
    }
    this.linked(resumed);
    for (;;) {
      const first = yield 8;
      if (!(yield* this.receive(first))) return "violation";
    }
  }
}

/** Publishes to one stream. */
export class RelinkPublisher extends Link {
  #queue = []; // the messages that are not consumed, {payload, done}; the first one has the number #base
  #base = 0;
  #sent = 0; // the next number to send
  #held = -1; // the last number that the server holds
  #reported = -1; // the last number that the server's report says to be consumed
  #targeted = {}; // by type of acknowledgement: the number that it targets next
  #writable = false; // whether the connection may carry messages
  #used = false; // whether the link has a channel
  #closing = false;
  #waiting = []; // for room in the window
  #name;

  /** Connect in the background. */
  constructor(address, stream, options = {}) {
    const name = `publish:${escaped(stream)}`;
    super(address, name, options);
    this.#name = name;
    this.transactional = Boolean(options.transactional);
    this.flags = this.transactional ? TRANSACTIONS : 0;
  }

  /** Return a promise of room in the window. */
  ready() {
    if (this.#queue.length < WINDOW || this.over) return Promise.resolve();
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  /**
   * Send messages, as text or bytes; on a transactional link they are stored together or not at all. The promise is
   * fulfilled when all of them are on the server's disk.
   */
  publish(...payloads) {
    return new Promise((resolve, reject) => {
      if (this.#closing || this.over) return reject(new RelinkError("the publisher is closed", "not-stored"));
      if (!payloads.length) return resolve();
      for (const payload of payloads) this.#queue.push({ payload: Buffer.from(payload) });
      this.#queue.at(-1).done = (error) => (error ? reject(error) : resolve());
      this.#used = true;
      this.#flush();
    });
  }

  /** Wait until everything is consumed, close the channel, and end the link at both sides. */
  close() {
    this.#closing = true;
    this.#finish();
    return this.ended;
  }

  destroy(error) {
    super.destroy(error);
    const unsent = this.#base + this.#queue.length - this.#sent;
    this.#fail(this.#queue.splice(0, this.#queue.length - unsent), "unknown");
    this.#fail(this.#queue.splice(0), "not-stored");
    for (const go of this.#waiting.splice(0)) go();
  }

  // For Link.

  endpoint() {
    return this.#name;
  }

  lost() {
    // What was never sent begins the new link.
    this.#fail(this.#queue.splice(0, this.#sent - this.#base), "unknown");
    this.theirs = this.mine; // the server has seen our shutdown if it does not know the link any more
  }

  linked(resumed) {
    if (resumed) {
      this.#held = this.#base - 1; // earlier `received` do not count: the report says what the server holds
      this.#reported = -1;
      this.socket.write(packet(RESUME)); // without a report before it: the server opens no channels
      return;
    }
    Object.assign(this.#targeted, { [RECEIVED]: 0, [CONSUMED]: 0, [COMMITTED]: 0, [UNCOMMITTED]: 0 });
    [this.#base, this.#sent, this.#held] = [0, 0, -1];
    this.#used = this.#queue.length > 0;
    this.#writable = true;
    this.#flush();
    this.#finish();
  }

  disconnected() {
    this.#writable = false;
  }

  // eslint-disable-next-line require-yield -- every packet of the server has 8 bytes
  *receive(data) {
    const kind = data[0];
    if (kind === PING) this.socket.write(packet(PONG));
    else if (kind === RESUME && !this.#writable) {
      // A report below what was consumed: the server was restored from an older copy, and the link is lost.
      if (this.#reported < this.#base - 1 && !(this.#closing && !this.#queue.length)) return false;
      this.#resume();
    } else if (kind === SHUTDOWN) this.theirs = true; // the server closes the connection when both peers have sent it
    else if (kind === CLOSED && this.#closing && this.#writable && !this.#queue.length) {
      this.#used = false;
      this.#finish();
    } else if ([RECEIVED, CONSUMED, COMMITTED, UNCOMMITTED].includes(kind & ~NUMBERED)) {
      const number = kind & NUMBERED ? this.#base + ((data.readUInt32LE(4) - this.#base) | 0) : undefined;
      return this.#acknowledged(kind & ~NUMBERED, number);
    } else if (![NOP, PONG, CLOSED].includes(kind)) return false;
    return true;
  }

  /** Process an acknowledgement of everything up to number; return false if it violates the protocol. */
  #acknowledged(kind, number = this.#targeted[kind] ?? 0) {
    if (number >= this.#sent || (kind > CONSUMED && !this.transactional)) return false;
    this.#targeted[kind] = number + 1;
    if (kind <= CONSUMED) this.#held = Math.max(this.#held, number);
    for (const one of kind === RECEIVED ? [] : this.#queue.slice(0, Math.max(0, number + 1 - this.#base))) {
      if (kind === CONSUMED && this.transactional && one.done) return false; // before its result
      if (kind === UNCOMMITTED) this.#fail([one], "not-stored");
      else one.done?.();
      one.done = undefined;
    }
    if (kind === CONSUMED) this.#reported = Math.max(this.#reported, number);
    if (kind === CONSUMED && number >= this.#base) {
      this.#queue.splice(0, number + 1 - this.#base);
      this.#base = number + 1;
      if (this.#queue.length < WINDOW) for (const go of this.#waiting.splice(0)) go();
      this.#finish();
    }
    return true;
  }

  #fail(messages, outcome) {
    const why = outcome === "unknown" ? "the link was lost: the message may be stored or not" : "the server did not store it";
    for (const one of messages) one.done?.(new RelinkError(why, outcome));
  }

  /** Send what the server does not hold, then the commits without a result, then close or shutdown. */
  #resume() {
    this.#writable = true;
    const commits = this.#queue.flatMap((one, at) => (this.transactional && one.done ? [this.#base + at] : []));
    for (const one of this.#queue.slice(this.#held + 1 - this.#base)) this.socket.write(messagePacket(one.payload));
    this.#sent = this.#base + this.#queue.length;
    for (const number of commits) this.socket.write(numbered(COMMIT, number));
    this.#finish();
  }

  /** Send what is next on the way to the end: close, and after its answer shutdown. */
  #finish() {
    if (!this.#closing || !this.#writable || this.#queue.length) return;
    this.mine ||= !this.#used;
    this.socket.write(packet(this.#used ? CLOSE : SHUTDOWN));
  }

  /** Send the messages that were not sent, and their commits. */
  #flush() {
    for (; this.#writable && this.#sent < this.#base + this.#queue.length; this.#sent++) {
      const one = this.#queue[this.#sent - this.#base];
      this.socket.write(messagePacket(one.payload));
      if (this.transactional && one.done) this.socket.write(numbered(COMMIT, this.#sent));
    }
  }
}

/**
 * Yields the records of one stream, each once and in order, and `{gap: [first, last]}` for numbers that are missing.
 * If the server has another journal, such as a restored backup, it yields `{restarted: end, epoch}`, and then the stream
 * from its start, or from the position of the named subscription there; `end` is the last number of the stream.
 *
 * A record is acknowledged when the loop asks for the next one. Leaving the loop ends the link.
 */
export class RelinkSubscriber extends Link {
  #stream;
  #options;
  #last; // the number of the last record that the loop has got, or behind which its first one comes
  #rewindings;
  #epoch; // of #last, as the server says it
  #queue = []; // messages that the loop has not got, {number, connection, parts}
  #connection = 0;
  #next = 0; // the number of the next message of the link
  #consumed = -1;
  #told = -1; // the last `consumed` of this connection
  #telling;
  #resuming = false;
  #looping = false; // whether a program is in the loop
  #closing = false; // whether the loop gets no more records
  #ending = false; // whether everything that comes is consumed, so that the server ends the link
  #wake = () => {};

  /** Connect in the background. */
  constructor(address, stream, options = {}) {
    super(address, RelinkSubscriber.#name(stream, options.after, options), options);
    [this.#stream, this.#options, this.#last] = [stream, { ...options }, options.after || undefined];
    this.#epoch = options.epoch ?? "";
    this.flags = REQUIRE_OLD_LINK; // else a lost link would be followed by one at the old position
  }

  async *[Symbol.asyncIterator]() {
    this.#looping = true;
    try {
      for (let message; (message = await this.#take()); this.#consume(message.connection, message.number)) {
        yield* message.number ? this.#record(message.parts) : this.#position(message.parts);
      }
    } finally {
      this.#looping = false;
      await this.close();
    }
  }

  /** End the link; within the loop, when it asks for the next record, so that the one it has is acknowledged. */
  async close() {
    this.#closing = true;
    this.#wake();
    if (this.#looping) return undefined;
    if (!this.#ending && !this.over) this.#end();
    return this.ended;
  }

  destroy(error) {
    super.destroy(error);
    this.#wake();
  }

  // For Link.

  endpoint() {
    const named = this.#options.subscription !== undefined;
    const after = named ? this.#options.after : (this.#last ?? this.#options.after);
    return RelinkSubscriber.#name(this.#stream, after, { ...this.#options, epoch: named ? "" : this.#epoch });
  }

  lost() {}

  linked(resumed) {
    this.#options.takeover = false; // two consumers that want it would displace each other for ever
    this.#connection += 1;
    this.#resuming = resumed;
    this.#told = -1;
    if (!resumed) this.#consumed = -1;
    this.#next = this.#consumed + 1;
    this.#tell(); // the report
    if (resumed) this.socket.write(packet(RESUME));
  }

  disconnected() {
    this.#queue = []; // what is not consumed comes again
    if (this.#ending) this.destroy();
  }

  *receive(head) {
    const kind = head[0];
    if (kind === PING) this.socket.write(packet(PONG));
    else if (kind === RESUME && this.#resuming) {
      this.#resuming = false;
      if (this.#ending) this.#shutdown();
    } else if (kind === SHUTDOWN) this.theirs = true;
    else if (kind === CLOSE) this.socket.write(packet(CLOSED));
    else if ((kind & ~(LONG | LARGE)) === MESSAGE) return yield* this.#message(head);
    else return [NOP, PONG].includes(kind);
    return true;
  }

  *#message(head) {
    const large = head[0] & LARGE, long = head[0] & LONG;
    const count = long ? head.readUInt32LE(2) : head[1];
    if (count > MOST_PARTS) return false;
    const begin = large ? 8 : long ? 6 : 2;
    const rest = padded(begin + (large ? 8 : 2) * count) - 8;
    const fields = rest ? Buffer.concat([head, yield rest]) : head;
    const sizes = Array.from({ length: count }, (_, at) =>
      large ? Number(fields.readBigUInt64LE(begin + 8 * at)) : fields.readUInt16LE(begin + 2 * at),
    );
    if (sizes.some((size) => size > LARGEST_MESSAGE)) return false;
    const total = sizes.reduce((sum, size) => sum + padded(size), 0);
    if (total > LARGEST_MESSAGE) return false;
    const body = total ? yield total : Buffer.alloc(0);
    let at = 0;
    const parts = sizes.map((size) => body.subarray(at, (at += padded(size)) - padded(size) + size));
    const number = this.#next++;
    // The first message of a link says where it begins; the others begin with the number of their record.
    const numbers = number ? parts.slice(0, 1) : parts.slice(1, 4);
    if (parts.length < (number ? 1 : 5) || numbers.some((part) => part.length !== 8)) return false;
    if (this.#ending) this.#consume(this.#connection, number);
    else this.#queue.push({ number, connection: this.#connection, parts });
    if (this.#queue.length > 2 * WINDOW) return false; // the server sends no more than its window
    this.#wake();
    return true;
  }

  // For the loop.

  async #take() {
    while (!this.over && !this.#closing) {
      if (this.#queue.length) return this.#queue.shift();
      await new Promise((resolve) => (this.#wake = resolve));
    }
    return undefined;
  }

  *#position(parts) {
    const [begin, rewindings, end] = parts.slice(1, 4).map((part) => Number(part.readBigUInt64LE()));
    const named = this.#options.subscription !== undefined, epoch = parts[4].toString();
    const other = this.#epoch && epoch !== this.#epoch;
    this.#epoch = epoch;
    if (this.#last && (other || (!named && begin < this.#last))) {
      [this.#last, this.#rewindings] = [named ? undefined : 0, undefined];
      yield { restarted: end, epoch };
    }
    const last = this.#last;
    if (!named) {
      this.#last = begin;
      if (begin > last) yield { gap: [last + 1, begin] };
    } else {
      // Somebody rewound the subscription, or another consumer has gone on meanwhile.
      this.#last = rewindings === this.#rewindings ? Math.max(last, begin) : begin;
      this.#rewindings = rewindings;
    }
  }

  *#record([number, ...parts]) {
    const seq = Number(number.readBigUInt64LE()), expected = this.#last + 1;
    if (seq < expected) return; // it comes again, because its acknowledgement was lost
    if (seq > expected) {
      this.#last = seq - 1;
      yield { gap: [expected, seq - 1] };
    }
    this.#last = seq;
    yield { stream: this.#stream, seq, payload: parts.length === 1 ? parts[0] : undefined, parts };
  }

  #consume(connection, number) {
    // A message of an earlier connection comes again.
    if (connection !== this.#connection || number <= this.#consumed) return;
    this.#consumed = number;
    this.#telling ??= setImmediate(() => this.#tell());
  }

  #tell() {
    clearImmediate(this.#telling);
    this.#telling = undefined;
    if (!this.socket || this.#consumed <= this.#told) return;
    this.#told = this.#consumed;
    this.socket.write(numbered(CONSUMED, this.#consumed));
  }

  /** With a name, the next consumer gets what is not consumed; without one, nobody will ask for it. */
  #end() {
    this.#ending = true;
    if (!this.socket || this.#options.subscription !== undefined) {
      this.#tell();
      this.leave();
      return;
    }
    this.#queue = [];
    this.#consume(this.#connection, this.#next - 1);
    if (!this.#resuming) this.#shutdown();
  }

  #shutdown() {
    this.#tell();
    this.mine = true;
    this.socket.write(packet(SHUTDOWN));
  }

  static #name(stream, after, { subscription, takeover, epoch = "" }) {
    if (subscription?.includes("&")) throw new TypeError(`the subscription ${subscription} has an &, which Relink cannot name`);
    const begin = after === undefined ? "" : `@${after}`;
    const named = subscription === undefined ? "" : `&name=${subscription}${takeover ? "&takeover" : ""}`;
    const name = `subscribe:${escaped(stream)}${begin}?seq${named}`, option = after && epoch ? `&epoch=${epoch}` : "";
    return Buffer.byteLength(name + option) > 255 ? name : name + option;
  }
}
