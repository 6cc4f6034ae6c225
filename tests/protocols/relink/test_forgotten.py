"""Decisions about messages that the server has forgotten, by a peer that believes an earlier ``received``.

The specification does not say that a report takes ``received`` back, so a peer may decide messages that it does not
send again after a restart of the server.  Each of these commits gets an answer.
"""

from __future__ import annotations

from typing import Any

import pytest

from fyrehose.interfaces import JournalState
from fyrehose.protocols.relink.frames import (
    RESUME,
    SHUTDOWN,
    Ack,
    Acknowledgement,
    Message,
    Op,
    Operation,
    pack_reply,
    pack_version,
)


def message(payload: bytes) -> bytes:
    return Message(channels=(0,), parts=(payload,)).serialize(1)


def decision(op: Op, number: int | None = None) -> bytes:
    return Operation(kind=op, channels=(0,), number=number).serialize(1)


def acknowledged(*kinds_and_numbers: tuple[Ack, int | None]) -> bytes:
    return b"".join(
        Acknowledgement(kind=kind, channels=(0,), number=number).serialize(1) for kind, number in kinds_and_numbers
    )


def publish(server: Any, data: bytes) -> Any:
    """Return a publisher in transactions that has sent *data* on a new link."""
    peer = server.linked(connector_transactions=True)
    peer.say(data)
    server.clock.advance(0)
    return peer


def written(peer: Any) -> bytes:
    """Return what the server has written to *peer*."""
    peer.server.clock.advance(0)
    data: bytes = peer.transport.value()
    peer.transport.clear()
    return data


def come_back(peer: Any, report: bytes, restart: bool = True) -> Any:
    """Resume the link of *peer*, after a restart of the server, without sending any message again."""
    server = peer.server
    peer.leave()
    if restart:
        server.restart()
    again = server.connect(old=peer.link)
    again.say(pack_version(0) + again.session.hello.serialize())
    link = peer.link
    assert written(again) == pack_version(0) + pack_reply(link.epoch, link.id) + report + RESUME.serialize()
    again.say(RESUME.serialize())
    return again


@pytest.mark.parametrize("number", [2, None], ids=["numbered", "plain"])
def test_commit_of_messages_that_a_restart_has_lost_is_uncommitted(make_server: Any, number: int | None) -> None:
    server = make_server()
    peer = publish(server, message(b"1") + message(b"2") + message(b"3"))
    assert written(peer) == acknowledged((Ack.RECEIVED, 2))
    again = come_back(peer, report=b"")
    last = 0 if number is None else number
    again.say(decision(Op.COMMIT, number))
    assert written(again) == acknowledged((Ack.UNCOMMITTED, last), (Ack.CONSUMED, last or None))
    for following in range(last + 1, 3):
        again.say(decision(Op.COMMIT))
        assert written(again) == acknowledged((Ack.UNCOMMITTED, None), (Ack.CONSUMED, None)), following
    assert server.payloads() == []
    assert server.count("transactions-forgotten") == 3 - last
    again.say(message(b"4") + decision(Op.COMMIT, 3))
    assert written(again) == acknowledged((Ack.COMMITTED, 3), (Ack.CONSUMED, None))
    assert server.payloads() == [b"4"]


def test_commit_behind_durable_messages_is_no_violation_after_a_restart(make_server: Any) -> None:
    server = make_server()
    peer = publish(server, message(b"1") + decision(Op.COMMIT, 0) + message(b"2") + message(b"3"))
    written(peer)
    again = come_back(peer, report=acknowledged((Ack.COMMITTED, 0), (Ack.CONSUMED, 0)))
    again.say(decision(Op.COMMIT, 2))
    assert written(again) == acknowledged((Ack.UNCOMMITTED, 2), (Ack.CONSUMED, 2))
    assert not again.closed
    assert server.payloads() == [b"1"]


def test_new_messages_of_the_same_transaction_are_uncommitted_too(make_server: Any) -> None:
    """The server numbers new messages too low, because it has forgotten the earlier ones."""
    server = make_server()
    peer = publish(server, message(b"1") + message(b"2"))
    written(peer)
    again = come_back(peer, report=b"")
    again.say(message(b"3") + decision(Op.COMMIT, 2))
    assert written(again) == acknowledged((Ack.UNCOMMITTED, 2), (Ack.CONSUMED, 2))
    assert server.payloads() == []


