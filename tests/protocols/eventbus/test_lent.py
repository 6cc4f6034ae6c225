"""Accounts of memory that sockets hold."""

from __future__ import annotations

import attrs

from fyrehose.protocols.eventbus.lent import OVERHEAD, PART, TRACKED, Lent, LentMessages, Pool


@attrs.define
class Message:
    """The tracker of a message."""

    done: bool = False


def test_lent_messages_count_until_released() -> None:
    lent = Lent(100)
    assert lent.fits(1_000), "the first message may have any size"
    first, second = Message(), Message()
    lent.add(first, 60)
    assert lent.fits(40)
    assert not lent.fits(41)
    lent.add(second, 40)
    assert not lent.fits(1)
    first.done = True
    assert lent.fits(60)
    assert lent.size == 40
    second.done = True
    assert lent.fits(101)
    assert lent.size == 0


def take(account: LentMessages, size: int) -> Message | None:
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
    assert account.size == pool.size == (second + 1) * (100 + OVERHEAD), (
        "untracked messages after it are not counted yet"
    )
    assert sent[first] is not None
    sent[first].done = True
    account.settle()
    assert account.size == pool.size == (second - first) * (100 + OVERHEAD)
    assert pool.account(b"c", "10.0.0.1") is account
    assert sent[second] is not None
    sent[second].done = True
    pool.settle()
    assert account.size == pool.size == 0
    assert pool.account(b"c", "10.0.0.1") is not account
    assert not pool.networks


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
    assert pool.size < 128 << 20
    assert all(held), "every client may have a message"
    other = pool.account(b"x", "10.0.0.2")
    assert other.fits((128 << 20) // PART - OVERHEAD), "another network has its own half"
    assert not pool.account(b"y", "10.0.0.1").fits(16 << 20)


def test_small_messages_are_tracked_rarely() -> None:
    account = Pool(1 << 30).account(b"c", "10.0.0.1")
    tracked = [take(account, 10) is not None for _ in range(320)]
    assert sum(tracked) in (320 * (10 + OVERHEAD) // TRACKED, 320 * (10 + OVERHEAD) // TRACKED - 1)
