"""Test the life of a stream in a real server: what it may store, for how long it is served, and how it is deleted."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.journal.clock import RecordClock
from fyrehose.journal.commit import InlineWorker
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.offline import dump
from fyrehose.records import Run
from tests.live.conftest import PATIENCE, fyrehose

pytestmark = [pytest.mark.live, pytest.mark.slow]

#: The listeners of the server.
LISTEN = {
    "figg": "tcp:0",
    "relink": "tcp:0",
    "http": "tcp:0",
    "admin": "tcp:0",
    "backbone": "udp:0",
    "eventbus": "tcp:0",
}
#: The stream that each protocol reads here.
STREAMS = {"figg": "s", "relink": "s", "backbone": None, "eventbus": None}
#: A policy of streams: peers may create streams with one name only, and large messages are refused.
OPEN_ONLY = """
[[stream]]
name = "open.*"
new-streams = true

[[stream]]
name = "*"
new-streams = false
max-payload = 10
"""


class Server:
    """A real server that is used through HTTP and the command line."""

    def __init__(self, start: Any, *words: str) -> None:
        listen = [f"{plugin}={place}:interface=127.0.0.1" for plugin, place in LISTEN.items()]
        self.process = start(*[word for each in listen for word in ("--listen", each)], *words)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, dict[str, str], bytes]:
        port = self.process.port("http")
        with closing(HTTPConnection("127.0.0.1", port, PATIENCE)) as connection:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    def publish(self, stream: str, body: bytes = b"x") -> int:
        """Publish *body*; return its number."""
        status, _, said = self.ask("POST", f"/streams/{stream}", body)
        assert status == 200, said
        return int(json.loads(said)["first"])

    def numbers(self, stream: str, query: str = "") -> list[int]:
        status, _, said = self.ask("GET", f"/streams/{stream}{query}")
        assert status == 200, said
        return [json.loads(line)["seq"] for line in said.splitlines()]

    def run(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        return fyrehose(*words, status=None, text=False)

    def tail(self, protocol: str, since: str, count: int) -> list[int]:
        """Read with the protocol's own client; return the numbers of the records."""
        place = f"127.0.0.1:{self.process.port(protocol)}"
        words = ["tail", "--protocol", protocol, "--from", place, "--since", since, "--format", "json"]
        stream = STREAMS[protocol]
        words += ["--count", str(count)] + ([] if stream is None else ["--stream", stream])
        return [json.loads(line)["seq"] for line in self.run(*words).stdout.splitlines()]


def write_old_records(directory: Path, age: float, *streams: str) -> None:
    """Write a journal with three records in each of *streams*, accepted *age* seconds ago."""
    then = time.time_ns() // 1000 - int(age * 1_000_000)
    journal = FileJournal(
        Clock(),
        directory,
        JournalSettings(min_free=0),
        worker=InlineWorker(),
        clock=RecordClock(lambda: then, lambda: 0),
    )
    broker = Broker(Clock(), journal, Sequencer())
    broker.open()
    for stream in streams:
        assert broker.publish([Run.of(stream, [b"old"] * 3, source="test")]).called
    broker.close()


def test_no_protocol_serves_records_that_are_too_old(start: Any, tmp_path: Path) -> None:
    write_old_records(tmp_path / "data", 1800, "s", "backbone", "eventbus", "kept")
    config = tmp_path / "fyrehose.toml"
    config.write_text('[[stream]]\nname = ["s", "backbone", "eventbus"]\nkeep-age = "20m"\n')
    server = Server(start, "--config", str(config))
    status, headers, said = server.ask("GET", "/streams/s?from=1")
    assert (status, headers["Fyrehose-Oldest"], headers["Fyrehose-Last"], said) == (200, "4", "3", b"")
    assert server.numbers("kept") == [1, 2, 3]
    assert [server.publish(stream) for stream in ("s", "s", "backbone", "backbone", "eventbus", "eventbus")] == [
        4,
        5,
    ] * 3
    assert server.numbers("s") == server.numbers("s", "?from=2") == [4, 5]
    for protocol in STREAMS:
        for since in ("start", "2"):
            assert server.tail(protocol, since, 2) == [4, 5], (protocol, since)
    with closing(HTTPConnection("127.0.0.1", server.process.port("http"), PATIENCE)) as connection:
        connection.request("GET", "/streams/s/live?from=2")
        live = connection.getresponse()
        lines = [live.readline() for _ in range(12)]
    assert b'data: {"first": 2, "last": 3}\n' in lines, "the old records are not reported as a gap, like deleted ones"
    numbers = [line.rpartition(b":")[2] for line in lines if line.startswith(b"id: ")]
    assert numbers == [b"1\n", b"3\n", b"4\n", b"5\n"], "the first is behind which number the answer begins"
    assert next(dump.runs(tmp_path / "data", "s")).first_seq == 1, "expired records alone must not delete segments"


