"""`fyrehose journal serve`, without a socket: answers, refusals, and nothing beyond the durable mark."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.tcp import Server
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import formatEvent
from twisted.python.failure import Failure

from fyrehose.journal import scan, subscriptions
from fyrehose.offline import serve
from fyrehose.offline.serve import ServeFactory
from fyrehose.offline.view import look
from fyrehose.sessions import PIECE
from fyrehose.testing import Transport


def connected(bench: Any, kind: type[Transport] = Transport, made: Any = None) -> tuple[Any, Transport]:
    """Return a connection of a client, and its transport."""
    factory = made or ServeFactory(bench.directory, reactor=bench.clock)
    connection, transport = factory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1)), kind()
    connection.makeConnection(transport)
    return connection, transport


def ask(
    bench: Any, method: str, path: str, headers: str = "", body: bytes = b"", host: str = "x", made: Any = None
) -> tuple[int, dict[str, str], bytes]:
    """Send one request; return the status, the headers and the body of the answer."""
    connection, transport = connected(bench, made=made)
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    )
    connection.dataReceived(head.encode() + body)
    bench.clock.advance(0)
    assert transport.producer is None, "the answer is complete, and the peer wanted the connection to be closed"
    connection.connectionLost(Failure(ConnectionDone()))
    head, _, rest = transport.value().partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}, rest


@pytest.fixture
def bench(open_journal: Any) -> Any:
    made = open_journal(segment_size=4096)
    for i in range(20):
        made.append(b"%03d" % i * 300)
    return made


def test_journal_lists_the_durable_segments(bench: Any) -> None:
    status, _, body = ask(bench, "GET", "/journal")
    view = look(bench.directory)
    assert status == 200
    segments = [[extent.base, extent.end] for extent in view.segments]
    expected = {"mark": view.mark, "segments": segments, "snapshots": [], "identity": view.identity.hex()}
    expected["vouched"] = True
    assert json.loads(body) == expected


@pytest.mark.parametrize("asked", ["bytes=99999999-", "bytes=-5", "lines=1-2", "bytes=5-1"])
def test_invalid_ranges_are_answered_with_416(bench: Any, asked: str) -> None:
    assert ask(bench, "GET", f"/segments/{0:016x}", f"Range: {asked}\r\n")[0] == 416


def test_nothing_beyond_the_durable_mark_is_served(bench: Any) -> None:
    last = scan.segments(bench.directory)[-1]
    mark = scan.read_mark(bench.directory)
    bench.append(b"secret, because it is not durable yet")
    (bench.directory / "MARK").write_bytes(scan.pack_mark(mark))
    status, headers, body = ask(bench, "GET", f"/segments/{last.base:016x}")
    assert (status, len(body)) == (200, mark - last.base)
    assert b"secret" not in body
    assert ask(bench, "HEAD", f"/segments/{last.base:016x}")[1]["content-length"] == headers["content-length"]


@pytest.mark.parametrize(
    "path",
    ["/", "/MARK", "/segments/", "/segments/1", "/segments/../MARK", "/segments/00000000000000ff", "/indexes/zz", "/x"],
)
def test_unknown_paths_are_answered_with_404(bench: Any, path: str) -> None:
    assert ask(bench, "GET", path)[0] == 404


def test_a_segment_of_which_nothing_is_durable_is_answered_with_404(bench: Any) -> None:
    last = scan.segments(bench.directory)[-1].base
    (bench.directory / "MARK").write_bytes(scan.pack_mark(last))
    assert ask(bench, "GET", f"/segments/{last:016x}")[0] == 404


def test_indexes_of_sealed_segments_are_served(bench: Any) -> None:
    base = bench.journal.store.sealed[0][0]
    data = scan.index_path_of(bench.directory, base).read_bytes()
    assert ask(bench, "GET", f"/indexes/{base:016x}")[2] == data
    assert ask(bench, "GET", f"/indexes/{scan.segments(bench.directory)[-1].base:016x}")[0] == 404


def test_snapshots_are_listed_and_served_whole(bench: Any) -> None:
    for position, data in ((4096, b"later"), (0, b"first" * 100)):
        scan.snapshot_path_of(bench.directory, position).write_bytes(data)
    (bench.directory / "0000000000000800.streams.new").write_bytes(b"not finished")
    assert json.loads(ask(bench, "GET", "/journal")[2])["snapshots"] == [0, 4096]
    assert ask(bench, "GET", f"/snapshots/{0:016x}")[::2] == (200, b"first" * 100)
    assert ask(bench, "GET", f"/snapshots/{4096:016x}", "Range: bytes=2-\r\n")[::2] == (206, b"ter")
    for missing in (f"{8192:016x}", "4096", "", "zz"):
        assert ask(bench, "GET", f"/snapshots/{missing}")[0] == 404


def test_subscriptions_are_updated_and_listed(bench: Any) -> None:
    assert ask(bench, "PUT", "/subscriptions/lake", body=b"4096")[0] == 204
    assert [(each.name, each.position) for each in subscriptions.registered(bench.directory)] == [("lake", 4096)]
    assert json.loads(ask(bench, "GET", "/subscriptions")[2])["lake"]["position"] == 4096
    assert ask(bench, "PUT", "/subscriptions/lake", body=b"%d" % subscriptions.MAX_POSITION)[0] == 204
    far = b"12345678901234567890"
    for name, body in (
        ("far", far),
        ("far", far * 100_000),
        ("far", b"%d" % (1 << 63)),
        ("lake", b"x"),
        ("lake", b""),
        ("lake", b"-1"),
        ("..%2fMARK", b"1"),
        ("a%00", b"1"),
    ):
        assert ask(bench, "PUT", f"/subscriptions/{name}", body=body)[0] == 400
    assert ask(bench, "POST", "/journal")[0] == 405
    assert ask(bench, "GET", "/subscriptions/lake")[0] == 405


EVERYTHING = (
    "/journal",
    f"/segments/{0:016x}",
    f"/indexes/{0:016x}",
    f"/snapshots/{0:016x}",
    "/subscriptions",
    "/nothing",
)


@pytest.mark.parametrize("path", EVERYTHING)
def test_requests_with_a_foreign_host_are_refused(bench: Any, path: str) -> None:
    made = ServeFactory(bench.directory, frozenset({"localhost", "127.0.0.1", "::1"}), reactor=bench.clock)
    for host in ("evil.example", "evil.example:8120", "", "127.0.0.1.evil.example"):
        status, _, body = ask(bench, "GET", path, host=host, made=made)
        assert (status, body.count(b"\n")) == (421, 1), host
    assert made.broker.counters.counts["journal-serve", "foreign-host"] == 4
    for host in ("localhost", "127.0.0.1:8120", "[::1]:8120", "LOCALHOST:1"):
        assert ask(bench, "GET", path, host=host, made=made)[0] in (200, 404)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Origin: http://evil.example\r\n", 403),
        ("Origin: null\r\n", 403),
        ("Sec-Fetch-Site: cross-site\r\n", 403),
        ("Sec-Fetch-Site: same-site\r\n", 403),
        ("Origin: http://x\r\n", 204),
        ("Sec-Fetch-Site: same-origin\r\n", 204),
        ("Sec-Fetch-Site: none\r\n", 204),
        ("Origin: http://x\r\nOrigin: http://evil.example\r\n", 400),
        ("Host: y\r\n", 400),
    ],
)
def test_requests_from_pages_of_other_sites_are_refused(bench: Any, headers: str, status: int) -> None:
    assert ask(bench, "PUT", "/subscriptions/lake", headers, b"7")[0] == status
    assert [each.name for each in subscriptions.registered(bench.directory)] == (["lake"] if status == 204 else [])


@pytest.mark.parametrize("path", EVERYTHING)
def test_requests_without_the_token_are_refused(bench: Any, path: str, log_lines: list[str]) -> None:
    secret = "0123456789abcdef"
    made = ServeFactory(bench.directory, token=secret, reactor=bench.clock)
    for wrong in ("", "Authorization: Bearer 0123456789abcdeg\r\n", f"Authorization: Token {secret}\r\n"):
        status, headers, body = ask(bench, "GET", path, wrong, made=made)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert secret.encode() not in body
    status, headers, body = ask(bench, "HEAD", path, made=made)
    assert (status, body) == (401, b"")
    assert len(log_lines) == 1, "one line a second"
    assert ask(bench, "GET", path, f"Authorization: Bearer {secret}\r\n", made=made)[0] in (200, 404)


def test_missing_journal_directory_is_answered_with_503(bench: Any, tmp_path: Any) -> None:
    bench.directory.rename(tmp_path / "elsewhere")
    for path in ("/journal", "/segments/0000000000000000"):
        status, _, body = ask(bench, "GET", path)
        assert (status, b"no such directory" in body) == (503, True)
    (tmp_path / "elsewhere").rename(bench.directory)


def test_unreadable_files_are_answered_with_503(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(subscriptions, "registered", fail)
    segment, index = scan.path_of(bench.directory, 0), scan.index_path_of(bench.directory, 0)
    for path in (segment, index):
        path.unlink(missing_ok=True)
    segment.symlink_to("/dev/zero")
    os.mkfifo(index)
    for path, why in (
        ("/segments/0000000000000000", b"it is a symbolic link"),
        ("/indexes/0000000000000000", b"it is not a regular file"),
        ("/subscriptions", b"Too many open files"),
    ):
        status, _, body = ask(bench, "GET", path)
        assert (status, why in body) == (503, True)


def test_a_journal_that_does_not_reach_its_vouched_end_is_answered_with_409(bench: Any) -> None:
    (bench.directory / "END").write_bytes(b"journal end 1\n")
    status, _, body = ask(bench, "GET", "/journal")
    assert (status, b"END is damaged" in body) == (409, True)


def test_long_body_is_not_kept_in_memory(bench: Any) -> None:
    connection, _ = connected(bench)
    connection.dataReceived(b"PUT /subscriptions/lake HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
    for _ in range(100):
        connection.dataReceived(b"0" * 10_000)
    assert connection.session.buffered == 20
    connection.connectionLost(Failure(ConnectionDone()))


def test_subscription_that_cannot_be_stored_is_answered_with_507(bench: Any) -> None:
    (bench.directory / "subscriptions").write_text("a file where the directory should be")
    assert ask(bench, "PUT", "/subscriptions/lake", body=b"1")[0] == 507


def test_a_client_whose_machine_vanishes_is_noticed_within_a_minute(bench: Any) -> None:
    address = IPv4Address("TCP", "127.0.0.1", 1)
    connection = ServeFactory(bench.directory, reactor=bench.clock).buildProtocol(address)
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()):
        accepted, peer = listening.accept()
        with accepted:
            connection.makeConnection(Server(accepted, connection, peer, None, 0, MemoryReactorClock()))
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 60_000
            connection.connectionLost(Failure(ConnectionDone()))


class Full(Transport):
    """A transport that pauses its producer after each piece."""

    def write(self, data: bytes) -> None:
        super().write(data)
        if self.producer is not None and len(data) >= 1000:
            self.producer.pauseProducing()


@pytest.mark.parametrize("reads", [False, True])
def test_client_that_reads_nothing_is_disconnected(bench: Any, reads: bool) -> None:
    timers = len(bench.clock.getDelayedCalls())
    made = ServeFactory(bench.directory, reactor=bench.clock, piece=1000)
    connection, transport = connected(bench, Full, made)
    base, end = bench.journal.store.sealed[1]
    connection.dataReceived(b"GET /segments/%016x HTTP/1.1\r\nHost: x\r\n\r\n" % base)
    bench.clock.advance(0)
    if reads:
        for _ in range((end - base) // 1000):
            bench.clock.advance(ServeFactory.defaults.timeout - 1)
            transport.producer.resumeProducing()  # type: ignore[union-attr]
            bench.clock.advance(0)
        assert transport.value().endswith(scan.path_of(bench.directory, base).read_bytes())
        assert not transport.disconnecting
    else:
        assert len(transport.value()) < 2000
        bench.clock.advance(2 * ServeFactory.defaults.timeout)
        assert transport.aborted
    connection.connectionLost(Failure(ConnectionDone()))
    assert len(bench.clock.getDelayedCalls()) == timers


def test_each_of_many_clients_that_read_nothing_holds_one_piece_in_memory(open_journal: Any) -> None:
    bench = open_journal()
    bench.append(b"x" * (2 << 20))
    written: list[int] = []

    class Watched(Transport):
        def writeSequence(self, data: Any) -> None:
            written.append(sum(map(len, data)))
            if written[-1] > 1_000:  # the body, too
                assert self.producer is not None
                self.producer.pauseProducing()

    factory = ServeFactory(bench.directory, reactor=bench.clock)
    connections = [connected(bench, Watched, factory)[0] for _ in range(20)]
    base = scan.segments(bench.directory)[0].base
    for connection in connections:
        connection.dataReceived(b"GET /segments/%016x HTTP/1.1\r\nHost: x\r\n\r\n" % base)
    bench.clock.advance(0)
    assert max(written) <= 2 * PIECE
    assert sum(written) <= 21 * 2 * PIECE
    for connection in connections:
        connection.connectionLost(Failure(ConnectionDone()))


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        (None, 0, 0),
        ("bytes=0-0", 0, 1),
        ("bytes=7-7", 7, 8),
        ("bytes=100-{last}", 100, 0),
        ("bytes=100-{size}", 100, 0),
        ("bytes={last}-", -1, 0),
        ("bytes={size}-", None, None),
        ("bytes=9-8", None, None),
        ("bytes=9-7", None, None),
    ],
)
def test_an_answer_says_which_bytes_it_has_and_leaves_no_file_open(
    bench: Any, method: str, asked: str | None, start: int | None, stop: int | None
) -> None:
    base, end = bench.journal.store.sealed[1]
    size = end - base
    data = scan.path_of(bench.directory, base).read_bytes()
    files = len(list(Path("/proc/self/fd").iterdir()))
    headers = "" if asked is None else f"Range: {asked.format(size=size, last=size - 1)}\r\n"
    status, said, body = ask(bench, method, f"/segments/{base:016x}", headers)
    first, behind = (0, 0) if start is None else (start % size, stop or size)
    assert len(list(Path("/proc/self/fd").iterdir())) == files
    assert body == (b"" if method == "HEAD" else data[first:behind])
    assert (said["content-type"], said["accept-ranges"]) == ("application/octet-stream", "bytes")
    assert said["content-length"] == str(behind - first)
    if asked is None:
        assert (status, said.get("content-range")) == (200, None)
    elif start is None:
        assert (status, said["content-range"]) == (416, f"bytes */{size}")
    else:
        assert (status, said["content-range"]) == (206, f"bytes {first}-{behind - 1}/{size}")


def test_a_head_request_reads_nothing_of_the_file(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    resume = serve.FileSending.resumeProducing
    monkeypatch.setattr(serve.FileSending, "resumeProducing", lambda self: read.append(self) or resume(self))
    path = f"/segments/{bench.journal.store.sealed[1][0]:016x}"
    assert ask(bench, "HEAD", path)[0] == 200
    assert read == []
    assert ask(bench, "GET", path)[0] == 200
    assert len(read) == 1


def test_an_answer_whose_turn_fails_by_a_bug_ends_its_connection_and_no_other(bench: Any, logged_errors: Any) -> None:
    bench.append(b"." * 5 * PIECE)  # so that the answers take several turns

    class Buggy(Transport):
        def write(self, data: bytes) -> None:
            if len(self.value()) > PIECE:
                raise RuntimeError("bug")
            super().write(data)

    made = ServeFactory(bench.directory, reactor=bench.clock)
    failing, other = connected(bench, Buggy, made), connected(bench, Transport, made)
    base = max(look(bench.directory).segments, key=lambda segment: segment.end - segment.base).base
    for connection, _ in (failing, other):
        connection.dataReceived(b"GET /segments/%016x HTTP/1.1\r\nHost: x\r\n\r\n" % base)
    for _ in range(10):
        bench.clock.advance(0)
    assert failing[1].aborted
    assert other[1].value().endswith(scan.path_of(bench.directory, base).read_bytes())
    (event,) = logged_errors.take()
    said = "journal-serve: serving 127.0.0.1 failed, and its connection is closed; please report this bug"
    assert formatEvent(event) == said
    for connection, _ in (failing, other):
        connection.connectionLost(Failure(ConnectionDone()))


@pytest.mark.parametrize("trouble", ["shorter", "unreadable", "abandoned"])
def test_an_answer_that_cannot_be_finished_ends_the_connection(bench: Any, trouble: str) -> None:
    """The promised length is not filled up with other bytes, and the file is closed."""
    bench.append(b"." * 5 * PIECE)  # so that the answer takes several turns
    bench.append(b"behind it" * 100)
    base = max(look(bench.directory).segments, key=lambda segment: segment.end - segment.base).base
    before = len(list(Path("/proc/self/fd").iterdir()))
    timers = len(bench.clock.getDelayedCalls())
    connection, transport = connected(bench, Full)
    connection.dataReceived(b"GET /segments/%016x HTTP/1.1\r\nHost: x\r\n\r\n" % base)
    bench.clock.advance(0)
    path = scan.path_of(bench.directory, base)
    whole = path.read_bytes()
    if trouble == "shorter":
        path.write_bytes(whole[:5000])
    elif trouble == "unreadable":
        opened = next(int(each.name) for each in Path("/proc/self/fd").iterdir() if each.readlink() == path)
        directory = os.open(bench.directory, os.O_RDONLY)  # reading a directory fails, as reading a broken disk does
        os.dup2(directory, opened)
        os.close(directory)
    if trouble != "abandoned":
        for _ in range(3):  # some of it may have been read ahead
            if transport.producer is not None:
                transport.producer.resumeProducing()
                bench.clock.advance(0)
        assert transport.disconnecting
    assert whole.startswith(transport.value().partition(b"\r\n\r\n")[2])
    connection.connectionLost(Failure(ConnectionDone()))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert len(bench.clock.getDelayedCalls()) == timers
