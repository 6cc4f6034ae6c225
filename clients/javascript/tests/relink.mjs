// Publisher and subscriber against a real server at FYREHOSE_RELINK and FYREHOSE_URL, against a proxy that cuts its
// connections, and against a listener that sends what a server would not; tests/live/test_javascript.py starts it.
import assert from "node:assert/strict";
import { once } from "node:events";
import { connect, createServer } from "node:net";
import test from "node:test";
import { Fyrehose } from "../fyrehose.js";
import { RelinkError, RelinkPublisher, RelinkSubscriber } from "../relink.js";

const address = process.env.FYREHOSE_RELINK;
const server = new Fyrehose(process.env.FYREHOSE_URL);

/** Take `count` of what a subscriber yields: numbers, gaps as text; and leave the loop. */
async function take(subscriber, count) {
  const found = [];
  if (count) for await (const { seq, gap, restarted } of subscriber) {
    if (found.push(seq ?? (gap ? `gap ${gap}` : `restarted ${restarted}`)) === count) break;
  }
  return found;
}

async function published(stream, count, options) {
  const publisher = new RelinkPublisher(address, stream, options);
  for (let each = 1; each <= count; each += 1) await publisher.publish(`${each}`);
  await publisher.close();
}

/** Listen, and give each connection to the next of `handlers`; return the address. */
async function listening(t, ...handlers) {
  const sockets = new Set();
  const listener = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    (handlers.length > 1 ? handlers.shift() : handlers[0])(socket);
  });
  listener.listen(0, "127.0.0.1");
  await once(listener, "listening");
  t.after(() => {
    listener.close();
    for (const socket of sockets) socket.destroy();
  });
  return `127.0.0.1:${listener.address().port}`;
}

/** A server that answers the handshake with a link, and sends packets, in hexadecimal. */
const linked = (epoch, id, ...packets) => async (socket) => {
  const hello = once(socket, "data");
  await hello;
  socket.write(Buffer.alloc(8));
  await once(socket, "data");
  const reply = Buffer.alloc(16);
  reply.writeBigUInt64LE(BigInt(epoch));
  reply.writeBigUInt64LE(BigInt(id), 8);
  socket.write(Buffer.concat([reply, ...packets.map((each) => Buffer.from(each.replaceAll(" ", ""), "hex"))]));
};
/** Such a server that also answers shutdown. */
const scripted = (...script) => async (socket) => {
  await linked(...script)(socket);
  onPackets(socket, (first) => first === 0x80 && socket.end(Buffer.from("8000000000000000", "hex")));
};

/** Call a function with the first byte of each packet that comes, all of which have 8 bytes. */
function onPackets(socket, call) {
  socket.on("data", (data) => {
    for (let at = 0; at < data.length; at += 8) call(data[at], data);
  });
}

/** What begins a subscription behind `last`: message 0. */
const begin = (last, end = last, epoch = "") =>
  `110500000800080008000${epoch.length}0000000000 ${number(last)} ${number(0)} ${number(end)} ${hexadecimal(epoch)}`;
const record = (seq) => `1102080001000000 ${number(seq)} 7800000000000000`;

/** Return a short text as hexadecimal digits, padded to eight bytes; the empty text as none. */
const hexadecimal = (text) => (text && Buffer.from(text.padEnd(8, "\0")).toString("hex"));

function number(value) {
  const data = Buffer.alloc(8);
  data.writeBigUInt64LE(BigInt(value));
  return data.toString("hex");
}

test("publishes text, bytes, an empty and a large message, to a stream with any name", async () => {
  const publisher = new RelinkPublisher(address, "a@5?%41");
  await publisher.publish();
  await publisher.publish("text", Buffer.from([255]), "", Buffer.alloc(70_000, "x"));
  await publisher.close();
  await assert.rejects(publisher.publish("late"), { outcome: "not-stored" });
  const records = [];
  for await (const each of new RelinkSubscriber(address, "a@5?%41", { after: 0 })) if (records.push(each) === 4) break;
  assert.deepEqual(records.map((each) => each.seq), [1, 2, 3, 4]);
  assert.deepEqual(records.map((each) => each.payload.length), [4, 1, 0, 70_000]);
  assert.deepEqual([records[0].stream, records[0].parts.length, `${records[0].payload}`], ["a@5?%41", 1, "text"]);
});

