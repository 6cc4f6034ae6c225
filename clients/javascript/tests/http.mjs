// The client against a real server at FYREHOSE_URL; tests/live/test_javascript.py starts it, and runs this file in Node
// and in Chromium, where page.html has doubles of the two modules of Node.
import assert from "node:assert/strict";
import test from "node:test";
import { Fyrehose, FyrehoseError, Reject, SharedSubscription, Subscription, bytesOf } from "../fyrehose.js";

const url = globalThis.FYREHOSE_URL ?? process.env.FYREHOSE_URL;
const server = new Fyrehose(`${url}/`);

/** A fetch that loses the answers of the first requests, after the server has handled them. */
function lossy(count) {
  let left = count;
  return async (...args) => {
    const answer = await fetch(...args);
    if (left-- > 0) {
      await answer.text();
      throw new TypeError("lost");
    }
    return answer;
  };
}

test("publishes text, bytes and objects, and reads them back", async () => {
  assert.deepEqual(await server.publish("a/b ü", "text"), { stream: "a/b ü", count: 1, first: 1, last: 1 });
  await server.publish("a/b ü", new Uint8Array([255, 0]));
  await server.publish("a/b ü", { order: 1 });
  const [text, bytes, object] = await server.read("a/b ü", { from: 1, limit: 10 });
  assert.equal(text.payload, "text");
  assert.deepEqual([...bytesOf(bytes)], [255, 0]);
  assert.deepEqual([...bytesOf(text)], [...new TextEncoder().encode("text")]);
  assert.deepEqual([object.content_type, JSON.parse(object.payload)], ["application/json", { order: 1 }]);
});

test("reads and follows from a time", async () => {
  await server.publishMany("timed", ["a", "b"]);
  assert.equal((await server.read("timed", { from: "-1h" })).length, 2);
  assert.equal((await server.read("timed", { from: "9999-01-01" })).length, 0);
  for (const stream of ["timed", "timed later"]) {
    const following = server.follow(stream, { from: "-1h" });
    const first = following.next();
    await server.publish(stream, "c");
    assert.equal((await first).value.seq, 1);
    await following.return();
  }
  await assert.rejects(server.follow("timed", { from: "yesterday" }).next(), { status: 400 });
});

test("publishes many messages at once, and refuses those that lines cannot carry", async () => {
  assert.equal((await server.publishMany("many", ["one", { two: 2 }])).last, 2);
  assert.equal((await server.publishMany("many", [])).count, 0);
  await assert.rejects(server.publishMany("many", ["a\nb"]), TypeError);
  await assert.rejects(server.publishMany("many", [""]), TypeError);
});

test("a publish whose answer is lost is stored once", async () => {
  const unlucky = new Fyrehose(url, { fetch: lossy(1) });
  assert.equal((await unlucky.publish("once", "x")).last, 1);
  assert.equal((await server.read("once")).length, 1);
});

test("a refusal for good is an error at once, and one that may pass is tried again", async () => {
  const refused = await server.read("no such stream").catch((error) => error);
  assert.ok(refused instanceof FyrehoseError);
  assert.deepEqual([refused.status, refused.retriable], [404, false]);
  let asked = 0;
  const busy = new Fyrehose(url, {
    fetch: async (...args) =>
      asked++ ? fetch(...args) : new Response('{"error": "later"}', { status: 503, headers: { "Retry-After": "0.01" } }),
  });
  await busy.publish("busy", "x");
  assert.equal(asked, 2);
  const gone = new Fyrehose("http://127.0.0.1:1", { retries: 0 });
  await assert.rejects(gone.publish("x", "y"), { status: 0, retriable: true });
});

/** A fetch that gives the next of some answers, in place of the server; then it asks the server. */
function instead(...answers) {
  return async (...args) => answers.shift()?.() ?? fetch(...args);
}

const page = (status, headers = {}) => () =>
  new Response("<html>", { status, headers: { "Content-Type": "text/html", "Retry-After": "0.01", ...headers } });
const lines = { "Content-Type": "application/x-ndjson" }, json = { "Content-Type": "application/json" };

