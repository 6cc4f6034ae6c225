"""Test the programs that read a journal from another server, with servers that answer anything.

Each ends with one line that a terminal can show, remembers little, and writes nothing outside its directory.
"""

from __future__ import annotations

import json
import random
import re
import socket
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import attrs
import pytest
from click.testing import CliRunner, Result

from fyrehose.cli import main
from fyrehose.errors import JournalError, JournalUnreachable
from fyrehose.journal.files import Files
from fyrehose.offline.backup import Backup
from fyrehose.offline.mirror import Replica
from fyrehose.offline.places import RemoteJournal

JOURNAL = {"mark": 100, "segments": [[0, 100]], "snapshots": [], "identity": "00" * 16, "vouched": True}
#: A terminal would set its title, and clear its screen.
ESCAPES = b"\x1b]0;own\x07\x1b[2J\xc2\x9b2J"

Answer = Callable[[str], Iterator[bytes]]


def ok(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    kind = b"Content-Type: application/json\r\n"
    return b"HTTP/1.1 %s\r\n%s%sContent-Length: %d\r\n\r\n" % (status.encode(), kind, lines.encode(), len(body)) + body


def always(answer: bytes) -> Answer:
    """Answer every request alike."""
    return lambda path: iter([answer])


def journal(rest: bytes = b"x" * 64, **fields: object) -> Answer:
    """Answer /journal with *fields*, and every other request with *rest*."""
    said = ok(json.dumps({**JOURNAL, **fields}).encode())
    return lambda path: iter(
        [said if path == "/journal" else ok(rest, "206 Part" if "/segments" in path else "200 OK")]
    )


def subscriptions(body: bytes) -> Answer:
    """Serve a journal without messages, with these subscriptions."""
    return journal(body, mark=0, segments=[])


def named(name: str, position: object = 5, time: object = 5) -> dict[str, object]:
    return {name: {"position": position, "time": time}}


@attrs.define(eq=False)
class Hostile:
    """A server that sends the pieces that *answer* yields for the path of each request; use it with ``with``."""

    answer: Answer
    connections: int = attrs.field(default=0, init=False)
    _listening: socket.socket = attrs.field(init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Hostile:
        self._listening = socket.create_server(("127.0.0.1", 0))
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # the test has ended
                return
            self.connections += 1
            Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while request := connection.recv(65536):
                    for piece in self.answer(request.split()[1].decode()):
                        connection.sendall(piece)
                        if not piece:
                            return
            except OSError:
                pass  # the client has closed the connection


def endless(head: bytes, piece: bytes, every: float = 0.0) -> Answer:
    """Answer with *head*, and then with *piece* again and again, every so many seconds."""

    def answer(path: str) -> Iterator[bytes]:
        yield head
        while True:
            yield piece
            time.sleep(every)

    return answer


HUGE = 1 << 70
DEEP = b"[" * 200_000 + b"]" * 200_000
#: An answer of another kind than a served journal gives, and words of the error.
REFUSED: dict[str, tuple[Answer, str]] = {
    "rubbish": (lambda path: iter([random.Random(1).randbytes(5000), b""]), "does not answer"),
    "nothing": (always(b""), "does not answer"),
    "cut": (lambda path: iter([ok(b"{}")[:-1], b""]), "does not answer"),
    "endless-json": (endless(b"HTTP/1.1 200 OK\r\n\r\n", b"[" * 100_000), "exceeds"),
    "endless-head": (endless(b"HTTP/1.1 200 OK\r\nX: ", b"a" * 100_000), "does not answer as"),
    "huge-length": (always(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n " % HUGE), "does not answer as"),
    "redirect": (always(ok(b"", "302 Found", Location="http://127.0.0.1:1/journal")), "302"),
    "escapes": (always(ok(ESCAPES, "403 Forbidden")), r"403 .*\\x1b"),
    "escapes-500": (always(ok(ESCAPES, "500 Error")), r"500 .*\\x1b"),
    "reason": (always(b"HTTP/1.1 4\x1b[2J3 No\r\n\r\n"), "does not answer as"),
    "deep": (always(ok(DEEP)), "is no `fyrehose journal serve`"),
    "digits": (always(ok(b'{"mark": ' + b"9" * 5000 + b"}")), "is no `fyrehose journal serve`"),
    "utf-8": (always(ok(b"\xff")), "is no `fyrehose journal serve`"),
    "no-object": (always(ok(b"[]")), "is no `fyrehose journal serve`"),
    "no-fields": (always(ok(b"{}")), "is no `fyrehose journal serve`"),
    "infinite": (always(ok(b'{"mark": 1e400, "segments": [], "snapshots": []}')), "JSON"),
    "nan": (always(ok(b'{"mark": NaN, "segments": [], "snapshots": []}')), "JSON"),
    "text": (journal(mark="100"), "mark"),
    "true": (journal(mark=True), "mark"),
    "negative": (journal(mark=-5, segments=[[-100, -5]]), "mark"),
    "vouched": (journal(vouched=1), "vouched"),
    "huge-mark": (journal(mark=HUGE), "mark"),
    "huge-base": (journal(mark=HUGE - 1, segments=[[1 << 65, HUGE - 1]]), "mark"),
    "negative-base": (journal(segments=[[-1, 100]]), "segments"),
    "beyond-mark": (journal(segments=[[0, 101]]), "segments"),
    "backwards": (journal(segments=[[50, 100], [0, 50]]), "segments"),
    "overlapping": (journal(segments=[[0, 60], [50, 100]]), "segments"),
    "three": (journal(segments=[[0, 50, 100]]), "segments"),
    "segments-null": (journal(segments=None), "segments"),
    "segments-infinite": (always(ok(b'{"mark": 100, "segments": [[0, 1e400]]}')), "JSON"),
    "surrogate": (journal(identity="\ud800"), "JSON"),
    "short-identity": (journal(identity="00"), "identity"),
    "identity-number": (journal(identity=5), "identity"),
    "snapshots": (journal(snapshots=[-1, HUGE]), "snapshots"),
    "snapshots-text": (journal(snapshots="12"), "snapshots"),
    "snapshot-damaged": (journal(snapshots=[64]), "snapshot|damaged"),
    "segment-of-rubbish": (journal(random.Random(2).randbytes(100)), "damaged"),
    "segment-without-end": (
        lambda path: (
            iter([ok(json.dumps(JOURNAL).encode())])
            if path == "/journal"
            else endless(b"HTTP/1.1 206 OK\r\n\r\n", b"a" * 100_000)(path)
        ),
        "exceeds|does not answer|damaged",
    ),
    "subscription-outside": (subscriptions(json.dumps(named("../../evil")).encode()), "subscription"),
    "subscription-absolute": (subscriptions(json.dumps(named("/evil")).encode()), "subscription"),
    "subscription-infinite": (subscriptions(b'{"a": {"position": 1e400, "time": 5}}'), "JSON"),
    "subscription-huge": (subscriptions(json.dumps(named("a", HUGE)).encode()), "subscription"),
    "subscription-late": (subscriptions(json.dumps(named("a", 5, HUGE)).encode()), "subscription"),
    "subscription-null": (subscriptions(b'{"a": null}'), "subscription"),
    "subscription-surrogate": (subscriptions(b'{"\\ud800": {"position": 1, "time": 5}}'), "JSON"),
    "subscriptions-many": (
        subscriptions(json.dumps({k: v for n in range(65) for k, v in named(f"s{n}").items()}).encode()),
        "subscriptions",
    ),
    "subscriptions-list": (subscriptions(b"[5]"), "is no `fyrehose journal serve`"),
}
COMMANDS = {
    "backup": lambda url, target: ["backup", url, target],
    "follow": lambda url, target: ["follow", url, target, "--once"],
    "restore": lambda url, target: ["restore", url, target],
}


def run(command: str, url: str, target: Path) -> Result:
    return CliRunner().invoke(main, ["journal", *COMMANDS[command](url, str(target))], prog_name="fyrehose")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("mode", REFUSED)
def test_hostile_answers_end_in_one_line_that_a_terminal_can_show(command: str, mode: str, tmp_path: Path) -> None:
    answer, words = REFUSED[mode]
    with Hostile(answer) as there:
        result = run(command, there.url, tmp_path / "to" / "copy")
    assert isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code != 0
    assert re.search(words, result.output), result.output
    line = result.stderr.removesuffix("\n")
    assert len(line) < 1000
    assert line.isprintable(), line
    assert [path.name for path in tmp_path.iterdir()] in ([], ["to"])
    assert [path.name for path in tmp_path.glob("to/*")] in ([], ["copy"])


@pytest.mark.parametrize("command", ["backup", "follow"])
def test_a_journal_without_messages_is_copied(command: str, tmp_path: Path) -> None:
    with Hostile(subscriptions(b"{}")) as there:
        result = run(command, there.url, tmp_path / "copy")
    assert (result.exit_code, result.output[:9]) == (0, "0 records"), result.output


@pytest.mark.parametrize(
    "answer",
    [
        endless(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b" ", 0.02),
        endless(b"HTTP/1.1 200 OK\r\nX: ", b"a", 0.02),
        endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n", 0.02),
        endless(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", 0.02),
    ],
)
def test_an_answer_in_drops_ends_with_the_deadline_of_the_request(answer: Answer) -> None:
    with Hostile(answer) as there:
        with pytest.raises(JournalUnreachable, match="does not answer"):
            RemoteJournal(there.url, timeout=0.3).view()
        assert there.connections == 1


def test_an_answer_without_end_takes_little_memory() -> None:
    with Hostile(endless(b"HTTP/1.1 200 OK\r\n\r\n", b"[" * 100_000)) as there:
        tracemalloc.start()
        try:
            with pytest.raises(JournalError, match="exceeds"):
                RemoteJournal(there.url).view()
            assert tracemalloc.get_traced_memory()[1] < 100 << 20
        finally:
            tracemalloc.stop()


def test_following_survives_hostile_answers_of_the_journal(tmp_path: Path) -> None:
    said: list[str] = []
    with Hostile(always(ok(ESCAPES, "503 Later"))) as there, Replica(tmp_path / "copy", Files()) as replica:
        Backup(RemoteJournal(there.url), replica).run_patiently(said.append)
    (line,) = said
    assert line.isprintable()
