#!/usr/bin/env python3
"""Write the golden bytes of the tests to docs/protocols/*.md, between their marks.

golden_bytes.py        rewrites the tables of the pages; test_protocol_pages.py checks that they are up to date
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from struct import unpack, unpack_from
from typing import Any

import attrs
from twisted.internet.task import Clock

from fyrehose.protocols.relink import frames as relink
from fyrehose.protocols.relink.settings import RelinkSettings
from fyrehose.testing import MemoryJournal

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "protocols"
_MARKED = re.compile(r"(<!-- golden: (\w+) -->\n).*?(<!-- /golden -->)", re.DOTALL)


def vectors_of(path: str, name: str) -> Any:
    """Return the global *name* of the test module at *path*, relative to tests/protocols."""
    module = f"golden_{re.sub(r'[/.]', '_', path)}"
    if module not in sys.modules:
        spec = importlib.util.spec_from_file_location(module, ROOT / "tests" / "protocols" / path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    return getattr(sys.modules[module], name)


def shown(value: Any) -> str:
    """Return the value of a field in the notation of the pages."""
    if isinstance(value, Enum):
        return value.name or ""
    if isinstance(value, bytes):
        text = value.decode("latin-1")
        return f'"{text}"' if text.isascii() and text.isprintable() else f"hex {value.hex()}"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, int) and value > 0xFFFF:
        return f"0x{value:x}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(shown, value)) + ")" if len(value) != 1 else shown(value[0])
    return str(value)


def fields_of(frame: Any, *without: str) -> str:
    """Return the fields of *frame* with another value than the default, except those in *without*."""
    found = []
    for field in attrs.fields(type(frame)):
        value = getattr(frame, field.name)
        if value is True:
            found.append(field.alias)
        elif value is not None and value is not False and field.name not in without and shown(value):
            found.append(f"{field.alias} = {shown(value)}")
    return ", ".join(found).replace("|", "\\|")


def _figg() -> Iterator[str]:
    yield from ("| frame | fields | bytes |", "|---|---|---|")
    for frame, text in vectors_of("figg/test_frames.py", "GOLDEN"):
        yield f"| {type(frame).type.name} | {fields_of(frame)} | `{text}` |"


def _backbone() -> Iterator[str]:
    yield from ("| datagram | fields | bytes |", "|---|---|---|")
    for frame, text in vectors_of("backbone/test_frames.py", "VECTORS"):
        name = type(frame).__name__.upper().replace("EACK", "E-ACK")
        yield f"| {name} | {fields_of(frame)} | `{text}` |"


def _lumberjack() -> Iterator[str]:
    yield from ("| frame | fields | bytes |", "|---|---|---|")
    for frame, text in vectors_of("lumberjack/test_frames.py", "GOLDEN"):
        yield f"| {frame.version}{chr(frame.type)} | {fields_of(frame, 'version')} | `{text}` |"


def _eventbus() -> Iterator[str]:
    yield from ("| message | sequence | frames |", "|---|---|---|")
    for message, frames in vectors_of("eventbus/test_frames.py", "VECTORS"):
        pieces = [f"`{shown(frame)}`" if frame else "empty" for frame in frames]
        dialect = f", {message.dialect.value}" if message.dialect else ""
        yield f"| {type(message).__name__.upper()} | {message.sequence}{dialect} | {' · '.join(pieces)} |"


def _relink() -> Iterator[str]:
    yield from ("| packet | fields | id size | bytes |", "|---|---|---|---|")
    for name, size, packet, *forms in _packets():
        vector = _relink_of("specified")(packet, size, **dict.fromkeys(forms, True))
        form = "".join(f", {each} form" for each in forms)
        yield f"| {name} | {fields_of(packet, 'kind')}{form} | {size} | `{vector.text}` |"


def _packets() -> Iterator[Any]:
    """Yield the name of each packet on the page, the size of its ids, the packet, and how its lengths are written."""
    general, op, ack, message = relink.General, relink.Op, relink.Ack, _relink_of("message")
    yield from ((kind.name.lower(), 0, relink.GeneralPacket(kind=kind)) for kind in general)

    def to(kind: Any, *channels: int, number: int | None = None, many: bool = False) -> Any:
        of = relink.Operation if isinstance(kind, op) else relink.Acknowledgement
        return of(kind=kind, channels=channels, number=number, multicast=many)

    yield "commit", 2, to(op.COMMIT, 0x1234)
    yield "rollback", 1, to(op.ROLLBACK, 0xFE)
    yield "close", 0, to(op.CLOSE, 0)
    yield "received", 4, to(ack.RECEIVED, 0x12345678)
    yield "consumed", 2, to(ack.CONSUMED, 7)
    yield "committed", 1, to(ack.COMMITTED, 7)
    yield "uncommitted", 0, to(ack.UNCOMMITTED, 0)
    yield "closed", 8, to(ack.CLOSED, 1 << 63)
    yield "commit numbered", 8, to(op.COMMIT, 0x0102030405060708, number=0x0A0B0C0D)
    yield "rollback numbered", 0, to(op.ROLLBACK, 0, number=1)
    yield "received numbered", 1, to(ack.RECEIVED, 1, number=2)
    yield "consumed numbered", 2, to(ack.CONSUMED, 1, number=2)
    yield "committed numbered", 4, to(ack.COMMITTED, 1, number=2)
    yield "uncommitted numbered", 0, to(ack.UNCOMMITTED, 0, number=(1 << 32) - 1)
    yield "commit to two", 1, to(op.COMMIT, 1, 2, many=True)
    yield "close to none", 4, to(op.CLOSE, many=True)
    yield "consumed by one, numbered", 2, to(ack.CONSUMED, 5, number=9, many=True)
    yield "committed three times without ids", 0, to(ack.COMMITTED, 0, 0, 0, many=True)
    yield "three parts", 1, message(b"abc", b"", b"defgh", channels=(9,))
    yield "two parts to two", 4, message(b"x" * 9, b"", channels=(1, 2), multicast=True), "long", "large"
    yield "no parts", 0, message()
    yield "one empty part", 0, message(b"")
    yield "no parts, long", 0, message(), "long"
    yield "one part, large, ids of eight", 8, message(b"y", channels=(3,)), "large"
    yield "one part, long, ids of two", 2, message(b"z", channels=(4,)), "long"
    yield "one part to three without ids", 0, message(b"12345678", channels=(0, 0, 0), multicast=True)


def _handshake() -> Iterator[str]:
    yield from ("| fields of the hello | bytes |", "|---|---|")
    for hello, text in vectors_of("relink/test_frames_handshake.py", "GOLDEN"):
        fields = f"{fields_of(hello.terms)}, {fields_of(hello, 'terms')}"
        yield f"| {fields} | `{text}` |"


def _relink_of(name: str) -> Any:
    return vectors_of("relink/conftest.py", name)


@attrs.define
class _Talk:
    """A connector that sends given bytes to a Relink server in memory, and shows the bytes of both sides."""

    server: Any = attrs.field(init=False)
    peer: Any = None
    answer: bytes = b""

    def __attrs_post_init__(self) -> None:
        self.server = _relink_of("Server")(MemoryJournal(), Clock(), RelinkSettings())
        self.server.start()

    def connect(self, hello: Any, *meanings: str) -> Iterator[str]:
        self.peer = self.server.connect()
        yield from self.say(bytes(8), "version 0", "version 0")
        yield from self.say(hello.serialize(), "hello", "epoch and link id", *meanings)

    def say(self, data: bytes, what: str, *meanings: str) -> Iterator[str]:
        """Send *data*; yield lines that show it and the server's answer, each with one of the *meanings*."""
        yield from _spoken("C", data, what)
        self.peer.say(data)
        self.server.clock.advance(0)
        self.answer = self.peer.transport.value()
        self.peer.transport.clear()
        yield from _spoken("S", self.answer, *meanings)


