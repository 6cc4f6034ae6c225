"""Relink over real sockets, with real processes: the transfer of tests/torture in short, the command line, TLS."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor, ssl
from twisted.internet.endpoints import TCP4ClientEndpoint, wrapClientTLS

from fyrehose.protocols.relink.client import RelinkClient
from fyrehose.testing.certificates import Authority

pytestmark = pytest.mark.live

TORTURE = Path(__file__).parents[1] / "torture"
FYREHOSE = Path(sys.executable).with_name("fyrehose")
LISTEN = ("--data-dir", "data", "--listen", "relink=tcp:0:interface=127.0.0.1")


def command(*words: str, lines: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(FYREHOSE), *words], input=lines, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("options", [("--cuts", "30"), ("--cuts", "10", "--kills", "3")])
def test_a_transfer_over_cuts_and_kills(options: tuple[str, ...], tmp_path: Path) -> None:
    words = ["--messages", "3000", "--directory", str(tmp_path), *options]
    script = str(TORTURE / "relink_transfer.py")
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exactly what was committed, each once, in order" in done.stdout


def test_publish_and_tail(start: Any) -> None:
    server = start(*LISTEN)
    at = f"127.0.0.1:{server.port('relink')}"
    lines = [f"line {number}" for number in range(500)]
    published = command(
        "publish", "--protocol", "relink", "--to", at, "--stream", "s", "--transaction", "40", lines="\n".join(lines)
    )
    assert published.returncode == 0, published.stderr
    assert "500 messages" in published.stderr
    tailed = command(
        "tail", "--protocol", "relink", "--from", at, "--stream", "s", "--since", "start", "--count", "500"
    )
    assert tailed.stdout.splitlines() == lines
    as_json = command(
        *("tail", "--protocol", "relink", "--from", at, "--stream", "s"),
        *("--since", "500", "--count", "1", "--format", "json"),
    )
    assert json.loads(as_json.stdout) == {"stream": "s", "source": "relink", "payload": "line 499"}
    assert server.stop() == 0


def test_a_protocol_without_transactions_says_so(start: Any) -> None:
    said = command("publish", "--protocol", "figg", "--stream", "s", "--transaction", "5", "x")
    assert said.returncode != 0
    assert "figg has no transactions" in said.stderr


@pytest_twisted.ensureDeferred
async def test_by_tls(start: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("localhost", "localhost")
    listen = f"relink=ssl:0:interface=127.0.0.1:privateKey={issued.key}:certKey={issued.certificate}"
    server = start("--data-dir", "data", "--listen", listen)
    root = ssl.Certificate.loadPEM(Path(authority.certificate).read_bytes())
    options = ssl.optionsForClientTLS("localhost", trustRoot=root)
    endpoint = wrapClientTLS(options, TCP4ClientEndpoint(reactor, "127.0.0.1", server.port("relink")))
    client = RelinkClient(reactor, endpoint, "publish:s", transactional=True)
    await client.connect()
    async with client.transaction() as transaction:
        await transaction.send(b"x" * 1_000_000)
        await transaction.send([b"a", b"b"])
    await client.close()
    assert server.stop() == 0
    assert str(tmp_path) not in server.log.partition("relink: 0 links in")[2].partition("\n")[0]
