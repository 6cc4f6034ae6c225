"""The inbound half of a link: how many messages fit, and when reading stops."""

from __future__ import annotations

from fyrehose.protocols.relink.channels import OVERHEAD
from fyrehose.protocols.relink.events import DropReason
from fyrehose.protocols.relink.frames import Message, Op, Operation, Terms
from fyrehose.protocols.relink.link import SCAN_LIMIT, Link, LinkLimits
from fyrehose.protocols.relink.messages import column_of


def backlog(channels: int = 0, transactional: bool = False, **limits: int) -> Link:
    """Return a link on which the peer has opened *channels* channels without messages."""
    terms = Terms(endpoint="e", connector_size=1, connector_transactions=transactional)
    link = Link(terms, False, 1, 1, LinkLimits(**{"backlog": 6, "backlog_size": 1_000, "message_size": 100, **limits}))
    for id_ in range(channels):
        link.accept(id_, (), 0, ())
    return link


def receive(pending: Link, *payloads: bytes, channel: int = 0) -> None:
    run = column_of(payloads)
    pending.accept(channel, run, len(run.payload), run.sizes)


def kept(pending: Link) -> int:
    """Return how many messages channel 0 keeps."""
    channel = pending.receiving[0]
    return (channel.next if channel.dropped is None else channel.dropped) - channel.consumed - 1


def test_room_is_limited_by_the_fullest_of_few_channels() -> None:
    pending = backlog(2)
    assert pending.room() == (6, 1_000)
    receive(pending, b"x" * 10, b"")
    assert pending.room() == (4, 1_000 - 10 - 2 * OVERHEAD)
    receive(pending, *[b""] * 3, channel=1)
    assert pending.room()[0] == 3
    pending.consume(1, 0)
    assert pending.room()[0] == 4
    assert backlog(0).room() == (6, 1_000)


def test_room_is_limited_by_the_fullest_of_many_channels() -> None:
    pending = backlog(SCAN_LIMIT + 1)
    assert pending.room() == (3, 1_000), "channels that are less than half full are not scanned"
    receive(pending, b"x" * 10, b"")
    assert pending.room() == (3, 1_000 - 10 - 2 * OVERHEAD)
    receive(pending, b"", b"")
    assert pending.room()[0] == 2
    receive(pending, b"", channel=1)
    assert pending.room()[0] == 2
    pending.consume(0, 1)
    assert pending.room()[0] == 3
    pending.consume(0, 3)
    pending.consume(1, 0)
    assert pending.room() == (3, 1_000)
    assert pending.held == 0


def test_full_channel_blocks_reading() -> None:
    pending = backlog(2)
    receive(pending, *[b""] * 6)
    assert pending.blocked
    assert pending.room()[0] == 1, "at least one message is decoded, and judged by itself"
    pending.consume(0, 0)
    assert not pending.blocked
    receive(pending, b"")
    assert pending.blocked
    pending.consume(0, 6)
    assert not pending.blocked


def test_backlog_size_blocks_reading_only_while_messages_wait_for_the_owner() -> None:
    pending = backlog(backlog_size=100)
    receive(pending, b"x" * 36)
    assert pending.blocked
    pending.consume(0, 0)
    assert not pending.blocked
    undecided = backlog(transactional=True, backlog_size=100)
    receive(undecided, b"x" * 36)
    assert not undecided.blocked, "the peer's commit would not be read"
    assert undecided.room() == (13, 100 + 100 + 1)
    undecided.receive(Operation(kind=Op.COMMIT, channels=(0,)))
    assert undecided.blocked


def test_undecided_messages_are_limited() -> None:
    pending = backlog(transactional=True)
    receive(pending, *[b""] * 11)
    receive(pending, b"", b"")
    assert kept(pending) == 12, "twice the backlog"
    most = 2 * 1_000 + 100
    for payloads, expected in [
        ([b"x" * (most - OVERHEAD)], 1),
        ([b"x" * (most - OVERHEAD + 1)], 0),
        ([b"x" * (most - 2 * OVERHEAD), b""], 2),
        ([b"x" * (most - 2 * OVERHEAD), b"x"], 1),
    ]:
        large = backlog(transactional=True)
        receive(large, *payloads)
        assert kept(large) == expected
        assert large.held == sum(map(len, payloads[:expected])) + OVERHEAD * expected
        found = large.receive(Operation(kind=Op.COMMIT, channels=(0,), number=expected - 1)) if expected else []
        assert [one for event in found for one in event.messages] == [(one,) for one in payloads[:expected]]


def test_messages_after_a_dropped_one_of_a_transaction_are_dropped_too() -> None:
    pending = backlog(transactional=True)
    receive(pending, *[b""] * 14)
    commit = Operation(kind=Op.COMMIT, channels=(0,), number=12)
    assert [event.dropped for event in pending.receive(commit)] == [DropReason.COUNT]  # type: ignore[union-attr]
    receive(pending, b"x")
    assert pending.receiving[0].dropped == 13, "message 13 is still undecided, so the new one is not kept"
    pending.receive(Operation(kind=Op.COMMIT, channels=(0,), number=14))
    pending.receive(Message(channels=(0,), parts=(b"x",)))
    assert pending.receiving[0].dropped is None
