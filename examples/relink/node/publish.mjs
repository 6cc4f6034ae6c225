// Publish the lines of standard input with Relink:
//
//     node publish.mjs 127.0.0.1:7733 STREAM [LINES-PER-TRANSACTION]
//
// The exit status is 0 when all of them are on the server's disk, each once.
import { createInterface } from "node:readline";

import { RelinkPublisher } from "../../../clients/javascript/relink.js"; // in a program of your own: "fyrehose/relink"

const [address, stream, perTransaction = "0"] = process.argv.slice(2);
const publisher = new RelinkPublisher(address, stream, { transactional: Number(perTransaction) > 0 });
let batch = [];

async function publish() {
  await publisher.ready();
  publisher.publish(...batch).catch((error) => {
    console.error(error.message);
    process.exitCode = 1;
  });
  batch = [];
}

for await (const line of createInterface({ input: process.stdin })) {
  batch.push(line);
  if (batch.length >= Number(perTransaction)) await publish();
}
if (batch.length) await publish();
await publisher.close();
