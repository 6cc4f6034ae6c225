"""What waits: what may still come, what holds the connection, and what is too much."""

from __future__ import annotations

from fyrehose.protocols.relink.backlog import FEW, Backlog
from fyrehose.protocols.relink.limits import Limits
from fyrehose.protocols.relink.messages import column_of
from fyrehose.protocols.relink.receiving import OVERHEAD, ReceiveChannel


def backlog(channels: int = 1, transactional: bool = False, **limits: int) -> Backlog:
    made = {id_: ReceiveChannel(id_, transactional, id_) for id_ in range(channels)}
    return Backlog(Limits(**{"backlog": 6, "backlog_size": 1_000, "message_size": 100, **limits}), made)


def come(waits: Backlog, *payloads: bytes, channel: int = 0) -> None:
    run = column_of(payloads)
    cost = len(run.payload) + OVERHEAD * len(run)
    waits.channels[channel].accept(run, cost, run.sizes)
    waits.add(waits.channels[channel], cost)


def finish(waits: Backlog, last: int, channel: int = 0) -> None:
    found = waits.channels[channel]
    found.stage(last, None)
    waits.let_go(found, found.settle(last)[1])


def test_room_is_what_the_fullest_of_a_few_channels_has_left() -> None:
    waits = backlog(2)
    assert waits.room(False) == (6, 1_000)
    come(waits, b"x" * 10, b"")
    assert waits.room(False) == (4, 1_000 - 10 - 2 * OVERHEAD)
    come(waits, *[b""] * 3, channel=1)
    assert waits.room(False)[0] == 3
    finish(waits, 0, channel=1)
    assert waits.room(False)[0] == 4
    assert backlog(0).room(False) == (6, 1_000)


def test_room_is_what_the_fullest_of_many_channels_has_left() -> None:
    waits = backlog(FEW + 1)
    assert waits.room(False) == (3, 1_000), "what channels below a half may have grown to is not looked up"
    come(waits, b"x" * 10, b"")
    assert waits.room(False) == (3, 1_000 - 10 - 2 * OVERHEAD)
    come(waits, b"", b"")
    assert waits.room(False)[0] == 2
    come(waits, b"", channel=1)
    assert waits.room(False)[0] == 2
    finish(waits, 1)
    assert waits.room(False)[0] == 3
    finish(waits, 3)
    finish(waits, 0, channel=1)
    assert waits.room(False) == (3, 1_000)
    assert waits.size == 0


def test_a_full_channel_holds_the_connection() -> None:
    waits = backlog(2)
    come(waits, *[b""] * 6)
    assert waits.held
    assert waits.room(False)[0] == 1, "never none: what comes is judged by itself"
    finish(waits, 0)
    assert not waits.held
    come(waits, b"")
    assert waits.held
    waits.drop(0)
    assert not waits.held


def test_bytes_hold_the_connection_only_while_something_waits_for_us() -> None:
    waits = backlog(backlog_size=100)
    come(waits, b"x" * 36)
    assert waits.held
    finish(waits, 0)
    assert not waits.held
    theirs = backlog(transactional=True, backlog_size=100)
    come(theirs, b"x" * 36)
    assert not theirs.held, "it waits for the peer's commit, which would not be read"
    assert theirs.room(True) == (13, 100 + 100 + 1)
    theirs.channels[0].decide(0)
    theirs.measure(theirs.channels[0])
    assert theirs.held


def test_what_waits_for_the_peer_has_an_end() -> None:
    waits = backlog(transactional=True)
    come(waits, *[b""] * 11)
    (channel,) = waits.channels.values()
    assert waits.fits(channel, 1, OVERHEAD)
    assert not waits.fits(channel, 2, 2 * OVERHEAD)
    assert waits.fitting(channel, [0, 0]) == 1
    come(waits, b"")
    assert not waits.fits(channel, 1, OVERHEAD)
    assert waits.fitting(channel, [0]) == 0
    large = backlog(transactional=True)
    (channel,) = large.channels.values()
    most = 2 * 1_000 + 100
    assert large.fits(channel, 1, most)
    assert not large.fits(channel, 1, most + 1)
    assert large.fitting(channel, [most - OVERHEAD]) == 1
    assert large.fitting(channel, [most - OVERHEAD + 1]) == 0
    assert large.fitting(channel, [most - 2 * OVERHEAD, 0]) == 2
    assert large.fitting(channel, [most - 2 * OVERHEAD, 1]) == 1


def test_nothing_fits_behind_what_was_not_kept() -> None:
    waits = backlog(transactional=True)
    (channel,) = waits.channels.values()
    channel.accept_dropped(3)
    assert not waits.fits(channel, 1, OVERHEAD)
    assert waits.fitting(channel, [0]) == 0
    channel.decide(1)
    assert waits.fitting(channel, [0]) == 0, "the third is still undecided"
    channel.decide(2)
    assert waits.fitting(channel, [0]) == 1