def test_messages_that_are_numbered_too_low_are_not_kept_over_a_reconnection(make_server: Any) -> None:
    """If it kept them, the server would commit two messages twice, instead of the ones that it has forgotten."""
    server = make_server()
    peer = publish(server, message(b"1") + message(b"2"))
    assert written(peer) == acknowledged((Ack.RECEIVED, 1))
    again = come_back(peer, report=b"")
    again.say(message(b"3") + message(b"4"))
    assert written(again) == acknowledged((Ack.RECEIVED, 1))
    again.session.receive_eof()
    once_more = come_back(again, report=b"", restart=False)
    once_more.say(message(b"3") + message(b"4") + decision(Op.COMMIT, 3))
    assert written(once_more) == acknowledged((Ack.UNCOMMITTED, 3), (Ack.CONSUMED, 3))
    assert server.payloads() == []


def test_rollback_of_messages_that_a_restart_has_lost_is_consumed(make_server: Any) -> None:
    server = make_server()
    peer = publish(server, message(b"1") + message(b"2"))
    written(peer)
    again = come_back(peer, report=b"")
    again.say(decision(Op.ROLLBACK, 1))
    assert written(again) == acknowledged((Ack.CONSUMED, 1))
    again.say(message(b"3") + decision(Op.COMMIT, 2))
    assert written(again) == acknowledged((Ack.COMMITTED, 2), (Ack.CONSUMED, None))
    assert server.payloads() == [b"3"]
    assert server.count("transactions-forgotten") == 0


def test_answer_to_a_lost_commit_survives_another_restart(make_server: Any) -> None:
    server = make_server()
    peer = publish(server, message(b"1") + message(b"2"))
    written(peer)
    again = come_back(peer, report=b"")
    again.say(decision(Op.COMMIT, 1))
    again.session.receive_eof()
    once_more = come_back(again, report=acknowledged((Ack.UNCOMMITTED, 1), (Ack.CONSUMED, 1)))
    once_more.say(decision(Op.COMMIT, 1))
    assert written(once_more) == b"", "the message was decided before"


def test_commit_of_messages_that_a_full_disk_has_rewound_is_uncommitted(make_server: Any) -> None:
    """A refused write forgets the undecided messages of its channel as well, without a restart."""
    server = make_server()
    peer = publish(server, message(b"1") + message(b"2"))
    assert written(peer) == acknowledged((Ack.RECEIVED, 1))
    server.journal.enter(JournalState.READ_ONLY, "full")
    peer.say(decision(Op.COMMIT, 0))
    assert written(peer) == b""
    server.journal.enter(JournalState.WRITABLE, "")
    again = come_back(peer, report=b"", restart=False)
    again.say(decision(Op.COMMIT, 1))
    assert written(again) == acknowledged((Ack.UNCOMMITTED, 1), (Ack.CONSUMED, 1))
    assert server.payloads() == []


def test_commit_on_an_unknown_channel_is_answered(make_server: Any) -> None:
    """A commit does not open a channel on a link of which the server has forgotten nothing."""
    server = make_server()
    peer = publish(server, decision(Op.COMMIT, 5) + decision(Op.COMMIT) + decision(Op.ROLLBACK, 5))
    assert written(peer) == acknowledged((Ack.UNCOMMITTED, 5), (Ack.UNCOMMITTED, None))
    (entry,) = server.registry.entries.values()
    assert not entry.link.receiving
    peer.say(message(b"1") + decision(Op.COMMIT, 0))
    assert written(peer) == acknowledged((Ack.COMMITTED, 0), (Ack.CONSUMED, None))


def test_commit_of_unsent_messages_is_a_violation_while_nothing_was_forgotten(make_server: Any) -> None:
    server = make_server()
    peer = publish(server, message(b"1"))
    again = come_back(peer, report=acknowledged((Ack.RECEIVED, 0)), restart=False)
    again.say(decision(Op.COMMIT, 3))
    assert again.closed
    assert server.count("operation-on-unreceived") == 1


def test_commit_that_follows_shutdown_is_answered_after_a_restart(make_server: Any) -> None:
    """The peer had opened the channel before its ``shutdown``, which forbids only new channels."""
    server = make_server()
    peer = publish(server, message(b"1"))
    written(peer)
    again = come_back(peer, report=b"")
    again.say(SHUTDOWN.serialize() + decision(Op.COMMIT, 0))
    assert acknowledged((Ack.UNCOMMITTED, 0), (Ack.CONSUMED, None)) in written(again)
    assert not again.closed
