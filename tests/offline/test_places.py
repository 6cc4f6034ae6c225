"""A journal is read in the same way from its directory and from `fyrehose journal serve`."""

from __future__ import annotations

import pickle
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from fyrehose.errors import ConfigError, JournalError, JournalUnreachable
from fyrehose.journal import scan, subscriptions
from fyrehose.offline.places import TOKEN_FILE, Directory, Missing, RemoteJournal, place
from fyrehose.offline.serve import ServeFactory
from tests.doubles.answering import Answering, answer, proxy

Opener = Callable[..., Any]


def test_place_parses_paths_and_addresses(tmp_path: Path) -> None:
    assert place(str(tmp_path)) == place(f"file://{tmp_path}") == Directory(tmp_path)
    assert place("http://h:1/") == RemoteJournal("http://h:1")
    assert str(place("https://h:1")) == "https://h:1"
    assert str(place(str(tmp_path))) == str(tmp_path)
    with pytest.raises(ConfigError, match="directory, or http"):
        place("s3://bucket/journal")


@pytest.fixture
def written(open_journal: Opener) -> Any:
    """Return a journal of several segments."""
    bench = open_journal(segment_size=4096)
    for i in range(20):
        bench.append(b"%03d" % i * 300)
    return bench


@attrs.define(eq=False)
class Local:
    """A site in this very process, whose answers a server of another thread sends."""

    directory: Path
    token: str | None = None
    there: Answering = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.there = Answering(self._answers(), stays=True)

    @property
    def url(self) -> str:
        return self.there.url

    @property
    def asked(self) -> list[str]:
        """Return the methods of the requests, in order."""
        return [method for method, *_ in self.there.requests]

    def _answers(self) -> Iterator[bytes]:
        while True:
            yield self._answer(*self.there.requests[-1])

    def _answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
        clock, transport = Clock(), StringTransport()
        factory = ServeFactory(self.directory, token=self.token, reactor=clock)
        connection: Any = factory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
        connection.makeConnection(transport)
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items()), "", ""]
        connection.dataReceived("\r\n".join(lines).encode() + body)
        while any(call.getTime() <= clock.seconds() for call in clock.getDelayedCalls()):
            clock.advance(0)  # a file is sent in several turns
        connection.connectionLost(Failure(ConnectionDone()))
        return transport.value()


@pytest.fixture
def local(written: Any) -> Iterator[Local]:
    served = Local(written.directory)
    with served.there:
        yield served


def test_journal_behind_a_server_has_the_same_view_and_indexes(written: Any, local: Local) -> None:
    server, directory = place(f"{local.url}/"), place(str(written.directory))
    assert server.view() == directory.view()
    assert [server.index(base) for base in written.journal.store.bases] == [
        directory.index(base) for base in written.journal.store.bases
    ]
    assert server.index(written.journal.store.bases[-1]) is None
    extent = directory.view().segments[1]
    for there, where in ((server, f"{local.url}/segments/"), (directory, f"{written.directory}/")):
        with pytest.raises(Missing, match=f"^{where}00000000000000ff"):
            there.open(255, 1 << 20)
    assert server.name(extent.base) == f"{local.url}/segments/{extent.base:016x}"
    reader = server.open(extent.base, extent.end)
    whole = bytes(reader.read(extent.base, extent.end - extent.base))
    assert whole == scan.path_of(written.directory, extent.base).read_bytes()
    assert bytes(reader.read(extent.end - 5, 100)) == whole[-5:]
    assert bytes(reader.read(extent.end, 10)) == b""
    assert bytes(reader.read(extent.base, 0)) == b""
    reader.close()
    for position in (4096, 64):
        scan.snapshot_path_of(written.directory, position).write_bytes(b"every stream %d" % position)
    assert server.snapshots() == directory.snapshots() == [64, 4096]
    assert server.snapshot(4096) == directory.snapshot(4096) == b"every stream 4096"
    for there in (server, directory):
        with pytest.raises(Missing):
            there.snapshot(0)
    server.update_subscription("lake", 77)
    directory.update_subscription("other", 78)
    assert [(r.name, r.position) for r in subscriptions.registered(written.directory)] == [("lake", 77), ("other", 78)]
    assert server.subscriptions() == directory.subscriptions() == subscriptions.registered(written.directory)


def test_a_segment_is_requested_over_http_in_large_pieces(written: Any, local: Local) -> None:
    reader = place(local.url).open(0, 1 << 30)
    for at in range(0, 2000, 100):
        assert bytes(reader.read(at, 100)) == scan.path_of(written.directory, 0).read_bytes()[at : at + 100]
    assert local.asked == ["HEAD", "GET"]
    reader.close()


