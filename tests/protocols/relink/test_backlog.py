"""The backlog: how many messages fit, and when reading stops."""

from __future__ import annotations

from fyrehose.protocols.relink.backlog import SCAN_LIMIT, Backlog
from fyrehose.protocols.relink.limits import Limits
from fyrehose.protocols.relink.messages import column_of
from fyrehose.protocols.relink.receiving import OVERHEAD, ReceiveChannel


def backlog(channels: int = 1, transactional: bool = False, **limits: int) -> Backlog:
    channels_ = {id_: ReceiveChannel(id_, transactional, id_) for id_ in range(channels)}
    return Backlog(Limits(**{"backlog": 6, "backlog_size": 1_000, "message_size": 100, **limits}), channels_)


def receive(pending: Backlog, *payloads: bytes, channel: int = 0) -> None:
    run = column_of(payloads)
    cost = len(run.payload) + OVERHEAD * len(run)
    pending.channels[channel].accept(run, cost, run.sizes)
    pending.add(pending.channels[channel], cost)


def finish(pending: Backlog, last: int, channel: int = 0) -> None:
    found = pending.channels[channel]
    found.stage(last, None)
    pending.release(found, found.settle(last)[1])


def test_room_is_limited_by_the_fullest_of_few_channels() -> None:
    pending = backlog(2)
    assert pending.room(False) == (6, 1_000)
    receive(pending, b"x" * 10, b"")
    assert pending.room(False) == (4, 1_000 - 10 - 2 * OVERHEAD)
    receive(pending, *[b""] * 3, channel=1)
    assert pending.room(False)[0] == 3
    finish(pending, 0, channel=1)
    assert pending.room(False)[0] == 4
    assert backlog(0).room(False) == (6, 1_000)


def test_room_is_limited_by_the_fullest_of_many_channels() -> None:
    pending = backlog(SCAN_LIMIT + 1)
    assert pending.room(False) == (3, 1_000), "channels that are less than half full are not scanned"
    receive(pending, b"x" * 10, b"")
    assert pending.room(False) == (3, 1_000 - 10 - 2 * OVERHEAD)
    receive(pending, b"", b"")
    assert pending.room(False)[0] == 2
    receive(pending, b"", channel=1)
    assert pending.room(False)[0] == 2
    finish(pending, 1)
    assert pending.room(False)[0] == 3
    finish(pending, 3)
    finish(pending, 0, channel=1)
    assert pending.room(False) == (3, 1_000)
    assert pending.size == 0


def test_full_channel_blocks_reading() -> None:
    pending = backlog(2)
    receive(pending, *[b""] * 6)
    assert pending.blocked
    assert pending.room(False)[0] == 1, "at least one message is decoded, and judged by itself"
    finish(pending, 0)
    assert not pending.blocked
    receive(pending, b"")
    assert pending.blocked
    pending.drop(0)
    assert not pending.blocked


def test_backlog_size_blocks_reading_only_while_messages_wait_for_the_owner() -> None:
    pending = backlog(backlog_size=100)
    receive(pending, b"x" * 36)
    assert pending.blocked
    finish(pending, 0)
    assert not pending.blocked
    undecided = backlog(transactional=True, backlog_size=100)
    receive(undecided, b"x" * 36)
    assert not undecided.blocked, "the peer's commit would not be read"
    assert undecided.room(True) == (13, 100 + 100 + 1)
    undecided.channels[0].decide(0)
    undecided.measure(undecided.channels[0])
    assert undecided.blocked


def test_undecided_messages_are_limited() -> None:
    pending = backlog(transactional=True)
    receive(pending, *[b""] * 11)
    (channel,) = pending.channels.values()
    assert pending.fits(channel, 1, OVERHEAD)
    assert not pending.fits(channel, 2, 2 * OVERHEAD)
    assert pending.count_fitting(channel, [0, 0]) == 1
    receive(pending, b"")
    assert not pending.fits(channel, 1, OVERHEAD)
    assert pending.count_fitting(channel, [0]) == 0
    large = backlog(transactional=True)
    (channel,) = large.channels.values()
    most = 2 * 1_000 + 100
    assert large.fits(channel, 1, most)
    assert not large.fits(channel, 1, most + 1)
    assert large.count_fitting(channel, [most - OVERHEAD]) == 1
    assert large.count_fitting(channel, [most - OVERHEAD + 1]) == 0
    assert large.count_fitting(channel, [most - 2 * OVERHEAD, 0]) == 2
    assert large.count_fitting(channel, [most - 2 * OVERHEAD, 1]) == 1


def test_no_message_fits_behind_a_dropped_one() -> None:
    pending = backlog(transactional=True)
    (channel,) = pending.channels.values()
    channel.accept_dropped(3)
    assert not pending.fits(channel, 1, OVERHEAD)
    assert pending.count_fitting(channel, [0]) == 0
    channel.decide(1)
    assert pending.count_fitting(channel, [0]) == 0, "the third message is still undecided"
    channel.decide(2)
    assert pending.count_fitting(channel, [0]) == 1
