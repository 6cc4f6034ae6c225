"""Test Relink over real sockets with real processes: a short transfer of the torture tests, the command line, TLS."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
import pytest_twisted
from twisted.internet import reactor, ssl
from twisted.internet.defer import gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint, wrapClientTLS
from twisted.internet.interfaces import IStreamClientEndpoint
from zope.interface import implementer

from fyrehose.protocols.relink.client import RelinkClient
from fyrehose.protocols.relink.reader import RelinkReader
from fyrehose.testing.certificates import Authority
from fyrehose.testing.ports import free_port
from tests.live.conftest import eventually, fyrehose, ran

pytestmark = pytest.mark.live

TORTURE = Path(__file__).parents[1] / "verification" / "torture"
#: How many clients reconnect together; FYREHOSE_CROWD=1000 takes half a minute.
CROWD = int(os.environ.get("FYREHOSE_CROWD", "200"))
LISTEN = ("--data-dir", "data", "--listen", "relink=tcp:0:interface=127.0.0.1", "--option", "relink.max-per-host=2000")


@pytest_twisted.ensureDeferred
async def test_a_crowd_at_one_address_keeps_its_links_over_an_orderly_restart(start: Any) -> None:
    """Most of the clients publish, the others subscribe: each resumes its link, and nothing is lost or doubled."""
    links = CROWD
    # The server finds the links of a listener by its endpoint, so that must be the same after the restart.
    port = free_port()
    listen = (*LISTEN[:3], f"relink=tcp:{port}:interface=127.0.0.1", *LISTEN[4:])
    server = start(*listen)
    lost: list[Any] = []
    states: list[bool] = []
    got: dict[int, list[bytes]] = {number: [] for number in range(links // 20)}

    def client(name: str, **more: Any) -> RelinkClient:
        endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", port)
        return RelinkClient(reactor, endpoint, name, on_lost=lost.append, on_state=states.append, **more)

    publishers = [client("publish:s") for _ in range(links - links // 20)]
    subscribers = [
        client("subscribe:s@0", on_message=lambda channel, seq, parts, got=got[number]: got.append(parts[0]))
        for number in range(links // 20)
    ]
    clients = publishers + subscribers
    await gatherResults([one.connect() for one in clients])
    await gatherResults([one.send(b"before %d" % number) for number, one in enumerate(publishers)])
    before = [(one.link.epoch, one.link.id) for one in clients if one.link is not None]
    assert server.stop() == 0
    start(*listen)
    began = time.monotonic()
    await eventually(
        lambda: states.count(False) >= links and states.count(True) - states.count(False) == links,
        lambda: f"{states.count(False)} times a connection was lost, {states.count(True)} times there was one",
    )
    back = time.monotonic() - began
    print(f"{links} links were back {back:.1f} s after the server was")  # a figure for docs/security.md
    await gatherResults([one.send(b"after %d" % number) for number, one in enumerate(publishers)])
    await eventually(
        lambda: all(len(one) >= 2 * len(publishers) for one in got.values()),
        lambda: str({len(v) for v in got.values()}),
    )
    assert [(one.link.epoch, one.link.id) for one in clients if one.link is not None] == before
    assert not lost
    expected = sorted(b"%s %d" % (when, number) for number in range(len(publishers)) for when in (b"before", b"after"))
    assert all(sorted(one) == expected for one in got.values())
    await gatherResults([one.close() for one in clients])


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


@implementer(IStreamClientEndpoint)
@attrs.define(eq=False)
class Moving:
    """A client endpoint whose server moves to another port."""

    port: int

    def connect(self, factory: Any) -> Any:
        return TCP4ClientEndpoint(reactor, "127.0.0.1", self.port).connect(factory)


@pytest_twisted.ensureDeferred
async def test_a_subscriber_that_lost_its_link_misses_and_repeats_nothing(start: Any) -> None:
    """The server moves to another endpoint, which knows none of its links.

    A reader continues after its last record, and a reader without a record continues where it began.
    """
    server = start(*LISTEN)
    endpoint = Moving(server.port("relink"))
    got: dict[str, list[tuple[int, bytes]]] = {"busy": [], "quiet?@1": []}

    def reads(stream: str) -> RelinkReader:
        reader = RelinkReader(reactor, endpoint)
        reader.subscribe(stream, lambda run: got[stream].append((run.first_seq, bytes(run.payload))))
        return reader

    def publish(stream: str, payload: str) -> None:
        at = f"127.0.0.1:{server.port('relink')}"
        fyrehose("publish", "--protocol", "relink", "--to", at, "--stream", stream, payload)

    readers = [reads(stream) for stream in got]
    await gatherResults([reader.connect() for reader in readers])
    await eventually(lambda: all(reader.position == 0 for reader in readers))
    publish("busy", "1")
    await eventually(lambda: got["busy"] == [(1, b"1")])
    assert server.stop() == 0
    server = start(*LISTEN[:3], "relink=tcp:0:interface=127.0.0.1:backlog=100")
    publish("busy", "2")
    publish("quiet?@1", "1")
    endpoint.port = server.port("relink")
    await eventually(lambda: got == {"busy": [(1, b"1"), (2, b"2")], "quiet?@1": [(1, b"1")]}, lambda: str(got))
    await gatherResults([reader.close() for reader in readers])


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
