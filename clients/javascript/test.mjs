// The client against a real server at FYREHOSE_URL; tests/live/test_javascript.py starts it.
import assert from "node:assert/strict";
import test from "node:test";
import { Fyrehose, FyrehoseError, Subscription, bytesOf } from "./fyrehose.js";

const url = process.env.FYREHOSE_URL;
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
  assert.deepEqual([...bytesOf(text)], [...Buffer.from("text")]);
  assert.deepEqual([object.content_type, JSON.parse(object.payload)], ["application/json", { order: 1 }]);
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
  const proxy = new Fyrehose(url, { fetch: async () => new Response("<html>", { status: 502 }) });
  await assert.rejects(proxy.read("x"), { status: 502, message: "HTTP 502" });
});

test("a token is sent, also from a function", async () => {
  const seen = [];
  const noting = async (target, { headers }) => (seen.push(headers.Authorization), new Response(""));
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
    while (!text.includes("\n\n")) text += Buffer.from((await reader.read()).value).toString();
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
  const fake = new Fyrehose(url, { fetch: async () => new Response(body, { headers: { "Fyrehose-Last": "9" } }) });
  const following = fake.follow("x", { from: 1 });
  assert.deepEqual((await following.next()).value, { gap: [1, 4] });
  await assert.rejects(following.next(), { message: "why", retriable: false });
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