def _conversation() -> Iterator[str]:
    """Publish two messages to a server in memory that is killed between them; show every byte."""
    talk = _Talk()
    terms, message = relink.Terms(endpoint="publish:s"), _relink_of("message")
    yield "```text"
    yield from talk.connect(relink.Hello(terms=terms))
    epoch, link_id = unpack("<QQ", talk.answer)
    yield from talk.say(message(b"one").serialize(0), "message 0", "consumed: message 0 is on disk")
    talk.server.restart()
    yield "-- the server is killed and started again; the connector resumes its link"
    yield from talk.connect(
        relink.Hello(terms=terms, epoch=epoch, link_id=link_id), "the report, consumed up to 0; resume"
    )
    yield from talk.say(relink.RESUME.serialize(), "resume; there is nothing to report")
    yield from talk.say(message(b"two").serialize(0), "message 1", "consumed, without its number: message 1")
    close = _relink_of("operation")(relink.Op.CLOSE)
    yield from talk.say(close.serialize(0), "close", "ping: the barrier")
    yield from talk.say(relink.PONG.serialize(), "pong", "closed")
    yield from talk.say(relink.SHUTDOWN.serialize(), "shutdown", "shutdown; then the server closes")
    assert talk.peer.closed
    talk.server.registry.close()
    yield "```"