@pytest.mark.parametrize(
    ("sent", "said"), [(None, "requires a token: name a file"), ("other", "the token that was sent is wrong")]
)
def test_a_token_is_sent_and_a_client_without_one_is_told_which_option_to_use(
    written: Any, sent: str | None, said: str
) -> None:
    local = Local(written.directory, "0123456789abcdef")
    with local.there:
        assert RemoteJournal(local.url, "0123456789abcdef").view() == place(str(written.directory)).view()
        with pytest.raises(JournalError, match=said):
            RemoteJournal(local.url, sent).view()


@pytest.mark.live
def test_server_requires_its_token(
    written: Any, serve: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, other = tmp_path / "token", tmp_path / "other"
    token.write_text("0123456789abcdef\n")
    other.write_text("0123456789abcdeg\n")
    url = serve(written.directory, "--token-file", str(token))
    monkeypatch.delenv(TOKEN_FILE, raising=False)
    with pytest.raises(JournalError, match="requires a token: name a file that contains it with --token-file"):
        place(url).view()
    with pytest.raises(JournalError, match="requires a token: the token that was sent is wrong"):
        place(url, str(other)).view()
    with pytest.raises(ConfigError, match="cannot read the token file"):
        place(url, str(tmp_path / "none"))
    view = place(str(written.directory)).view()
    assert place(url, str(token)).view() == view
    monkeypatch.setenv(TOKEN_FILE, str(token))
    there = pickle.loads(pickle.dumps(place(url)))  # Spark's workers get the pickled place, and have no token file
    token.unlink()
    assert there.view() == view
    assert "0123456789abcdef" not in repr(there)
    there.open(0, view.mark).close()
    there.update_subscription("lake", 7)


def test_missing_or_empty_directory_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(JournalUnreachable, match="is no journal: it has no segment files"):
        place(str(tmp_path)).view()
    with pytest.raises(JournalUnreachable, match="is no journal: there is no such directory"):
        place(str(tmp_path / "unmounted")).view()


def test_unreachable_server_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(JournalUnreachable, match=r"does not answer.*`fyrehose journal serve` running"):
            RemoteJournal(f"http://127.0.0.1:{taken.getsockname()[1]}", first_pause_s=0).view()
    for wrong in ("http://", "http://h:99999", "http://h:x", "http://[h"):
        with pytest.raises(ConfigError, match="http://HOST:PORT"):
            RemoteJournal(wrong).view()


def test_a_connection_that_has_died_silently_is_replaced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept: list[socket.socket] = []

        def serve() -> None:
            for only in (answer(200), answer(206, b"part"), answer(206, b"part"), b""):
                connection, _ = listening.accept()
                connection.recv(4096)
                connection.sendall(only)  # it is silent after that
                kept.append(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        there = RemoteJournal(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=2, first_pause_s=0)
        with there.open(0, 100) as reader:
            assert [bytes(reader.read(at, 4)) for at in (0, 50)] == [b"part"] * 2
            with pytest.raises(JournalUnreachable, match="does not answer"):
                reader.read(90, 4)
        thread.join()
        again, _, _ = select.select([listening], [], [], 0)
        for connection in kept:
            connection.close()
    assert not again, "it has asked again although the server was silent on a new connection"


def test_an_answer_of_a_proxy_does_not_mean_that_a_segment_was_deleted() -> None:
    with Answering([proxy(404)]) as there, pytest.raises(JournalUnreachable, match="a proxy answered for it with 404"):
        RemoteJournal(there.url).open(0, 100)


def test_a_proxy_that_sends_a_whole_segment_for_a_part_is_reported() -> None:
    """Its first bytes would be taken for those of the part, and the segment for damaged."""
    answers = [answer(200), answer(206, b"part"), answer(200, b"whole")]
    with Answering(answers) as there, RemoteJournal(there.url, first_pause_s=0).open(0, 100) as reader:
        assert bytes(reader.read(4, 4)) == b"part"
        with pytest.raises(JournalUnreachable, match="a proxy must pass the header Range on"):
            reader.read(50, 5)


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ([b"", b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n" + b'{"mark": 0, "segments": []}\n  '], None),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n" + b"cut off"] * 4, "does not answer"),
        ([b"HTTP/1.1 500 Not Now\r\nContent-Length: 9\r\n\r\nno\nreason"], "/journal: 500 'no"),
        ([b"HTTP/1.1 300 Many\r\nContent-Length: 0\r\n\r\n"], "/journal: 300"),
        ([b"rubbish\r\n\r\n"], "does not answer as"),
        ([b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"], "is no `fyrehose journal serve`"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"], "is no `fyrehose journal serve`"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"], "is no `fyrehose journal serve`"),
    ],
)
def test_invalid_answers_are_reported(answers: list[bytes], outcome: str | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            for said in answers:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        server = RemoteJournal(f"http://127.0.0.1:{listening.getsockname()[1]}", first_pause_s=0)
        if outcome is None:
            assert server.view().mark == 0
        else:
            with pytest.raises(JournalError, match=outcome) as refused:
                server.view()
            if " 50" in outcome:
                assert isinstance(refused.value, JournalUnreachable), "another try may succeed"
        thread.join()
