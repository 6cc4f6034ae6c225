"""The session of syslog: framings told apart, RELP's answers, and messages that are too large."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import Broken
from fyrehose.protocols.syslog.session import (
    MOST_MESSAGES,
    LargeMessage,
    RelpClosed,
    SyslogMessages,
    SyslogServerSession,
)
from fyrehose.sessions import events_of
from fyrehose.testing import every_chunking, feed

#: What rsyslog's omrelp sends, and what it is answered.
OFFERS = b"relp_version=0\nrelp_software=librelp,1.11.0,http://librelp.adiscon.com\ncommands=syslog"
OPEN = b"1 open %d %b\n" % (len(OFFERS), OFFERS)
OPENED = b"1 rsp 60 200 OK\nrelp_version=0\nrelp_software=fyrehose\ncommands=syslog\n"
HELLO = b"<13>1 2026-11-28T12:00:00Z web-1 app 7 - - hello"
#: A frame of the peer, and the server's answer once its message is durable.
GOLDEN = [
    ("open a session", OPEN, OPENED),
    ("a message", b"2 syslog 48 " + HELLO + b"\n", b"2 rsp 6 200 OK\n"),
    ("a message without text", b"3 syslog 0\n", b"3 rsp 6 200 OK\n"),
    ("an unknown command", b"4 starttls 3 now\n", b"4 rsp 25 500 command not supported\n"),
    ("close the session", b"5 close 0\n", b"5 rsp 0\n0 serverclose 0\n"),
]


def talked(session: SyslogServerSession, chunks: list[bytes]) -> tuple[list[tuple[int | None, bytes]], str, bytes]:
    """Return the messages with their numbers, what ended the session, and the answers to durable messages."""
    messages: list[tuple[int | None, bytes]] = []
    cause = ""
    for event in feed(session, chunks):
        assert not cause, "an event follows the end"
        if isinstance(event, Broken):
            cause = event.error.cause
            assert (session.buffered, session.expected, session.more) == (0, 0, False), "something is kept, and charged"
        elif isinstance(event, SyslogMessages):
            assert event.payloads
            numbers = event.numbers or [None] * len(event.payloads)
            messages += zip(numbers, event.payloads, strict=True)
            session.acknowledge(event.numbers)
        elif isinstance(event, LargeMessage):
            messages.append((event.number, b"large %d " % event.size + event.payload))
        else:
            cause = type(event).__name__
            session.send_close()
    return messages, cause, b"".join(session.data_to_send())


def relp(*frames: tuple[int, bytes, bytes]) -> bytes:
    return OPEN + b"".join(b"%d %b %d %b\n" % (number, command, len(data), data) for number, command, data in frames)


def test_golden_conversation_of_relp_in_every_chunking() -> None:
    data = b"".join(frame for _, frame, _ in GOLDEN)
    said = b"".join(answer for _, _, answer in GOLDEN)
    for chunks in every_chunking(data, sizes=(1, 2, 3, 7, 64)):
        session = SyslogServerSession()
        messages, cause, answers = talked(session, chunks)
        assert (messages, cause) == ([(2, HELLO), (3, b"")], "RelpClosed")
        assert sorted(answers.splitlines()) == sorted(said.splitlines())
        assert session.relp


@pytest.mark.parametrize(
    ("data", "payloads"),
    [
        (b"<1>one\n<2>two\n", [b"<1>one", b"<2>two"]),
        (b"6 <1>one6 <2>two", [b"<1>one", b"<2>two"]),
        (b"<1>one\n6 <2>two<3>three\n", [b"<1>one", b"<2>two", b"<3>three"]),
        (b"7 <1>o\ne\n<2>a \r\n\n\n12 monkeys\n4x\n7\n", [b"<1>o\ne\n", b"<2>a \r", b"12 monkeys", b"4x", b"7"]),
        (b"<1>\xff\0\n", [b"<1>\xff\0"]),
    ],
    ids=["lines", "counted", "both", "odd lines", "no text"],
)
def test_framings_of_tcp_are_told_apart_in_every_chunking(data: bytes, payloads: list[bytes]) -> None:
    for chunks in every_chunking(data, sizes=(1, 2, 3, 7)):
        session = SyslogServerSession()
        assert talked(session, chunks) == ([(None, payload) for payload in payloads], "", b"")
        assert (session.expected, session.buffered) == (0, 0)
        assert session.receive_eof() == []


def test_last_line_needs_no_end() -> None:
    session = SyslogServerSession()
    session.receive_data(b"<1>one\n<2>tw")
    assert session.receive_eof() == [SyslogMessages([b"<2>tw"], [])]
    assert session.receive_eof() == session.receive_data(b"<3>x\n") == []


@pytest.mark.parametrize(
    "data", [b"9 <1>one", b"1 open", OPEN + b"2 syslog 9 abc", OPEN + b"2", b"12", b"99 <1>" + bytes(60)], ids=range(6)
)
def test_frame_that_the_end_cuts_is_an_error(data: bytes) -> None:
    session = SyslogServerSession(50)
    session.receive_data(data)
    (event,) = session.receive_eof()
    assert isinstance(event, Broken)
    assert event.error.cause == "truncated-frame"


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"GET / HTTP/1.1\r\n", "not-syslog"),
        (b"\x16\x03\x01\x02\x00\x01", "not-syslog"),
        (b"\n<1>x\n", "not-syslog"),
        (b"12 close 0\n", "not-syslog"),
        (b"0123456789", "not-syslog"),
        (OPEN + b"x", "bad-header"),
        (OPEN + b"2 syslog x", "bad-header"),
        (OPEN + b"2 sys\nlog 0\n", "bad-header"),
        (OPEN + b"2 " + b"s" * 33, "bad-header"),
        (OPEN + b"2 syslog 1234567890", "bad-header"),
        (OPEN + b"2 syslog 3 abcd\n", "bad-trailer"),
        (OPEN + b"2 syslog 101 " + bytes(101) + b"x", "bad-trailer"),
        (OPEN + b"2 starttls 4097 ", "frame-too-large"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_violation_ends_the_session_in_every_chunking(data: bytes, cause: str) -> None:
    for chunks in every_chunking(data, sizes=(1, 2, 7)):
        session = SyslogServerSession(100)
        assert talked(session, chunks)[:2] == ([], cause)
        assert session.receive_data(b"<1>more\n") == session.receive_eof() == []
        assert session.buffered == session.expected == 0


def test_message_that_is_too_large_does_not_stop_those_behind_it() -> None:
    large = b"<1>" + b"x" * 97 + b"!"
    line = b"<1>a\n" + large + b"\n<2>b\n"
    counted = b"4 <1>a101 " + large + b"4 <2>b"
    framed = relp((2, b"syslog", b"<1>a"), (3, b"syslog", large), (4, b"syslog", b"<2>b"))
    for data, numbers in ((line, [None] * 3), (counted, [None] * 3), (framed, [2, 3, 4])):
        for chunks in every_chunking(data, sizes=(1, 2, 7, 64)):
            session = SyslogServerSession(100)
            payloads = [b"<1>a", b"large 101 " + large[:100], b"<2>b"]
            assert talked(session, chunks)[:2] == (list(zip(numbers, payloads, strict=True)), "")


def test_endless_message_takes_no_more_memory_than_the_largest_one() -> None:
    for begin in (b"<1>", b"999999999 <1>", OPEN + b"2 syslog 999999999 "):
        session = SyslogServerSession(1000)
        assert session.receive_data(begin) == []
        for _ in range(100):
            assert session.receive_data(bytes(700)) == []
            assert session.buffered <= 1700
            assert 0 < session.expected <= 999_999_999 + 60


def test_large_last_line_needs_no_end() -> None:
    session = SyslogServerSession(5)
    session.receive_data(b"<1>too long")
    (event,) = session.receive_eof()
    assert isinstance(event, LargeMessage)
    assert (event.size, event.payload) == (11, b"<1>to")


def test_one_turn_returns_a_limited_number_of_messages() -> None:
    session = SyslogServerSession()
    data = b"<1>x\n" * (2 * MOST_MESSAGES + 1)
    (first,) = session.receive_data(data)
    assert isinstance(first, SyslogMessages)
    assert len(first.payloads) == MOST_MESSAGES
    assert session.more
    assert sum(len(event.payloads) for event in events_of(session, b"")) == MOST_MESSAGES + 1
    assert not session.more


def test_nothing_follows_the_close_of_a_session() -> None:
    session = SyslogServerSession()
    events = session.receive_data(relp((2, b"syslog", b"a"), (3, b"close", b""), (4, b"syslog", b"b")))
    assert events == [SyslogMessages([b"a"], [2]), RelpClosed()]
    assert session.receive_data(b"5 syslog 1 c\n") == session.receive_eof() == []


def test_server_that_closes_first_says_so_to_relp_only() -> None:
    for data, said in ((OPEN, b"0 serverclose 0\n"), (b"<1>a\n", b"")):
        session = SyslogServerSession()
        session.receive_data(data)
        session.data_to_send()
        session.send_close()
        assert b"".join(session.data_to_send()) == said


MESSAGES = st.lists(st.binary(min_size=1, max_size=40).map(lambda text: b"<1>" + text), max_size=8)


@given(MESSAGES, st.booleans(), st.data())
def test_messages_of_any_bytes_arrive_however_they_are_cut(messages: list[bytes], framed: bool, data: Any) -> None:
    if framed:
        wire = relp(*((n, b"syslog", message) for n, message in enumerate(messages, 2)))
    else:
        wire = b"".join(
            b"%b\n" % each if b"\n" not in each and data.draw(st.booleans()) else b"%d %b" % (len(each), each)
            for each in messages
        )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    chunks = [wire[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    found, cause, _ = talked(SyslogServerSession(30), chunks)
    limit = 30
    want = [m if len(m) <= limit else b"large %d " % len(m) + m[:limit] for m in messages]
    assert ([payload for _, payload in found], cause) == (want, "")


@given(
    st.lists(
        st.sampled_from([b"1", b" ", b"open", b"syslog", b"\n", b"<", b">x", b"0", b"9999", OPEN, b"2 "]), max_size=12
    )
)
def test_events_of_any_bytes_do_not_depend_on_how_they_are_cut(parts: list[bytes]) -> None:
    wire = b"".join(parts)
    whole = talked(SyslogServerSession(20), [wire])[:2]
    assert talked(SyslogServerSession(20), [wire[n : n + 1] for n in range(len(wire))])[:2] == whole