/** An answer whose body is lost in the middle, as by a server that is killed behind a proxy. */
const cut = (text, headers) => () => {
  const parts = [new TextEncoder().encode(text)];
  const pull = (body) => (parts.length ? body.enqueue(parts.shift()) : body.error(new TypeError("terminated")));
  return new Response(new ReadableStream({ pull }), { headers });
};
/** The same behind a proxy that ends the answer properly. */
const short = (text, headers) => () => new Response(text, { headers });

test("an answer of a proxy is a lost connection: the request is sent again", async () => {
  for (const status of [408, 429, 500, 502, 503, 504]) {
    const found = await new Fyrehose(url, { fetch: instead(page(status)) }).publish(`proxy ${status}`, "x");
    assert.equal(found.last, 1);
  }
  const seen = instead(undefined, page(502), page(404), page(200), page(403));
  const client = new Fyrehose(url, { fetch: seen });
  assert.equal((await client.publish("proxies", "x")).last, 1, "the server itself answers, and proxies from then on");
  assert.equal((await client.read("proxies")).length, 1);
  const refused = () => new Response('{"error": "bad gateway"}', { status: 502, headers: { ...json, "Retry-After": "0.01" } });
  assert.equal((await new Fyrehose(url, { fetch: instead(refused) }).read("proxies")).length, 1);
});

test("an answer of another program is an error at once, if the server has never answered", async () => {
  for (const status of [200, 403, 404]) {
    const other = new Fyrehose(url, { fetch: instead(page(status)) });
    await assert.rejects(other.read("x"), { status, retriable: false, message: `HTTP ${status}, and the answer is not that of a Fyrehose server` });
  }
  const busy = new Fyrehose(url, { retries: 0, fetch: instead(page(502)) });
  await assert.rejects(busy.read("x"), { status: 502, retriable: true });
});

test("an answer that ends early is a lost connection", async () => {
  await server.publish("cut", "x");
  const line = '{"stream": "cut", "seq": 1, "payl', again = { ...lines, "Retry-After": "0.01" };
  for (const early of [cut(line, lines), short(line, again)]) {
    assert.equal((await new Fyrehose(url, { fetch: instead(early) }).read("cut"))[0].payload, "x");
  }
  for (const early of [cut('{"stre', json), short('{"stre', { ...json, "Retry-After": "0.01" })]) {
    const client = new Fyrehose(url, { fetch: instead(early) });
    assert.equal((await client.publish("cut publish", "x")).count, 1);
  }
});

test("a pause that an answer asks for has a limit, and may be a date", async () => {
  const Date = "Wed, 21 Oct 2026 07:28:00 GMT";
  for (const headers of [{ "Retry-After": "Wed, 21 Oct 2026 07:28:01 GMT", Date }, { "Retry-After": "yesterday" }]) {
    await new Fyrehose(url, { fetch: instead(page(503, headers)) }).read("cut");
  }
  const error = await new Fyrehose(url, { retries: 0, fetch: instead(page(503, { "Retry-After": "7" })) }).read("x").catch((each) => each);
  assert.equal(error.retryAfter, 7);
});

test("a consumer and a follower go on after answers of a proxy and answers that end early", async () => {
  for (const each of ["1", "2"]) await server.publish("going", each);
  const first = '{"stream": "going", "seq": 1, "time": 1, "source": "http", "payload": "1"}\n';
  const asked = instead(page(502), cut(first, lines), page(504));
  const client = new Fyrehose(url, { fetch: asked });
  const seen = [];
  for await (const record of client.subscription("goes-on", "going").consume({ wait: 1 })) {
    if (seen.push(record.payload) === 2) break;
  }
  assert.deepEqual(seen, ["1", "2"], "nothing of the answer that was cut");
  const events = { "Content-Type": "text/event-stream", "Fyrehose-Last": "2" };
  const live = instead(page(502), cut("", events), page(404), short(": from 1 on\n\n", events), page(200));
  for await (const record of new Fyrehose(url, { fetch: live }).follow("going", { from: 1 })) {
    if (seen.push(record.payload) === 4) break;
  }
  assert.deepEqual(seen.slice(2), ["1", "2"]);
});

test("an abort ends the pause before a repetition", async () => {
  const stop = new AbortController();
  const busy = new Fyrehose(url, { fetch: async () => (setTimeout(() => stop.abort(), 300), new Response("", { status: 503 })) });
  await assert.rejects(busy.publish("x", "y", { signal: stop.signal }), { name: "AbortError" });
});

