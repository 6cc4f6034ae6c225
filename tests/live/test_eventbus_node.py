"""A clone client of the event bus with zeromq.js, over kills of the server: it has exactly what is stored."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fyrehose.testing.ports import free_ports
from tests.live import npm
from tests.live.conftest import PATIENCE, Start

#: Events that are published, and how many of them are confirmed when the server is killed.
COUNT, KILLS = 500, (100, 200, 300, 400)

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(300), npm.needed]

#: Subscribe twice to the same events, fetch snapshots all the time, publish, and send again what is not confirmed.
CLONE = """
const zmq = require("zeromq"), { randomUUID } = require("node:crypto");
const [port, count] = process.argv.slice(2).map(Number), at = (n) => `tcp://127.0.0.1:${port + n}`;
const snapshot = new zmq.Dealer({ linger: 0 }), live = new zmq.Subscriber(), collector = new zmq.Dealer({ linger: 0 });
live.subscribe("/z/", "/z/a/");
snapshot.connect(at(0)); live.connect(at(1)); collector.connect(at(2));
const seen = new Map(), waiting = new Map(), broadcasts = [];
let behind = 0, confirmed = 0;
function take(number, uuid, data) {
  seen.set(number, data.readUInt16BE(1));
  while (seen.has(behind + 1)) behind++;
  if (waiting.delete(String(uuid))) console.log(`confirmed ${++confirmed}`);
}
(async () => { for await (const [topic, number, producer, time, uuid, data] of live) {
  broadcasts.push(Number(number.readBigUInt64BE()));
  take(broadcasts.at(-1), uuid, data);
} })();
(async () => { for await (const frames of snapshot)
  if (String(frames[0]) === "SYNC") take(Number(frames[2].readBigUInt64BE()), frames[5], frames[6]);
})();
const ask = () => {
  const number = Buffer.alloc(8);
  number.writeBigUInt64BE(BigInt(behind));
  snapshot.send(["SYNCSTART", "/z/", number]).catch(() => {});
};
const publish = (event) => { event.sent = Date.now(); return collector.send(event.frames).catch(() => {}); };
setInterval(ask, 500);
(async () => {
  for (let n = 0; n < count; n++) {
    const uuid = randomUUID(), data = Buffer.from([0xcd, n >> 8, n & 255]);
    const frames = [n % 2 ? "/z/" : "/z/a/b/", "null", "node", new Date().toISOString(), uuid, data];
    waiting.set(uuid, { frames });
    await publish(waiting.get(uuid));
    await new Promise((go) => setTimeout(go, 5));
  }
  while (waiting.size) {
    for (const event of waiting.values()) if (Date.now() - event.sent > 2000) await publish(event);
    await new Promise((go) => setTimeout(go, 100));
  }
  while (behind < Math.max(...seen.keys())) await new Promise((go) => setTimeout(go, 100));
  console.log(JSON.stringify({ seen: [...seen].sort((a, b) => a[0] - b[0]), broadcasts }));
  process.exit(0);
})();
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with zeromq.js and the program, or skip the tests."""
    folder = tmp_path_factory.mktemp("node")
    npm.install(folder, folder / "cache", "zeromq@6.8.0")
    (folder / "clone.js").write_text(CLONE)
    return folder


def stored(server: Any) -> list[list[int]]:
    """Return the number of each stored event, and its data."""
    url = f"http://127.0.0.1:{server.port('http')}/streams/eventbus?limit=100000"
    found = []
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        for record in map(json.loads, answer):
            data = record["payload"].encode() if "payload" in record else base64.b64decode(record["payload_base64"])
            assert data[0] == 0xCD, "a msgpack number of 16 bits"
            found.append([record["seq"], int.from_bytes(data[1:3], "big")])
    return found


def test_a_clone_client_of_zeromq_js_has_what_is_stored_over_four_kills(start: Start, installed: Path) -> None:
    (port,) = free_ports(1, row=3)  # none that the other listener may get when the server starts again
    listeners = [f"--listen={each}:interface=127.0.0.1" for each in ("http=tcp:0", f"eventbus=tcp:{port}")]
    server = start(*listeners)
    assert npm.NODE is not None
    words, kills, report = [npm.NODE, "clone.js", str(port), str(COUNT)], list(KILLS), ""
    with subprocess.Popen(words, cwd=installed, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as clone:
        try:
            assert clone.stdout is not None
            for report in clone.stdout:
                if kills and report.strip() == f"confirmed {kills[0]}":
                    del kills[0]
                    server.stop(signal.SIGKILL)
                    server = start(*listeners)
        finally:
            clone.kill()
    found = json.loads(report)
    # Events that were sent twice may be stored after the end of the client.
    truth = [each for each in stored(server) if each[0] <= found["seen"][-1][0]]
    assert not kills, "the server was killed less often"
    assert found["seen"] == truth
    assert {n for _, n in truth} == set(range(COUNT)), "events are missing"
    broadcasts = found["broadcasts"]
    assert broadcasts == sorted(set(broadcasts)), "overlapping subscriptions send an event twice, or out of order"
