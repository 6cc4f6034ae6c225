// Publish COUNT messages one after another, follow them, consume them by a named subscription, and work on them by a
// shared one, all through URL; print what each has seen, when all have seen everything.  usage: proxied.mjs URL COUNT
import { Fyrehose } from "../../clients/javascript/fyrehose.js";

const [url, count] = [process.argv[2], Number(process.argv[3])];
const payloads = Array.from({ length: count }, (_, at) => `js ${at}`);
const client = () => new Fyrehose(url, { retries: 20 }); // a busy machine starts a server slowly

async function publish() {
  for (const each of payloads) {
    await client().publish("js", each);
    await new Promise((resolve) => setTimeout(resolve, 400));
  }
}

async function collect(records) {
  const seen = [];
  for await (const record of records) if (seen.push(record.payload) === count) return seen;
}

async function work() {
  const shared = client().shared("js-work"), stop = new AbortController(), seen = [];
  await shared.create({ stream: "js" });
  await shared.work((record) => { if (seen.push(record.payload) === count) stop.abort(); }, { signal: stop.signal, wait: 2 });
  return seen;
}

const [, followed, consumed, worked] = await Promise.all([
  publish(),
  collect(client().follow("js", { from: 1 })),
  collect(client().subscription("js-named", "js").consume({ limit: 7, wait: 2 })),
  work(),
]);
console.log(JSON.stringify({ followed, consumed, worked: worked.sort() }));
process.exit();
