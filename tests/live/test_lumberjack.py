"""Test lumberjack with programs of others against a server in a process of its own."""

from __future__ import annotations

import hashlib
import json
import random
import re
import socket
import ssl
import sys
import urllib.request
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from struct import pack
from typing import Any

import attrs
import pylogbeat
import pytest

from fyrehose.testing.certificates import Authority, Issued
from tests.live.conftest import PATIENCE, fyrehose, ran, resident, until

pytestmark = [pytest.mark.live, pytest.mark.slow]

LOOPBACK = "tcp:0:interface=127.0.0.1"
FIGG = f"figg={LOOPBACK}"
BACKBONE = "backbone=udp:0:interface=127.0.0.1"


@attrs.define(eq=False)
class Place:
    """A server, and what a writer has to know about it."""

    server: Any
    authority: Authority | None = None
    writer: Issued | None = None

    @property
    def port(self) -> int:
        return int(self.server.port("lumberjack"))

    def tail(self, protocol: str, count: int, *words: str) -> bytes:
        """Return the first ``count`` payloads, joined."""
        place = f"127.0.0.1:{self.server.port(protocol)}"
        where = ["--protocol", protocol, "--from", place, *words]
        what = ["--since", "start", "--count", str(count), "--format", "raw"]
        return fyrehose("tail", *where, *what, text=False).stdout


@pytest.fixture(params=["tcp", "tls"])
def place(request: pytest.FixtureRequest, start: Any, tmp_path: Path) -> Place:
    """Start a server that stores lumberjack events in the backbone's stream, without TLS or with certificates."""
    words = ["--listen", f"lumberjack={LOOPBACK}", "--listen", FIGG, "--listen", BACKBONE]
    words += ["--option", "lumberjack.stream=backbone"]
    authority = writer = None
    if request.param == "tls":
        authority = Authority(tmp_path)
        own, writer = authority.issue("localhost", "127.0.0.1"), authority.issue("writer-7")
        for name, value in (
            ("certificate", own.certificate),
            ("key", own.key),
            ("authorities", authority.certificate),
            ("client-auth", "required"),
        ):
            words += ["--option", f"lumberjack.tls-{name}={value}"]
    return Place(start(*words), authority, writer)


def tls_words(place: Place) -> dict[str, Any]:
    """Return the TLS arguments of pylogbeat, which python-logstash-async shares."""
    if place.authority is None or place.writer is None:
        return {"ssl_enable": False}
    return {
        "ssl_enable": True,
        "ssl_verify": True,
        "ca_certs": place.authority.certificate,
        "certfile": place.writer.certificate,
        "keyfile": place.writer.key,
    }


def test_events_of_pylogbeat_are_stored_as_they_were_sent(place: Place) -> None:
    batches: list[list[str]] = [
        ['{"message":"one","@metadata":{"beat":"real"}}'],
        [json.dumps({"n": n, "message": "x" * (n % 500), "@metadata": {"beat": "real"}}) for n in range(5_000)],
        ["not json", "", "[1]", '{"ü":"ü"}'],
    ]
    client = pylogbeat.PyLogBeatClient("127.0.0.1", place.port, timeout=PATIENCE, **tls_words(place))
    client.send([])
    for batch in batches:
        client.send(batch)
    client.close()
    sent = [document.encode() for batch in batches for document in batch]
    for protocol, words in (("figg", ("--stream", "backbone")), ("backbone", ())):
        assert place.tail(protocol, len(sent), *words) == b"".join(sent), protocol
    assert place.server.stop() == 0
    fyrehose("journal", "verify", place.server.directory / "data")


