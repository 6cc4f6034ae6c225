// What a program in TypeScript relies on; `npm run types` checks it, and runs nothing.
import { Fyrehose, FyrehoseError, Reject, bytesOf } from "fyrehose";
import type { FyrehoseRecord, Gap, LeasedRecord, Restarted, SharedInfo, Settled, Subscription } from "fyrehose";
import { RelinkError, RelinkPublisher, RelinkSubscriber } from "fyrehose/relink";
import * as tls from "node:tls";

export async function http(signal: AbortSignal): Promise<void> {
  const server = new Fyrehose(new URL("http://127.0.0.1:8117"), { token: async () => "t", retries: 3 });
  const last: number | undefined = (await server.publish("notes", { a: 1 }, { key: "k", signal })).last;
  await server.publishMany("notes", new Set(["a", "b"]));
  for await (const each of server.follow("notes", { from: last, signal, shared: true })) {
    if ("gap" in each) {
      const [first, end]: Gap["gap"] = each.gap;
      console.log(first + end);
    } else if ("restarted" in each) {
      const { restarted, epoch }: Restarted = each;
      console.log(restarted.toFixed(), epoch.length);
    } else {
      const record: FyrehoseRecord = each;
      const bytes: Uint8Array = bytesOf(record);
      console.log(bytes.length, record.seq.toFixed());
    }
  }
  const named: Subscription = server.subscription("billing", "orders", { consumer: "a" });
  for await (const record of named.consume({ wait: 5, takeover: true, lease: 60 })) console.log(record.payload?.length);
  await named.acknowledge((await named.read({ limit: 1 }))[0].seq);
  await named.rewind("start");
  const names: string[] = (await server.streams("*")).map((each) => each.name);
  console.log(names, (await named.show()).lag);
  await named.delete();
  try {
    await server.read("notes", { from: 1, limit: 2 });
  } catch (error) {
    if (error instanceof FyrehoseError && !error.retriable) console.log(error.status, error.refused?.[0].why);
  }
  // @ts-expect-error -- a number is no stream
  await server.publish(1, "x");
}

export async function shared(server: Fyrehose): Promise<void> {
  const orders = server.shared("orders");
  const created: SharedInfo = await orders.create({ stream: "orders", lease: 30, dead: "orders.dead" });
  const { lease, records } = await orders.lease({ consumer: "w1", most: 10, wait: 30 });
  const [{ seq, token, failures }]: LeasedRecord[] = records;
  const answer: Settled = await orders.settle({
    done: [[seq, token]],
    failed: [["orders", [seq, seq + 1], token, { delay: 60 }]],
    extend: [[seq, token]],
    publish: [{ stream: "invoices", payload: "x" }],
  });
  console.log(created.lag, lease, failures, answer.extended[0].token);
  await orders.work(async (record, signal) => {
    if (record.failures > 3) throw new Reject("too often");
    await fetch("http://127.0.0.1:1", { signal });
    return [{ stream: "invoices", payload: "x" }];
  }, { most: 5, longest: 3 });
  await orders.work((record) => console.log(record.token));
  await orders.pause(false);
  const redriven: number = await orders.redrive();
  await orders.rewind(redriven);
  await orders.delete();
  // @ts-expect-error -- a consumer has a name
  await orders.lease({ most: 1 });
  // @ts-expect-error -- there is no such list
  await orders.settle({ finished: [] });
}

export async function relink(signal: AbortSignal): Promise<void> {
  const publisher = new RelinkPublisher("127.0.0.1:7733", "notes", { transactional: true, connect: (at) => tls.connect(at) });
  await publisher.ready();
  await publisher.publish("text", new Uint8Array(1)).catch((error: unknown) => {
    if (error instanceof RelinkError && error.outcome === "unknown") publisher.destroy(error);
  });
  await publisher.close();
  const subscriber = new RelinkSubscriber("127.0.0.1:7733", "notes", { after: 0, subscription: "s", takeover: true, signal });
  for await (const each of subscriber) {
    if (each.gap) console.log(each.gap[0]);
    else if (each.restarted !== undefined) console.log(each.restarted.toFixed(), each.epoch);
    else console.log(each.seq.toFixed(), each.payload?.toString(), each.parts.length);
  }
  await subscriber.close();
  subscriber.destroy();
  // @ts-expect-error -- a message is text or bytes
  await publisher.publish({ a: 1 });
}
