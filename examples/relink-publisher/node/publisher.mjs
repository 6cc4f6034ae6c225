// Relink's publisher side. It sends on one channel with an id of size 0, so every packet of the server has 8 bytes.
// See docs/protocols/relink-wire.md.
import { connect } from "node:net";

const WINDOW = 1024; // largest number of messages that are not consumed, and of messages in one transaction
// The first byte of each packet: bit 0 channel, bit 1 multicast, bits 2-4 format, bits 5-7 type or flags.
const NOP = 0x00, PING = 0x20, PONG = 0x40, RESUME = 0x60, SHUTDOWN = 0x80;
const MESSAGE = 0x11, LARGE_MESSAGE = 0x51, COMMIT_NUMBERED = 0x09, CLOSE = 0x41, CLOSED = 0x85;
const RECEIVED = 0x05, CONSUMED = 0x25, COMMITTED = 0x45, UNCOMMITTED = 0x65;
const NUMBERED = 0x08; // the bit of an acknowledgement with a sequence number

const packet = (first) => Buffer.from([first, 0, 0, 0, 0, 0, 0, 0]);

function commitPacket(number) {
  const data = packet(COMMIT_NUMBERED);
  data.writeUInt32LE(number % 2 ** 32, 4);
  return data;
}

function messagePacket(payload) {
  const padding = Buffer.alloc(-payload.length & 7);
  const head = Buffer.alloc(payload.length > 0xffff ? 16 : 8);
  head.set([payload.length > 0xffff ? LARGE_MESSAGE : MESSAGE, 1]);
  if (payload.length > 0xffff) head.writeBigUInt64LE(BigInt(payload.length), 8);
  else head.writeUInt16LE(payload.length, 2);
  return Buffer.concat([head, payload, padding]);
}

/** One link. It survives broken connections and restarts of the server. */
export class Publisher {
  epoch = 0n;
  id = 0n;
  queue = []; // the messages that are not consumed, {payload, done}; the first one has the number base
  base = 0;
  sent = 0; // the next number to send
  held = -1; // the last number that the server holds
  targeted = {}; // by type of acknowledgement: the number that it targets next
  socket = null; // null while disconnected, and during the handshake
  open = false; // whether the connection may carry messages
  used = false; // whether the link has a channel
  closing = false; // whether close() was called
  mine = false; // whether shutdown was sent
  theirs = false; // whether shutdown has arrived
  pause = 100;
  waiting = []; // for room in the window
  ended = new Promise((resolve) => (this.end = resolve));

  /** Connect in the background. In stream, write %, ? and @ as %25, %3F and %40. */
  constructor(host, port, stream, transactional = false) {
    Object.assign(this, { host, port, endpoint: Buffer.from(`publish:${stream}`), transactional });
    this.connect();
  }

  /** Return a promise of room in the window. */
  ready() {
    if (this.queue.length < WINDOW) return Promise.resolve();
    return new Promise((resolve) => this.waiting.push(resolve));
  }

  /**
   * Send messages (Buffers); on a transactional link they are stored together or not at all. The promise is fulfilled
   * when all of them are on the server's disk. It is rejected if the server did not store them, or if the link was
   * lost: then they may be stored or not.
   */
  publish(...payloads) {
    return new Promise((resolve, reject) => {
      if (!payloads.length) return resolve();
      for (const payload of payloads) this.queue.push({ payload });
      this.queue.at(-1).done = (error) => (error ? reject(new Error(error)) : resolve());
      this.used = true;
      this.flush();
    });
  }

  /** Wait until everything is consumed, close the channel, and shut the link down. */
  close() {
    this.closing = true;
    this.finish();
    return this.ended;
  }

  connect() {
    const socket = connect({ host: this.host, port: this.port, noDelay: true });
    let data = Buffer.alloc(0);
    let state = this.version;
    const handshake = setTimeout(() => socket.destroy(), 10_000);
    const drop = setTimeout(() => socket.destroy(), 45_000);
    const ping = setTimeout(() => this.socket && socket.write(packet(PING)), 15_000);
    socket.on("connect", () => socket.write(Buffer.alloc(8))); // version 0
    socket.on("data", (more) => {
      drop.refresh();
      ping.refresh();
      data = Buffer.concat([data, more]);
      for (let size; state && data.length >= (size = state === this.reply ? 16 : 8); ) {
        state = state.call(this, socket, data.subarray(0, size));
        data = data.subarray(size);
        if (state === this.serve) clearTimeout(handshake);
      }
      if (state) return;
      this.id = 0n; // a violation of the protocol ends the link, too
      socket.destroy();
    });
    socket.on("error", () => {}); // "close" follows
    socket.on("close", () => {
      for (const timer of [handshake, drop, ping]) clearTimeout(timer);
      // Closed before the reply: the server is being stopped, or refuses the endpoint's name or its terms.
      this.pause = this.socket ? 100 : Math.min(2 * this.pause, 5000);
      this.socket = null;
      this.open = false;
      if (this.mine && this.theirs) this.end();
      else setTimeout(() => this.connect(), this.pause * (0.8 + 0.4 * Math.random()));
    });
  }