def test_limits_of_streams_apply_with_every_protocol(start: Any, tmp_path: Path) -> None:
    config = tmp_path / "fyrehose.toml"
    config.write_text(OPEN_ONLY)
    server = Server(start, "--config", str(config))
    assert server.publish("open.a") == 1
    assert server.ask("POST", "/streams/open.a", b"x" * 11)[0] == 413
    status, _, said = server.ask("POST", "/streams/closed", b"x")
    assert (status, b"new-streams = true" in said) == (403, True)
    for protocol in ("figg", "relink"):
        place = f"127.0.0.1:{server.process.port(protocol)}"
        words = ["publish", "--protocol", protocol, "--to", place, "--timeout", "20s", "--stream"]
        refused = server.run(*words, "closed", "x")
        assert refused.returncode != 0, "the client of the command line gives up, and says so"
        assert refused.stderr.count(b"\n") <= 3
        assert server.run(*words, "open.b", "x").returncode == 0
    place = f"127.0.0.1:{server.process.port('backbone')}"
    assert server.run("publish", "--protocol", "backbone", "--to", place, "x").returncode == 0, (
        "its stream is configured"
    )
    assert "NewStreamForbidden" in server.process.log


def names(server: Server) -> list[str]:
    """Return the streams that `fyrehose streams` lists."""
    listed = server.run("streams", "--url", f"http://127.0.0.1:{server.process.port('admin')}", "--format", "json")
    assert listed.returncode == 0, listed.stderr
    found = [json.loads(line)["name"] for line in listed.stdout.splitlines()]
    return sorted(name for name in found if not name.startswith("."))


def test_a_retired_stream_is_not_served_and_continues_its_numbers_when_it_returns(start: Any) -> None:
    words = ("server.max-streams=3", "server.streams-per-address=100", "journal.segment-size=1KiB")
    options = [option for word in words for option in ("--option", word)]  # one of the streams is Relink's
    server = Server(start, *options)
    assert [server.publish("a"), server.publish("a"), server.publish("b")] == [1, 2, 1]
    assert server.ask("POST", "/streams/c", b"x")[0] == 507
    assert server.ask("DELETE", "/streams/a")[0] == 204
    assert server.ask("DELETE", "/streams/a")[0] == 404
    assert server.ask("GET", "/streams/a")[0] == 404
    assert names(server) == ["b"]
    assert server.publish("c") == 1, "it counts against no limit"

    url = f"http://127.0.0.1:{server.process.port('http')}"
    retired = server.run("streams", "retire", "--url", url, "c", "none", "b")
    assert (retired.returncode, retired.stdout) == (1, b"stream c retired\n")
    assert retired.stderr.endswith(b"refused the request: there is no stream 'none'\n")
    assert retired.stderr.count(b"\n") == 1

    for how in (signal.SIGTERM, signal.SIGKILL):
        server.process.stop(how)
        server = Server(start, *options)
        assert names(server) == ["b"]
        assert server.ask("GET", "/streams/a")[0] == 404
    for _ in range(30):
        server.publish("b", b"x" * 100)  # segments roll over, and the retired streams are carried along
    assert server.publish("a", b"new") == 3
    assert server.numbers("a", "?from=1") == [3]
    metrics = HTTPConnection("127.0.0.1", server.process.port("admin"), PATIENCE)
    with closing(metrics):
        assert server.ask("DELETE", "/streams/a")[0] == 204
        metrics.request("GET", "/metrics")
        assert b'fyrehose_events_total{event="streams-retired",protocol="server"} 1.0' in metrics.getresponse().read()
    assert server.publish("a") == 4
    assert "stream 'a' was retired by 127.0.0.1" in server.process.log


def test_a_live_subscriber_receives_records_when_a_retired_stream_returns(start: Any) -> None:
    server = Server(start)
    server.publish("s", b"first")
    with closing(HTTPConnection("127.0.0.1", server.process.port("http"), PATIENCE)) as connection:
        connection.request("GET", "/streams/s/live")
        live = connection.getresponse()
        begin = [live.readline() for _ in range(4)]
        assert (begin[0], begin[2][:18]) == (b"event: begin\n", b'data: {"from": 2, ')
        assert server.ask("DELETE", "/streams/s")[0] == 204
        assert server.publish("s", b"second") == 2
        lines = [live.readline() for _ in range(3)]
    assert lines[0].startswith(b"id: ")
    assert lines[0].endswith(b":2\n")
    assert server.tail("figg", "start", 1) == [2]
    assert server.tail("relink", "1", 1) == [2]