test("a token is sent, also from a function", async () => {
  const seen = [];
  const noting = async (target, { headers }) => (seen.push(headers.Authorization), new Response("", { headers: lines }));
  await new Fyrehose(url, { token: "t", fetch: noting }).read("x");
  await new Fyrehose(url, { token: async () => "u", fetch: noting }).read("x");
  await new Fyrehose(url, { fetch: noting }).read("x");
  assert.deepEqual(seen, ["Bearer t", "Bearer u", undefined]);
});

test("lists streams by pattern", async () => {
  await server.publish("list.one", "x");
  await server.publish("list.two", "x");
  assert.deepEqual((await server.streams("list.*")).map((each) => each.name), ["list.one", "list.two"]);
});

test("follows from a number, and goes on behind the last record after the connection was lost", async () => {
  for (const each of ["1", "2", "3"]) await server.publish("live", each);
  let connections = 0;
  const cutting = async (...args) => {
    const answer = await fetch(...args);
    if (connections++) return answer;
    // The first connection ends behind the first event.
    const reader = answer.body.getReader();
    let text = "";
    while (!text.includes("\n\n")) text += new TextDecoder().decode((await reader.read()).value);
    await reader.cancel();
    return new Response(text.slice(0, text.indexOf("\n\n") + 2), { headers: answer.headers });
  };
  const seen = [];
  for await (const record of new Fyrehose(url, { fetch: cutting }).follow("live", { from: 1 })) {
    seen.push(record.payload);
    if (seen.length === 3) break;
  }
  assert.deepEqual(seen, ["1", "2", "3"]);
  assert.equal(connections, 2);
});