def _transaction() -> Iterator[str]:
    """Publish a transaction of two messages; show every byte after the handshake."""
    talk = _Talk()
    operation, op, message = _relink_of("operation"), relink.Op, _relink_of("message")
    terms = relink.Terms(endpoint="publish:s", connector_size=1, connector_transactions=True)
    yield "```text"
    yield from talk.connect(relink.Hello(terms=terms))
    for number, payload in enumerate((b"one", b"two")):
        yield from talk.say(message(payload, channels=(5,)).serialize(1), f"message {number} of channel 5", "received")
    yield from talk.say(
        operation(op.COMMIT, 5, 1).serialize(1), "commit up to 1", "committed up to 1; consumed up to 1"
    )
    yield from talk.say(message(b"no", channels=(5,)).serialize(1), "message 2", "received")
    yield from talk.say(operation(op.ROLLBACK, 5, 2).serialize(1), "rollback up to 2", "consumed: not stored")
    assert talk.server.payloads() == [b"one", b"two"]
    talk.server.registry.close()
    yield "```"


def _subscription() -> Iterator[str]:
    """Subscribe to a stream of two records at a server that is killed after the first; show every byte."""
    talk = _Talk()

    def consumed(number: int) -> bytes:
        return relink.Acknowledgement(kind=relink.Ack.CONSUMED, channels=(0,), number=number).serialize(0)

    terms = relink.Terms(endpoint="subscribe:s@0?seq")
    talk.server.publish("s", b"one", b"two")
    yield "```text"
    begun = (
        "ping; message 0: an empty part,",
        "the number behind which it begins,",
        "0 rewindings, the last number; no epoch",
        "message 1: record 1;",
        "message 2:",
    )
    yield from talk.connect(relink.Hello(terms=terms), *begun, "record 2")
    epoch, link_id = unpack_from("<QQ", talk.answer)
    pong = relink.PONG.serialize()
    yield from talk.say(pong + consumed(1), "pong; consumed up to message 1")
    talk.server.restart()
    yield "-- the server is killed and started again; the connector resumes its link"
    yield from talk.connect(relink.Hello(terms=terms, epoch=epoch, link_id=link_id), "resume")
    report = consumed(1) + relink.RESUME.serialize()
    yield from talk.say(report, "the report, consumed up to 1; resume", "message 2 again: record 2")
    yield from talk.say(consumed(2), "consumed up to message 2")
    talk.server.registry.close()
    yield "```"


def _spoken(who: str, data: bytes, *meanings: str) -> Iterator[str]:
    """Show *data* in lines of 16 bytes."""
    for at in range(0, len(data), 16):
        line = data[at : at + 16]
        what = meanings[at // 16] if at // 16 < len(meanings) else ""
        yield f"{who}  {line[:8].hex(' ')}  {line[8:].hex(' '):23}  {what}".rstrip()


def _syslog() -> Iterator[str]:
    yield from ("| meaning | from the sender | from the server |", "|---|---|---|")
    for meaning, sent, answer in vectors_of("syslog/test_session.py", "GOLDEN"):
        yield f"| {meaning} | `{_escaped(sent)}` | `{_escaped(answer)}` |"


def _escaped(data: bytes) -> str:
    return data.decode().replace("\n", "\\n")


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "backbone": _backbone,
    "eventbus": _eventbus,
    "figg": _figg,
    "lumberjack": _lumberjack,
    "relink": _relink,
    "relink_handshake": _handshake,
    "relink_conversation": _conversation,
    "relink_transaction": _transaction,
    "relink_subscription": _subscription,
    "syslog": _syslog,
}


def marks(page: str) -> list[str]:
    """Return the names of the tables that *page* contains."""
    return [found[2] for found in _MARKED.finditer(page)]


def redrawn(page: str) -> str:
    """Return *page* with tables of the tests' present bytes."""
    return _MARKED.sub(lambda mark: mark[1] + "\n".join(TABLES[mark[2]]()) + "\n" + mark[3], page)


if __name__ == "__main__":
    for path in sorted(PAGES.glob("*.md")):
        path.write_text(redrawn(path.read_text(encoding="utf-8")), encoding="utf-8")
