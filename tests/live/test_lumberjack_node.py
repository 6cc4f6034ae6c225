"""Writers of others in Node: what they send is stored at the first try, over TLS and without."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from fyrehose.testing.certificates import Authority
from tests.live import npm
from tests.live.conftest import PATIENCE, Start, listening

PACKAGES = ("lumberjack-client@1.0.3", "lumberjack-protocol@1.0.7")
COUNT = 5_000

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    npm.needed,
]

#: Queue half of the events before the connection is there, which become one window, and send each other as a window.
CLIENT = """
const LumberjackClient = require("lumberjack-client");
const [port, count] = process.argv.slice(2).map(Number);
const client = new LumberjackClient({ host: "127.0.0.1", port }, false);
for (let n = 0; n < count / 2; n++) client.log({ n });
let n = count / 2;
(function next() {
  if (!client.connected) return setTimeout(next, 10);
  while (n < count) client.log({ n: n++ });
})();
"""
#: Announce windows of 1,000 events of pairs, and send all at once; over TLS only.
PROTOCOL = """
const lumberjack = require("lumberjack-protocol");
const [port, count] = process.argv.slice(2).map(Number);
const ca = [require("fs").readFileSync(process.argv[4])];
const client = lumberjack.client({ host: "127.0.0.1", port, ca }, { maxQueueSize: 2 * count });
client.on("dropped", (number) => { console.error(`dropped ${number}`); process.exit(1); });
for (let n = 0; n < count; n++) client.writeDataFrame({ line: String(n) });
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the packages, or skip the tests; npm fetches them."""
    folder = tmp_path_factory.mktemp("node")
    npm.install(folder, folder / "cache", *PACKAGES)
    (folder / "client.js").write_text(CLIENT)
    (folder / "protocol.js").write_text(PROTOCOL)
    return folder


def events(server: Any) -> list[dict[str, Any]]:
    """Return the events that are stored by now."""
    url = f"http://127.0.0.1:{server.port('http')}/streams/lumberjack?limit=1000000"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return [json.loads(json.loads(line)["payload"]) for line in answer]
    except HTTPError as error:
        if error.code != 404:  # nothing has arrived yet
            raise
        return []


def stored(server: Any, program: list[str], folder: Path) -> list[dict[str, Any]]:
    """Run *program* until COUNT events are stored, and return them."""
    assert npm.NODE is not None
    words = [npm.NODE, program[0], str(server.port("lumberjack")), str(COUNT), *program[1:]]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        try:
            deadline, found = time.monotonic() + PATIENCE, list[dict[str, Any]]()
            while len(found) < COUNT:
                assert running.poll() is None, server.log
                assert time.monotonic() < deadline, (len(found), server.log)
                time.sleep(0.2)
                found = events(server)
        finally:
            running.kill()
    return found


def test_events_of_lumberjack_client_are_stored_in_order(start: Start, installed: Path) -> None:
    server = start(*listening("http", "lumberjack"))
    assert stored(server, ["client.js"], installed) == [{"n": n} for n in range(COUNT)]


def test_events_of_lumberjack_protocol_are_stored_in_order(start: Start, installed: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("localhost", "127.0.0.1")
    tls = ("--option", f"lumberjack.tls-certificate={own.certificate}", "--option", f"lumberjack.tls-key={own.key}")
    server = start(*listening("http", "lumberjack"), *tls)
    found = stored(server, ["protocol.js", str(authority.certificate)], installed)
    assert [each["line"] for each in found] == [str(n) for n in range(COUNT)]