test("follows new records, and ends with its signal", async () => {
  const stop = new AbortController(), seen = [];
  await server.publish("fresh", "before");
  const following = (async () => {
    for await (const record of server.follow("fresh", { signal: stop.signal })) {
      seen.push(record.payload);
      stop.abort();
    }
  })();
  const ended = assert.rejects(following, { name: "AbortError" });
  while (!seen.length) {
    await server.publish("fresh", "after");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  await ended;
  assert.equal(seen[0], "after");
});

test("a gap is told, and an end for good is an error", async () => {
  const body = 'event: gap\nid: 4\ndata: {"first": 1, "last": 4}\n\n: alive\n\nevent: ended\ndata: {"error": "why"}\n\n';
  const fake = new Fyrehose(url, { fetch: async () => new Response(body, { headers: { "Fyrehose-Last": "9", "Content-Type": "text/event-stream" } }) });
  const following = fake.follow("x", { from: 1 });
  assert.deepEqual((await following.next()).value, { gap: [1, 4] });
  await assert.rejects(following.next(), { message: "why", retriable: false });
});

test("another journal is told, and its records follow from the start", async () => {
  const type = { "Content-Type": "text/event-stream" }, asked = [];
  const record = (epoch, seq) => `id: ${epoch}:${seq}\ndata: ${JSON.stringify({ stream: "x", seq, payload: `${seq}` })}\n\n`;
  const restarted = 'event: restarted\nid: e2:0\ndata: {"end": 5, "epoch": "e2"}\n\n';
  const answers = [
    new Response(record("e1", 20), { headers: { "Fyrehose-Epoch": "e1", ...type } }),
    new Response("", { headers: { "Fyrehose-Epoch": "e2", ...type } }), // lost before the event came
    new Response(restarted + [1, 2, 3, 4, 5, 6, 7, 8].map((seq) => record("e2", seq)).join(""), { headers: { "Fyrehose-Epoch": "e2", ...type } }),
    new Response(record("e2", 9), { headers: { "Fyrehose-Epoch": "e2", ...type } }),
  ];
  const fake = new Fyrehose("http://fake", { fetch: async (address) => (asked.push(address), answers.shift()) });
  const found = [];
  for await (const each of fake.follow("x", { from: 20 })) {
    found.push(each.seq ?? each);
    if (each.seq === 9) break;
  }
  assert.deepEqual(found, [20, { restarted: 5, epoch: "e2" }, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  const again = "http://fake/streams/x/live?from=21&epoch=e1";
  assert.deepEqual(asked, ["http://fake/streams/x/live?from=20", again, again, "http://fake/streams/x/live?from=9&epoch=e2"]);
});

test("a number beyond the end of a stream is told as another journal", async () => {
  for (const each of ["1", "2", "3", "4", "5"]) await server.publish("beyond", each);
  const found = [];
  for await (const each of server.follow("beyond", { from: 21 })) {
    found.push(each.seq ?? each.restarted);
    if (found.length === 6) break;
  }
  assert.deepEqual(found, [5, 1, 2, 3, 4, 5]);
});

test("a named subscription keeps its position", async () => {
  for (const each of ["1", "2", "3"]) await server.publish("jobs", each);
  const worker = server.subscription("worker", "jobs");
  assert.ok(worker instanceof Subscription);
  assert.deepEqual((await worker.read({ limit: 2 })).map((each) => each.payload), ["1", "2"]);
  assert.equal((await worker.acknowledge(2)).position, 2);
  assert.equal((await worker.show()).lag, 1);
  const seen = [];
  for await (const record of server.subscription("worker", "jobs").consume({ wait: 1 })) {
    seen.push(record.payload);
    if (seen.length === 2) break;
    await server.publish("jobs", "4");
  }
  assert.deepEqual(seen, ["3", "4"]);
  assert.equal((await worker.show()).position, 3, "the batch that was left is not acknowledged");
  assert.equal((await worker.rewind("start")).position, 0);
  await assert.rejects(worker.acknowledge(1), { status: 409 });
  await worker.delete();
  await assert.rejects(worker.show(), { status: 404 });
});

test("a consumer keeps its subscription over several connections, and another one is refused", async () => {
  await server.publish("kept", "1");
  const mine = server.subscription("keeper", "kept", { consumer: "me" });
  assert.equal((await mine.read({ lease: 60 })).length, 1);
  assert.equal((await mine.read()).length, 1, "whatever connection it used");
  await assert.rejects(server.subscription("keeper", "kept").read(), { status: 409 });
  const other = server.subscription("keeper", "kept");
  assert.equal((await other.read({ takeover: true })).length, 1);
  await assert.rejects(mine.acknowledge(1), { status: 409 });
  await other.delete();
});

/** Publish some records, and share them. */
async function shared(name, count, options = {}) {
  for (let each = 1; each <= count; each += 1) await server.publish(name, `${each}`);
  const found = server.shared(name);
  await found.create({ stream: name, ...options });
  return found;
}

test("a shared subscription leases records, and settles them in every way", async () => {
  const found = await shared("lists", 5, { lease: 60, dead: "lists.dead" });
  assert.ok(found instanceof SharedSubscription);
  await found.create({ stream: "lists", lease: 60, dead: "lists.dead" });
  await assert.rejects(found.create({ stream: "lists", lease: 7 }), { status: 409 });
  const { lease, records } = await found.lease({ consumer: "w", most: 5 });
  assert.deepEqual([lease, records.map((each) => each.payload)], [60, ["1", "2", "3", "4", "5"]]);
  const items = records.map(({ seq, token }) => [seq, token]);
  const answer = await found.settle({
    done: [items[0]],
    failed: [[...items[1], { delay: 300 }]],
    untried: [[...items[2], { delay: 300 }]],
    reject: [[...items[3], { why: "never" }]],
    extend: [items[4]],
  });
  assert.deepEqual([answer.refused, answer.extended.map((each) => each.seq)], [[], [5]]);
  const shown = await found.show();
  assert.deepEqual([shown.settled_total, shown.delayed, shown.in_flight, shown.dead_total], [1, 2, 1, 1]);
  assert.equal(shown.dead_letters[0].why, "never");
  assert.equal(bytesOf((await server.read("lists.dead"))[0])[0], 52);
  assert.deepEqual((await found.settle({ done: [items[0]] })).refused, [{ seq: 1, why: "final" }]);
  const twice = found.settle({ done: [items[0]], publish: [{ stream: "lists.out", payload: "x" }] });
  await assert.rejects(twice, { status: 409, refused: [{ seq: 1, why: "final" }] });
  assert.equal((await found.pause()).paused, true);
  assert.deepEqual((await found.lease({ consumer: "w" })).records, []);
  await found.pause(false);
  assert.equal(await found.redrive(), 1);
  assert.equal((await server.read("lists")).length, 6);
  assert.equal((await found.rewind("start")).lag, 6);
  await found.delete();
  await assert.rejects(found.show(), { status: 404 });
});

test("a lease whose answer is lost is got again", async () => {
  await shared("relent", 2, { lease: 60 });
  const unlucky = new Fyrehose(url, { fetch: lossy(1) }).shared("relent");
  assert.deepEqual((await unlucky.lease({ consumer: "w", most: 2 })).records.map((each) => each.seq), [1, 2]);
  const { records } = await unlucky.lease({ consumer: "w", request: 7 });
  assert.deepEqual(records, []);
});

test("a worker settles each record, publishes results with it, and ends with its signal", async () => {
  const found = await shared("work", 6, { lease: 5, dead: "work.dead" });
  const stop = new AbortController(), tries = new Map();
  let running = 0, peak = 0;
  await found.work(
    async (record) => {
      tries.set(record.seq, (tries.get(record.seq) ?? 0) + 1);
      peak = Math.max(peak, (running += 1));
      try {
        if (record.seq === 1) return [{ stream: "work.out", payload: `result ${record.payload}` }];
        if (record.seq === 2 && tries.get(2) === 1) throw new Error("try again");
        if (record.seq === 3) throw new Reject("never");
        if (record.seq === 4) await new Promise((resolve) => setTimeout(resolve, 5500)); // more than a lease
        if (tries.get(2) === 2 && record.seq === 2) stop.abort();
      } finally {
        running -= 1;
      }
    },
    { consumer: "w", most: 3, signal: stop.signal },
  );
  assert.deepEqual([...tries].sort(([a], [b]) => a - b), [[1, 1], [2, 2], [3, 1], [4, 1], [5, 1], [6, 1]]);
  const shown = await found.show();
  assert.deepEqual([shown.settled_total, shown.dead_total, shown.in_flight, shown.lag], [5, 1, 0, 0]);
  assert.ok(peak > 1 && peak <= 3);
  assert.deepEqual((await server.read("work.out")).map((each) => each.payload), ["result 1"]);
  assert.equal(shown.dead_letters[0].why, "never");
});

test("a worker of a pattern extends and settles by stream", async () => {
  const found = server.shared("all-of-it");
  await server.publish("many.one", "1");
  await server.publish("many.two", "2");
  await found.create({ match: "many.*", lease: 5 });
  const stop = new AbortController(), seen = [];
  const slow = async (record) => {
    await new Promise((resolve) => setTimeout(resolve, 5500)); // more than a lease
    if (seen.push(record.payload) === 2) stop.abort();
  };
  await found.work(slow, { most: 2, signal: stop.signal });
  assert.deepEqual(seen.sort(), ["1", "2"]);
  assert.deepEqual((await found.show()).settled_total, 2);
});

test("an abort that crosses an answer with leases returns them", async () => {
  const found = await shared("crossed", 1, { lease: 600 });
  const stop = new AbortController();
  const late = async (target, options) => {
    const answer = await fetch(target, { ...options, signal: undefined });
    if (!target.endsWith("/lease") || stop.signal.aborted) return answer;
    stop.abort();
    throw stop.signal.reason;
  };
  await new Fyrehose(url, { fetch: late }).shared("crossed").work(() => assert.fail("it was aborted"), { signal: stop.signal });
  const shown = await found.show();
  assert.deepEqual([shown.in_flight, shown.settled_total], [0, 0]);
});

test("a worker ends when its subscription is deleted, and with an error when the server refuses it", async () => {
  const found = await shared("ending", 0);
  const working = found.work(() => {}, { wait: 30 });
  while (!(await found.show()).requests_waiting) await new Promise((resolve) => setTimeout(resolve, 20));
  await found.delete();
  await working;
  await assert.rejects(found.work(() => {}), { status: 404 });
  await assert.rejects((await shared("most", 1)).work(() => {}, { most: 5000 }), { status: 400 });
});

test("a worker whose record somebody else has settled goes on", async () => {
  const found = await shared("stolen", 2, { lease: 60 });
  const stop = new AbortController(), seen = [];
  const handle = async (record) => {
    if (seen.push(record.seq) === 2) return stop.abort();
    await found.settle({ done: [[record.seq, record.token]] });
    return [{ stream: "stolen.out", payload: "twice" }];
  };
  await found.work(handle, { signal: stop.signal });
  assert.deepEqual(seen, [1, 2]);
  await assert.rejects(server.read("stolen.out"), { status: 404 });
});

/** A promise of a time that `signal` does not end. */
const asleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

test("a worker gives a record up after the longest time, and goes on with others", async () => {
  const found = await shared("hanging", 2, { lease: 1 });
  const stop = new AbortController(), seen = [];
  let lost;
  const handle = async (record, signal) => {
    seen.push([record.seq, record.failures]);
    if (record.failures) return stop.abort();
    if (record.seq === 1) {
      signal.addEventListener("abort", () => (lost = signal.reason));
      await new Promise(() => {});
    }
  };
  await found.work(handle, { longest: 2, signal: stop.signal });
  assert.deepEqual(seen, [[1, 0], [2, 0], [1, 1]]);
  // Its own clock ends it, or the server does, which is first on a busy machine.
  const reasons = ["it was not extended in time", "lease-lost"];
  const messages = reasons.map((reason) => `the lease of record 1 of hanging is lost: ${reason}`);
  assert.equal(messages.includes(lost.message), true, lost.message);
  assert.equal((await found.show()).settled_total, 2);
});

test("a handler is told when the server has taken its lease away, and its result is refused", async () => {
  const found = await shared("taken", 1, { lease: 3 });
  const stop = new AbortController();
  let lost;
  const handle = async (record, signal) => {
    if (lost) return stop.abort();
    await found.rewind("start"); // the tokens from before are refused
    await new Promise((resolve) => signal.addEventListener("abort", resolve));
    lost = signal.reason;
    return [{ stream: "taken.out", payload: "x" }];
  };
  await found.work(handle, { signal: stop.signal });
  assert.equal(lost.message, "the lease of record 1 of taken is lost: lease-lost");
  await assert.rejects(server.read("taken.out"), { status: 404 });
  assert.equal((await found.show()).settled_total, 1);
});

test("a handler is told when nobody could extend its lease, and its late result counts", async () => {
  const found = await shared("silent", 1, { lease: 1, limit: 9 });
  const stop = new AbortController();
  let reached = true, aborted;
  const away = async (...args) => {
    if (!reached) throw new TypeError("no route");
    return fetch(...args);
  };
  const handle = async (record, signal) => {
    reached = false;
    await new Promise((resolve) => signal.addEventListener("abort", resolve));
    [aborted, reached] = [signal.aborted, true];
    stop.abort();
  };
  await new Fyrehose(url, { fetch: away }).shared("silent").work(handle, { signal: stop.signal });
  for (let tries = 0; tries < 50 && !(await found.show()).settled_total; tries += 1) await asleep(100);
  assert.deepEqual([aborted, (await found.show()).settled_total], [true, 1]);
});

test("a worker whose process was blocked hears that another one has its record", async () => {
  const found = await shared("blocked", 1, { lease: 1 });
  const stop = new AbortController();
  let lost;
  const handle = (record, signal) => {
    signal.addEventListener("abort", () => (lost = signal.reason));
    for (const end = Date.now() + 1500; Date.now() < end; );
    stop.abort();
  };
  const other = async () => {
    for (let tries = 0; tries < 50; tries += 1) {
      const { records } = await found.lease({ consumer: "other" });
      if (records.length) return;
      await asleep(50);
    }
    assert.fail("the lease has not ended");
  };
  const asking = async (target, options) => {
    if (target.endsWith("/settle")) await other(); // before the late result arrives
    return fetch(target, options);
  };
  await new Fyrehose(url, { fetch: asking }).shared("blocked").work(handle, { signal: stop.signal });
  assert.equal(lost?.message, "the lease of record 1 of blocked is lost: lease-lost");
});

/** What Node 20 lacks of the browsers' locks: each request waits for the end of those before, or until it is aborted. */
function locks() {
  let last = Promise.resolve();
  const request = (name, { signal }, held) => {
    const aborted = new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    const mine = Promise.race([last, aborted]).then(held);
    last = Promise.allSettled([last, mine]);
    return mine;
  };
  return { request };
}
if (!globalThis.navigator?.locks) Object.defineProperty(globalThis, "navigator", { value: { locks: locks() }, configurable: true });

/** A client that notes the numbers from which it follows. */
function noting(seen) {
  return new Fyrehose(url, {
    fetch: (target, options) => {
      if (target.includes("/live")) seen.push(new URL(target).searchParams.get("from"));
      return fetch(target, options);
    },
  });
}

test("tabs that follow a stream together have one connection, and each sees every record once", async () => {
  for (const each of ["1", "2", "3"]) await server.publish("together", each);
  const asked = [[], []], seen = [[], [], []], stop = [0, 1, 2].map(() => new AbortController());
  const tab = async (at, options) => {
    const client = noting(asked[Math.min(at, 1)]);
    for await (const record of client.follow("together", { shared: true, signal: stop[at].signal, ...options })) seen[at].push(record.seq);
  };
  const until = async (at, seq) => {
    for (let tries = 0; tries < 200 && seen[at].at(-1) !== seq; tries += 1) await asleep(50);
    assert.equal(seen[at].at(-1), seq);
  };
  const tabs = [tab(0, { from: 2 })];
  await until(0, 3);
  tabs.push(tab(1, { from: 1 }), tab(2, {}));
  await until(1, 3);
  await server.publish("together", "4");
  await Promise.all([0, 1, 2].map((at) => until(at, 4)));
  assert.deepEqual(asked[1], [], "the others have no connection");
  stop[0].abort(); // as a tab that is closed: another one takes over
  await assert.rejects(tabs[0], { name: "AbortError" });
  await server.publish("together", "5");
  await Promise.all([1, 2].map((at) => until(at, 5)));
  assert.deepEqual([asked[0][0], asked[1][0]], ["2", "5"]);
  assert.deepEqual(seen, [[2, 3, 4], [1, 2, 3, 4, 5], [4, 5]]);
  for (const each of stop) each.abort();
  await Promise.allSettled(tabs);
});

test("a tab that follows together with others is told of gaps, of another journal, and of an end for good", async () => {
  const sent = ["event: gap\ndata: {\"first\": 2, \"last\": 4}", 'data: {"seq": 5}', 'event: restarted\ndata: {"end": 1, "epoch": "e2"}',
    'data: {"seq": 1}', 'event: ended\ndata: {"error": "forbidden"}'];
  const headers = { "Content-Type": "text/event-stream", "Fyrehose-Last": "9", "Fyrehose-Epoch": "e1" };
  const live = () => new Response(`${sent.join("\n\n")}\n\n`, { headers });
  const read = (records) => () => new Response(records.map((each) => `${JSON.stringify(each)}\n`).join(""), { headers: lines });
  const fake = (...pages) =>
    new Fyrehose("http://fake", { fetch: async (target) => (target.includes("/live") ? live() : (pages.shift() ?? read([]))()) });
  const seen = [];
  const all = async () => {
    for await (const each of fake().follow("x", { shared: true, from: 2 })) seen.push(each);
  };
  await assert.rejects(all(), { message: "forbidden", retriable: false });
  assert.deepEqual(seen, [{ gap: [2, 4] }, { seq: 5 }, { restarted: 1, epoch: "e2" }, { seq: 1 }]);
  // Another tab has the connection, which is at 9: what is before that is read, in parts, with its own gaps.
  seen.length = 0;
  const late = fake(read([{ seq: 3 }, { seq: 5 }]), read([{ seq: 7 }]), read([]));
  const leader = new BroadcastChannel("http://fake x"), over = new AbortController();
  let release;
  const held = navigator.locks.request("http://fake x", { signal: over.signal }, () => new Promise((resolve) => (release = resolve)));
  const following = (async () => {
    for await (const each of late.follow("x", { shared: true, from: 2, signal: over.signal })) seen.push(each);
  })();
  await asleep(50);
  for (const item of [{ next: 9, epoch: "e1" }, { seq: 9 }, { seq: 9 }, { gap: [8, 12] }, { next: 4, epoch: "e3" }]) leader.postMessage(item);
  for (let tries = 0; tries < 100 && seen.length < 11; tries += 1) await asleep(20);
  over.abort();
  await assert.rejects(following, { name: "AbortError" });
  release();
  await held;
  leader.close();
  const before = [{ gap: [2, 2] }, { seq: 3 }, { gap: [4, 4] }, { seq: 5 }, { gap: [6, 6] }, { seq: 7 }, { gap: [8, 8] }];
  assert.deepEqual(seen, [...before, { seq: 9 }, { gap: [10, 12] }, { restarted: 3, epoch: "e3" }, { gap: [1, 3] }]);
});
