"""Accounts of memory that sockets hold."""

from __future__ import annotations

import attrs

from fyrehose.protocols.eventbus.queued_memory import (
    LEAST_EVENTS,
    OVERHEAD,
    PART,
    REFERENCES,
    TRACKED,
    BroadcastMemory,
    Pool,
    QueuedMessages,
)


@attrs.define
class Message:
    """The tracker of a message."""

    done: bool = False


def sent(memory: BroadcastMemory, held: list[int], subscribers: int, size: int = 100) -> int:
    """Send events that the socket does not release until there is no room; return how many it holds."""
    while memory.take(size, subscribers):
        held.append(size)
    return len(held)


def test_events_count_until_released_and_for_each_subscriber() -> None:
    held: list[int] = []
    memory = BroadcastMemory(1 << 20, lambda: (len(held), sum(held)))
    assert memory.take(8 << 20, 9), "the first event may have any size"
    held.append(8 << 20)
    assert not memory.take(1, 9)
    held.clear()
    for subscribers in (0, 10, 100):
        each = 100 + OVERHEAD + REFERENCES * subscribers
        most = LEAST_EVENTS + ((1 << 20) - LEAST_EVENTS * 100) // each
        assert most - 1 <= sent(memory, held, subscribers) <= most, "the first cost their bytes only"
        assert memory.size(subscribers) <= 1 << 20
        held.clear()
    assert memory.released == memory._taken


def test_a_released_event_makes_room_for_one() -> None:
    held: list[int] = []
    memory = BroadcastMemory(1 << 20, lambda: (len(held), sum(held)))
    most = sent(memory, held, 100)
    before = memory.released
    held.pop(0)
    assert sent(memory, held, 100) == most
    assert memory.released == before + 1


def take(account: QueuedMessages, size: int) -> Message | None:
    """Send *size* bytes; return the tracker if the message is tracked."""
    if not account.tracks(size):
        account.skip(size)
        return None
    tracker = Message()
    account.add(tracker, size)
    return tracker


def test_released_message_releases_untracked_ones_before_it() -> None:
    pool = Pool(1 << 30)
    account = pool.account(b"c", "10.0.0.1")
    sent = [take(account, 100) for _ in range(60)]
    first, second = (n for n, tracker in enumerate(sent) if tracker is not None)
    assert account.size == pool.memory.used == (second + 1) * (100 + OVERHEAD), (
        "untracked messages after it are not counted yet"
    )
    assert sent[first] is not None
    sent[first].done = True
    account.settle()
    assert account.size == pool.memory.used == (second - first) * (100 + OVERHEAD)
    assert pool.account(b"c", "10.0.0.1") is account
    assert sent[second] is not None
    sent[second].done = True
    pool.settle()
    assert account.size == pool.memory.used == 0
    assert pool.account(b"c", "10.0.0.1") is not account
    assert not pool.memory.used_by("10.0.0.1")


def test_share_of_a_client_shrinks_as_the_pool_fills() -> None:
    pool = Pool(256 << 20)
    held = []
    for n in range(100):
        account = pool.account(b"%d" % n, "10.0.0.1")
        while account.fits(60_000):
            account.add(Message(), 60_000)
        held.append(account.size)
    assert held == sorted(held, reverse=True)
    assert (4 << 20) - 60_000 - OVERHEAD < held[0] <= 4 << 20
    assert pool.memory.used < 128 << 20
    assert all(held), "every client may have a message"
    other = pool.account(b"x", "10.0.0.2")
    assert other.fits((128 << 20) // PART - OVERHEAD), "another network has its own half"
    assert not pool.account(b"y", "10.0.0.1").fits(16 << 20)


def test_small_messages_are_tracked_rarely() -> None:
    account = Pool(1 << 30).account(b"c", "10.0.0.1")
    tracked = [take(account, 10) is not None for _ in range(320)]
    assert sum(tracked) in (320 * (10 + OVERHEAD) // TRACKED, 320 * (10 + OVERHEAD) // TRACKED - 1)