  // Each of these handles one transmission of the server, and returns what handles the next one.

  version(socket, data) {
    if (data[0] !== 0) return null;
    const head = Buffer.from([this.endpoint.length, ...this.endpoint, 0, 0, this.transactional ? 1 : 0]);
    const link = Buffer.alloc(16);
    link.writeBigUInt64LE(this.epoch);
    link.writeBigUInt64LE(this.id, 8);
    socket.write(Buffer.concat([head, Buffer.alloc(-head.length & 7), link]));
    return this.reply;
  }

  reply(socket, data) {
    const [epoch, id] = [data.readBigUInt64LE(), data.readBigUInt64LE(8)];
    if (!epoch || !id || id >> 63n) return null;
    this.socket = socket;
    this.held = this.base - 1; // earlier `received` do not count: the report says what the server holds
    if (this.id !== 0n && this.epoch === epoch && this.id === id) {
      socket.write(packet(RESUME)); // without a report before it: the server opens no channels
      return this.serve;
    }
    if (this.sent > 0) for (const one of this.queue.splice(0)) one.done?.("the link was lost: stored or not");
    Object.assign(this, { epoch, id, base: 0, sent: 0, held: -1, targeted: {}, open: true });
    this.used = this.queue.length > 0;
    this.theirs = this.mine; // the server has seen our shutdown if it does not know the link any more
    this.flush();
    this.finish();
    return this.serve;
  }

  serve(socket, data) {
    const kind = data[0];
    if (kind === PING) socket.write(packet(PONG));
    else if (kind === RESUME && !this.open) this.resume();
    else if (kind === SHUTDOWN) this.theirs = true; // the server closes the connection when both peers have sent it
    else if (kind === CLOSED && this.closing && this.open && !this.queue.length) {
      this.used = false;
      this.finish();
    } else if ([RECEIVED, CONSUMED, COMMITTED, UNCOMMITTED].includes(kind & ~NUMBERED)) {
      const number = kind & NUMBERED ? this.base + ((data.readUInt32LE(4) - this.base) | 0) : undefined;
      return this.acknowledged(kind & ~NUMBERED, number) ? this.serve : null;
    } else if (![NOP, PONG, CLOSED].includes(kind)) return null;
    return this.serve;
  }

  /** Process an acknowledgement of everything up to number; return false if it violates the protocol. */
  acknowledged(kind, number = this.targeted[kind] ?? 0) {
    if (number >= this.sent || (kind > CONSUMED && !this.transactional)) return false;
    this.targeted[kind] = number + 1;
    if (kind <= CONSUMED) this.held = Math.max(this.held, number);
    for (const one of kind === RECEIVED ? [] : this.queue.slice(0, Math.max(0, number + 1 - this.base))) {
      if (kind === CONSUMED && this.transactional && one.done) return false; // before its result
      one.done?.(kind === UNCOMMITTED ? "the server did not store the transaction" : undefined);
      one.done = undefined;
    }
    if (kind === CONSUMED && number >= this.base) {
      this.queue.splice(0, number + 1 - this.base);
      this.base = number + 1;
      if (this.queue.length < WINDOW) for (const go of this.waiting.splice(0)) go();
      this.finish();
    }
    return true;
  }

  /** Send what the server does not hold, then the commits without a result, then close or shutdown. */
  resume() {
    this.open = true;
    const commits = this.queue.flatMap((one, at) => (this.transactional && one.done ? [this.base + at] : []));
    for (const one of this.queue.slice(this.held + 1 - this.base)) this.socket.write(messagePacket(one.payload));
    this.sent = this.base + this.queue.length;
    for (const number of commits) this.socket.write(commitPacket(number));
    this.finish();
  }

  /** Send what is next on the way to the end: close, and after its answer shutdown. */
  finish() {
    if (!this.closing || !this.open || this.queue.length) return;
    this.mine ||= !this.used;
    this.socket.write(packet(this.used ? CLOSE : SHUTDOWN));
  }

  /** Send the messages that were not sent, and their commits. */
  flush() {
    for (; this.open && this.sent < this.base + this.queue.length; this.sent++) {
      const one = this.queue[this.sent - this.base];
      this.socket.write(messagePacket(one.payload));
      if (this.transactional && one.done) this.socket.write(commitPacket(this.sent));
    }
  }
}