test("a program waits for room in the window", async () => {
  const publisher = new RelinkPublisher(address, "room");
  const stored = [];
  for (let each = 0; each < 3000; each += 1) {
    await publisher.ready();
    stored.push(publisher.publish(`${each}`));
  }
  await Promise.all(stored);
  await publisher.close();
  assert.deepEqual((await take(new RelinkSubscriber(address, "room", { after: 0 }), 3000)).at(-1), 3000);
});

test("a transaction is stored as a whole", async () => {
  const publisher = new RelinkPublisher(address, "whole", { transactional: true });
  await Promise.all([publisher.publish("1", "2"), publisher.publish("3")]);
  await publisher.close();
  assert.equal((await server.read("whole")).length, 3);
});

test("nothing is lost or doubled over cut connections", async (t) => {
  let cuts = 60;
  const [host, port] = address.split(":");
  const proxy = await listening(t, (near) => {
    const far = connect(Number(port), host);
    let left = cuts-- > 0 ? 40 + ((cuts * 7919) % 3000) : Infinity;
    for (const [one, other] of [[near, far], [far, near]]) {
      one.on("error", () => {});
      one.on("close", () => other.destroy());
      one.on("data", (data) => {
        other.write(data.subarray(0, left));
        if ((left -= data.length) <= 0) one.destroy();
      });
    }
  });
  for (const transactional of [false, true]) {
    const stream = `cut ${transactional}`;
    const publisher = new RelinkPublisher(proxy, stream, { transactional });
    const subscriber = new RelinkSubscriber(proxy, stream, { after: 0 });
    const taking = (async () => {
      const found = [];
      for await (const each of subscriber) if (found.push(`${each.payload}`) === 1000) break;
      return found;
    })();
    const expected = [];
    for (let each = 0; each < 1000; each += 5) {
      const batch = Array.from({ length: 5 }, (_, at) => `${each + at} ${"x".repeat(each % 300)}`);
      expected.push(...batch);
      await publisher.ready();
      await publisher.publish(...batch);
    }
    assert.deepEqual(await taking, expected);
    await publisher.close();
    assert.equal((await server.read(stream, { limit: 2000 })).length, 1000);
    if (!transactional) cuts = 60;
  }
  assert.ok(cuts < 0, "every cut was made");
});