def test_event_of_40_mib_of_pylogbeat_is_stored_in_parts_that_a_reader_joins(start: Any, tmp_path: Path) -> None:
    """Join the parts by the function of the page, in records of HTTP and of ``journal export``."""
    page = (Path(__file__).parents[2] / "docs" / "protocols" / "lumberjack.md").read_text(encoding="utf-8")
    [code] = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def joined(" in each]
    names: dict[str, Any] = {}
    exec(compile(code, "lumberjack.md", "exec"), names)
    listeners = [f"lumberjack={LOOPBACK}", f"http={LOOPBACK}"]
    server = start(*(word for each in listeners for word in ("--listen", each)))
    event = json.dumps({"message": "x" + "\u20ac" * ((40 << 20) // 3)}, ensure_ascii=False)
    client = pylogbeat.PyLogBeatClient("127.0.0.1", server.port("lumberjack"), timeout=PATIENCE)
    client.send([event, '{"message": "small"}'])
    client.close()
    expected = [(3, event.encode()), (4, b'{"message": "small"}')]
    at = f"127.0.0.1:{server.port('http')}"
    with urllib.request.urlopen(f"http://{at}/streams/lumberjack", timeout=PATIENCE) as answer:
        assert [*names["joined"](map(json.loads, answer))] == expected
    assert server.stop() == 0
    fyrehose("journal", "export", server.directory / "data", tmp_path / "all.ndjson")
    exported = (tmp_path / "all.ndjson").read_text(encoding="utf-8").splitlines()
    assert [*names["joined"](map(json.loads, exported))] == expected


PROGRAM = """
import json, logging, sys
from logstash_async.handler import AsynchronousLogstashHandler
from logstash_async.transport import BeatsTransport
words = json.loads(sys.argv[2])
transport = BeatsTransport(
    "127.0.0.1", int(sys.argv[1]), ssl_verify_flags=None, timeout=60.0,
    **{"ssl_verify": False, "keyfile": None, "certfile": None, "ca_certs": None, **words},
)
handler = AsynchronousLogstashHandler("127.0.0.1", int(sys.argv[1]), database_path=None, transport=transport)
log = logging.getLogger("real")
log.setLevel(logging.INFO)
log.addHandler(handler)
for number in range(300):
    log.info("message %d", number)
handler.flush()
handler.close()
logging.shutdown()
"""


def test_events_of_python_logstash_async_are_stored_as_they_were_sent(place: Place) -> None:
    assert ran(sys.executable, "-c", PROGRAM, place.port, json.dumps(tls_words(place))).stderr == ""
    raw = place.tail("figg", 300, "--stream", "backbone")
    assert place.tail("backbone", 300) == raw
    documents, decoder, text = [], json.JSONDecoder(), raw.decode()
    while text:
        found, end = decoder.raw_decode(text)
        documents.append(found)
        text = text[end:].lstrip()
    # the queue of python-logstash-async does not keep the order
    assert sorted(found["message"] for found in documents) == sorted(f"message {number}" for number in range(300))


def acknowledgement(peer: socket.socket) -> bytes:
    """Return the next acknowledgement, without those by which a server asks for patience on a busy machine."""
    while (answer := peer.recv(6, socket.MSG_WAITALL)) == b"2A" + bytes(4):
        pass
    return answer


def raw_socket(place: Place) -> socket.socket:
    return socket.create_connection(("127.0.0.1", place.port), timeout=PATIENCE)


@pytest.mark.parametrize("place", ["tls"], indirect=True)
def test_a_writer_without_a_certificate_is_refused(place: Place) -> None:
    assert place.authority is not None
    for number in range(6):  # each refusal is delayed for longer than the one before
        client = pylogbeat.PyLogBeatClient(
            "127.0.0.1", place.port, timeout=PATIENCE, ssl_enable=True, ca_certs=place.authority.certificate
        )
        with pytest.raises((ssl.SSLError, OSError, pylogbeat.ConnectionException)):
            client.send(["{}"])
        client.close()
        if not number:
            place.server.wait_for("handshake-failed from 127.0.0.1")
            before = descriptors(place)
    until(lambda: descriptors(place) <= before, lambda: f"{descriptors(place) - before} descriptors are left")


def descriptors(place: Place) -> int:
    """Return how many files and sockets the server has open."""
    return len(list(Path(f"/proc/{place.server.process.pid}/fd").iterdir()))


def test_a_bomb_of_1_gib_costs_less_than_70_mib(start: Any) -> None:
    place = Place(start("--listen", f"lumberjack={LOOPBACK}", "--listen", FIGG))
    client = pylogbeat.PyLogBeatClient("127.0.0.1", place.port, timeout=PATIENCE)
    client.send(['{"before":1}'])
    squeeze = zlib.compressobj(9)
    head = squeeze.compress(b"\0" * (1 << 20)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    bomb = head + (squeeze.compress(b"\0" * (1 << 20)) + squeeze.flush(zlib.Z_FULL_FLUSH)) * 1023
    before = resident(place.server.process.pid)
    for _ in range(5):
        with raw_socket(place) as peer:
            peer.sendall(b"2W\0\0\0\1" + b"2C" + pack(">I", len(bomb)) + bomb)
            assert peer.recv(6) == b"", "the server must close without an acknowledgement"
    grown = resident(place.server.process.pid) - before
    assert grown < 70 << 20, f"{grown >> 20} MiB"
    client.send(['{"after":1}'])
    client.close()
    assert "bad-version from 127.0.0.1" in place.server.log, (
        "the first slice of the bomb, which is no frame, was not refused"
    )
    assert place.tail("figg", 2, "--stream", "lumberjack") == b'{"before":1}{"after":1}'


def test_a_bomb_of_compressed_frames_is_stored_with_little_memory(start: Any) -> None:
    place = Place(start("--listen", f"lumberjack={LOOPBACK}"))
    bomb = compressed([b"\0" * ((1 << 20) - 10)] * 128, 9, 2)
    before = resident(place.server.process.pid)
    with raw_socket(place) as peer:
        peer.sendall(bomb)
        assert acknowledgement(peer) == b"2A" + pack(">I", 128)
    grown = resident(place.server.process.pid) - before
    assert grown < 100 << 20, f"{grown >> 20} MiB"


def compressed(documents: Sequence[bytes], level: int, version: int) -> bytes:
    """Return a window of *documents* in one compressed frame, as Filebeat sends it."""
    squeeze = zlib.compressobj(level)
    parts = [
        squeeze.compress(b"%dJ" % version + pack(">II", number, len(document)) + document)
        for number, document in enumerate(documents, 1)
    ]
    body = b"".join([*parts, squeeze.flush()])
    head = b"%dW" % version + pack(">I", len(documents)) + b"%dC" % version + pack(">I", len(body))
    return head + body


def poison() -> dict[str, list[bytes]]:
    """Return windows that Filebeat may send with its defaults, by a description."""
    dice = random.Random(13)
    return {
        "2,048 events of 40 KB": [dice.randbytes(14_500) + b"x" * 25_500 for _ in range(2_048)],
        "80 JSON lines of 1 MB": [b'{"level":"info","request":"GET /","n":%07d}' % n * 23_256 for n in range(80)],
        "a line of 300 KB of NULs": [b'{"message":"' + b"\\u0000" * 300_000 + b'"}'],
        "a line of 3 MB of spaces": [b'{"message":"' + b" " * 3_000_000 + b'"}'],
        "a line of 10 MB of quotes": [b'{"message":"' + b'\\"' * 10_000_000 + b'"}'],
    }


@pytest.mark.parametrize("version", [1, 2])
def test_large_windows_of_honest_writers_are_taken_with_the_default_limits(start: Any, version: int) -> None:
    """Once the server closed the connection after each of these windows, so that the writer sent it again and again."""
    place = Place(start("--listen", f"lumberjack={LOOPBACK}", "--listen", FIGG))
    before = resident(place.server.process.pid)
    count, digest = 0, hashlib.sha256()
    with raw_socket(place) as peer:
        for name, documents in poison().items():
            peer.sendall(compressed(documents, 3, version))
            assert acknowledgement(peer) == b"%dA" % version + pack(">I", len(documents)), name
            count += sum(1 + len(document) // (16 << 20) for document in documents)
            digest.update(b"".join(documents))
    grown = resident(place.server.process.pid) - before
    assert grown < 160 << 20, f"{grown >> 20} MiB, for windows of 82 MB"
    stored = place.tail("figg", count, "--stream", "lumberjack")
    assert hashlib.sha256(stored).digest() == digest.digest()


def writers(*words: str) -> dict[str, Any]:
    """Run tests/verification/torture/lumberjack_writers.py; return its figures."""
    script = Path(__file__).parents[1] / "verification" / "torture" / "lumberjack_writers.py"
    return dict(json.loads(ran(sys.executable, script, *words, timeout=280).stdout.splitlines()[0]))


@pytest.mark.parametrize("level", [0, 3])
def test_60_heavy_writers_are_served_within_the_budget_and_delay_a_light_one_little(level: int) -> None:
    """The script can run 500 writers.  The slack of 48 MiB is for the allocator and the journal's buffers."""
    words = ("--writers", "60", "--windows", "10", "--memory", "96", "--slack", "48", "--level", str(level))
    figures = writers(*words, "--light-windows", "300")
    assert figures["acknowledged"] == 600
    assert figures["events"] == 600 * 2_048


def test_250_writers_of_one_address_are_admitted_by_default(start: Any) -> None:
    """As Filebeats behind one NAT, or on the nodes of one Kubernetes cluster."""
    place = Place(start("--listen", f"lumberjack={LOOPBACK}"))
    with ExitStack() as stack:
        peers = [stack.enter_context(raw_socket(place)) for _ in range(250)]
        for peer in peers:
            peer.sendall(b"2W" + pack(">I", 1) + b"2J" + pack(">II", 1, 2) + b"{}")
        assert [acknowledgement(peer) for peer in peers] == [b"2A" + pack(">I", 1)] * 250
    assert "too-many-connections" not in place.server.log
