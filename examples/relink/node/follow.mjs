// Print the records of a stream with Relink, from the oldest one on:
//
//     node follow.mjs 127.0.0.1:7733 STREAM [COUNT [SUBSCRIPTION]]
//
// With COUNT the program ends behind that many records. With the name of a subscription the server keeps the position:
// the next run goes on behind the last line.
import { once } from "node:events";

import { RelinkSubscriber } from "../../../clients/javascript/relink.js"; // in a program of your own: "fyrehose/relink"

const [address, stream, count = "Infinity", subscription] = process.argv.slice(2);
let left = Number(count);

const subscriber = new RelinkSubscriber(address, stream, { after: 0, subscription });
for await (const { payload, gap, restarted } of subscriber) {
  if (restarted !== undefined) {
    console.error(`the server has another journal, which ends at ${restarted}; it is read from its start`);
    continue;
  }
  if (gap) console.error(`the records ${gap[0]} to ${gap[1]} are missing`);
  else if (!process.stdout.write(`${payload}\n`)) await once(process.stdout, "drain");
  if (!gap && --left === 0) await subscriber.close(); // when the loop asks for the next record, which acknowledges this one
}