test("subscribes to new records only", async () => {
  await published("fresh", 2);
  const subscriber = new RelinkSubscriber(address, "fresh");
  const taking = take(subscriber, 1);
  let found;
  taking.then((numbers) => (found = numbers));
  while (!found) {
    await published("fresh", 1);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  assert.ok(found[0] > 2);
});

test("a named subscription goes on behind what was taken, and a rewinding brings it again", async () => {
  await published("named", 5);
  const options = { subscription: "reader", after: 0 };
  assert.deepEqual(await take(new RelinkSubscriber(address, "named", options), 3), [1, 2, 3]);
  // The loop was left before it asked for a fourth record, so the third one comes again.
  const second = new RelinkSubscriber(address, "named", options);
  const found = [];
  for await (const each of second) {
    found.push(each.seq);
    if (each.seq === 5 && found.length === 3) await server.subscription("reader", "named").rewind(1);
    if (found.length === 7) break;
  }
  assert.deepEqual(found, [3, 4, 5, 2, 3, 4, 5]);
});

test("close() within the loop acknowledges the record that the loop has", async () => {
  await published("closing", 3);
  const options = { subscription: "closer", after: 0 };
  const first = new RelinkSubscriber(address, "closing", options), found = [];
  for await (const { seq } of first) {
    found.push(seq);
    if (seq === 2) await first.close();
  }
  assert.deepEqual(found, [1, 2]);
  assert.deepEqual(await take(new RelinkSubscriber(address, "closing", options), 1), [3]);
  const unnamed = new RelinkSubscriber(address, "closing", { after: 0 });
  for await (const { seq } of unnamed) assert.ok(seq === 1, await unnamed.close());
});

test("another consumer takes a subscription over", async () => {
  await published("taken", 2);
  const first = new RelinkSubscriber(address, "taken", { subscription: "one", after: 0 });
  const loop = first[Symbol.asyncIterator]();
  assert.equal((await loop.next()).value.seq, 1);
  const second = new RelinkSubscriber(address, "taken", { subscription: "one", takeover: true });
  assert.deepEqual(await take(second, 2), [1, 2]);
  await loop.return();
});

test("a signal or destroy() ends at once", async (t) => {
  const stop = new AbortController();
  const following = take(new RelinkSubscriber(address, "idle", { signal: stop.signal }), 1);
  stop.abort();
  await assert.rejects(following, { name: "AbortError" });
  await assert.rejects(take(new RelinkSubscriber(address, "idle", { signal: stop.signal }), 1), { name: "AbortError" });
  const silent = await listening(t, () => {});
  const publisher = new RelinkPublisher(silent, "x");
  const never = publisher.publish("never sent");
  publisher.destroy();
  await assert.rejects(never, { outcome: "not-stored" });
  await publisher.ready();
  const subscriber = new RelinkSubscriber(silent, "x");
  await subscriber.close();
  subscriber.destroy();
  assert.deepEqual(await take(subscriber, 1), []);
});

test("an address, a name and a subscription that cannot be are refused", () => {
  assert.throws(() => new RelinkPublisher("localhost", "x"), TypeError);
  assert.throws(() => new RelinkPublisher(address, "x".repeat(300)), TypeError);
  assert.throws(() => new RelinkSubscriber(address, "x", { subscription: "a&b" }), TypeError);
});

test("the program opens the connection itself, with TLS for example", async () => {
  const opened = [];
  const publisher = new RelinkPublisher(address, "own", { connect: (where) => (opened.push(where.port), connect(where)) });
  await publisher.publish("x");
  await publisher.close();
  assert.deepEqual(opened, [Number(address.split(":")[1])]);
});

test("what the server did not store, and what nobody knows, is an error", async (t) => {
  const refusing = await listening(t, scripted(1, 2, "6d00 0000 00000000"));
  const publisher = new RelinkPublisher(refusing, "x", { transactional: true });
  const refused = await publisher.publish("x").catch((error) => error);
  assert.ok(refused instanceof RelinkError);
  assert.equal(refused.outcome, "not-stored");
  publisher.destroy();
  const forgetful = await listening(t, async (socket) => {
    await scripted(1, 2)(socket);
    await once(socket, "data"); // the message
    socket.destroy();
  }, (socket) => {
    scripted(3, 4)(socket);
    socket.on("data", (data) => data[0] === 0x11 && socket.write(Buffer.from("2500000000000000", "hex")));
  });
  const losing = new RelinkPublisher(forgetful, "x");
  await assert.rejects(losing.publish("x"), { outcome: "unknown" });
  await losing.publish("y"); // on the new link
  losing.destroy();
});

test("a report below what was consumed ends the link", async (t) => {
  const consuming = (socket) =>
    socket.on("data", (data) => data[0] === 0x11 && socket.write(Buffer.from("2500000000000000", "hex")));
  const serving = (id, ...packets) => async (socket) => {
    await linked(1, id, ...packets)(socket);
    consuming(socket);
  };
  for (const report of [["2d00 0000 00000000"], []]) {
    let cut, renewed;
    const again = new Promise((resolve) => (renewed = resolve));
    const older = await listening(
      t,
      (socket) => serving(2)((cut = socket)),
      serving(2, ...report, "6000 0000 0000 0000"), // the same link, of which it has consumed one message, or none
      (socket) => serving(3)(socket).then(renewed),
    );
    const publisher = new RelinkPublisher(older, "x");
    t.after(() => publisher.destroy());
    await publisher.publish("1");
    await publisher.publish("2");
    cut.destroy();
    await again;
    await publisher.publish("3"); // on a new link
  }
});

test("a violation ends the link, and the next connection begins another one", async (t) => {
  const flags = [];
  const noting = (handler) => (socket) => {
    let seen = Buffer.alloc(0);
    socket.on("data", (data) => {
      if (seen.length < 24) flags.push((seen = Buffer.concat([seen, data])).length);
    });
    return handler(socket);
  };
  const publisher = new RelinkPublisher(await listening(t, scripted(1, 2, "a000 0000 0000 0000"), scripted(1, 3, "2500000000000000")), "x");
  await assert.rejects(publisher.publish("x"), { outcome: "unknown" });
  publisher.destroy();
  for (const wrong of [
    [1, 2, begin(0), "1101000001000000 7800000000000000"], // a record without its number
    [1, 2, "e100 0000 0000 0000"], // an unknown format
    [1, 2, "3100 ffffffff 0000"], // too many parts
    [1, 2, "5101000000000000 ffffffffffffffff"], // too large
    [0, 0], // no link, although none was required
  ]) {
    const broken = await listening(t, noting(scripted(...wrong)), scripted(1, 3, begin(0), record(1)));
    assert.deepEqual(await take(new RelinkSubscriber(broken, "x", { after: 0 }), 1), [1], `${wrong}`);
  }
  const newer = await listening(t, async (socket) => {
    await once(socket, "data");
    socket.write(Buffer.from([1, 0, 0, 0, 0, 0, 0, 0]));
  }, scripted(1, 3, begin(0), record(1)));
  assert.deepEqual(await take(new RelinkSubscriber(newer, "x", { after: 0 }), 1), [1]);
});

test("a subscriber whose link is lost goes on behind its last record, and tells what is missing", async (t) => {
  const names = [];
  const noting = (handler) => (socket) => {
    socket.on("data", (data) => data.length > 8 && data[0] > 8 && names.push(data.subarray(1, 1 + data[0]).toString()));
    return handler(socket);
  };
  const cut = (handler) => async (socket) => {
    await handler(socket);
    socket.end();
  };
  const lost = await listening(
    t,
    noting(cut(scripted(1, 2, begin(4), record(5), record(7)))), // 6 was deleted
    noting(scripted(1, 0)), // the required link is not known
    noting(scripted(3, 4, begin(9), record(10), "3102 0100 0000 0000")), // the second packet is no violation: it is incomplete
  );
  assert.deepEqual(await take(new RelinkSubscriber(lost, "x", { after: 4 }), 5), [5, "gap 6,6", 7, "gap 8,9", 10]);
  assert.deepEqual(names, ["subscribe:x@4?seq", "subscribe:x@4?seq", "subscribe:x@7?seq"]);
});

test("another journal is told, and its records follow from the start", async (t) => {
  const names = [];
  const noting = (handler) => (socket) => {
    socket.on("data", (data) => data.length > 8 && data[0] > 8 && names.push(data.subarray(1, 1 + data[0]).toString()));
    return handler(socket);
  };
  const cut = (handler) => async (socket) => {
    await handler(socket);
    socket.end();
  };
  const renewed = await listening(
    t,
    noting(cut(scripted(1, 2, begin(19, 20, "e1"), record(20)))),
    noting(scripted(1, 0)), // the required link is not known
    noting(scripted(3, 4, begin(0, 5, "e2"), ...[1, 2, 3, 4, 5].map(record))),
  );
  const found = await take(new RelinkSubscriber(renewed, "x", { after: 19 }), 7);
  assert.deepEqual(found, [20, "restarted 5", 1, 2, 3, 4, 5]);
  const endpoints = new Set(names.filter((each) => each.startsWith("subscribe:")));
  assert.deepEqual([...endpoints], ["subscribe:x@19?seq", "subscribe:x@20?seq&epoch=e1"]);
});

test("a number beyond the end of a stream is told as another journal", async () => {
  await published("beyond", 5);
  const found = await take(new RelinkSubscriber(address, "beyond", { after: 20 }), 6);
  assert.deepEqual(found, ["restarted 5", 1, 2, 3, 4, 5]);
});

test("messages in the long and the large form, pings and the end of the channel are understood", async (t) => {
  let answers = Buffer.alloc(0);
  const forms = await listening(t, (socket) => {
    linked(
      1,
      2,
      "2000 0000 0000 0000",
      begin(0),
      `3100 02000000 0800 0100 000000000000 ${number(1)} 7800000000000000`,
      `5102000000000000 0800000000000000 0100000000000000 ${number(2)} 7900000000000000`,
      `1103 0800 0100 0100 ${number(3)} 7800000000000000 7900000000000000`,
    )(socket).then(() =>
      onPackets(socket, (first) => {
        if (first === 0x80) socket.write(Buffer.from("4100000000000000", "hex"));
        if (first === 0x85) socket.end(Buffer.from("8000000000000000", "hex"));
      }),
    );
    socket.on("data", (data) => (answers = Buffer.concat([answers, data])));
  });
  const records = [];
  for await (const each of new RelinkSubscriber(forms, "x", { after: 0 })) if (records.push(each) === 3) break;
  assert.deepEqual(records.map((each) => each.parts.map(String)), [["x"], ["y"], ["x", "y"]]);
  assert.equal(records[2].payload, undefined);
  const hex = answers.subarray(answers.length % 8).toString("hex");
  for (const sent of ["4000000000000000", "2d00000003000000", "8000000000000000", "8500000000000000"]) {
    assert.ok(hex.includes(sent), sent);
  }
});
