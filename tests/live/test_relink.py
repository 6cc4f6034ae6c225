"""Test Relink over real sockets with real processes: a short transfer of the torture tests, the command line, TLS."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor, ssl
from twisted.internet.endpoints import TCP4ClientEndpoint, wrapClientTLS

from fyrehose.protocols.relink.client import RelinkClient
from fyrehose.testing.certificates import Authority
from tests.live.conftest import fyrehose, ran

pytestmark = pytest.mark.live

TORTURE = Path(__file__).parents[1] / "verification" / "torture"
LISTEN = ("--data-dir", "data", "--listen", "relink=tcp:0:interface=127.0.0.1", "--option", "relink.max-per-host=2000")


@pytest.mark.parametrize("options", [("--cuts", "30"), ("--cuts", "10", "--kills", "3")])
def test_a_transfer_over_cut_connections_and_kills_is_exact(options: tuple[str, ...], tmp_path: Path) -> None:
    words = ["--messages", "3000", "--directory", str(tmp_path), *options]
    script = str(TORTURE / "relink_transfer.py")
    assert "exactly what was committed, each once, in order" in ran(sys.executable, script, *words, timeout=280).stdout


def test_publish_and_tail_work_with_relink(start: Any) -> None:
    server = start(*LISTEN)
    at = f"127.0.0.1:{server.port('relink')}"
    lines = [f"line {number}" for number in range(500)]
    words = ("--protocol", "relink", "--to", at, "--stream", "s", "--transaction", "40")
    assert "500 messages" in fyrehose("publish", *words, input="\n".join(lines)).stderr
    words = ("--protocol", "relink", "--from", at, "--stream", "s")
    assert fyrehose("tail", *words, "--since", "start", "--count", "500").stdout.splitlines() == lines
    as_json = fyrehose("tail", *words, "--since", "500", "--count", "1", "--format", "json").stdout
    assert json.loads(as_json) == {"stream": "s", "seq": 500, "payload": "line 499"}
    assert server.stop() == 0


@pytest_twisted.ensureDeferred
async def test_publish_and_tail_work_with_relink_over_tls(start: Any, tmp_path: Path) -> None:
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
