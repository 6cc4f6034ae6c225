"""Snapshots of a link's cursors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import LocalProtocolError
from fyrehose.protocols.relink.frames import Ack, Message, Op, Operation, Terms
from fyrehose.protocols.relink.link import Link
from fyrehose.protocols.relink.linklog import restore_snapshot, save_snapshot

TERMS = Terms(endpoint="e", connector_size=8, listener_size=8, connector_transactions=True)


def link() -> Link:
    return Link(TERMS, False, durable=True, kept=False)


def cursors(of: Link) -> Any:
    return of.opened, {
        id_: (c.ordinal, c.next, c.dec, c.done, c.consumed, [(r.result, r.first, r.last) for r in c.results])
        for id_, c in of.receiving.items()
    }


def worked(results: list[Ack | None], channel: int = 3) -> Link:
    """Return a link on which messages have these results, and one more is not finished."""
    made = link()
    for _ in range(len(results) + 1):
        made.receive(Message(channels=(channel,), parts=(b"x",)))
    for seq, result in enumerate(results):
        made.receive(Operation(kind=Op.ROLLBACK if result is None else Op.COMMIT, channels=(channel,)))
        made.stage(channel, seq, result)
    return made


def test_snapshot_matches_its_golden_bytes() -> None:
    made = worked([Ack.COMMITTED, Ack.COMMITTED, None, Ack.UNCOMMITTED], channel=200)
    made.channel(1).base = 300
    assert save_snapshot(made).hex() == "0101019003000402040003010101ac02"


#: Channels with as many bits as the bytes of a number have, and one more.
CHANNELS = st.sampled_from(sorted({(1 << bits) + more for bits in (7, 14, 56, 62, 63) for more in (-1, 0)}))


@given(st.lists(st.sampled_from([Ack.COMMITTED, Ack.UNCOMMITTED, None]), max_size=20), CHANNELS)
def test_snapshot_round_trip(results: list[Ack | None], channel: int) -> None:
    made = worked(results, channel)
    found = link()
    restore_snapshot(found, save_snapshot(made))
    if results:
        made.settle(channel, len(results) - 1)
    made.receiving[channel].rewind()
    assert cursors(found) == cursors(made)


def test_partial_snapshot_keeps_other_channels() -> None:
    made = worked([Ack.COMMITTED])
    found = link()
    restore_snapshot(found, save_snapshot(made))
    made.receive(Message(channels=(9,), parts=()))
    restore_snapshot(found, save_snapshot(made, [9]))
    assert sorted(found.receiving) == [3, 9]
    made.receiving[3].leaving = True
    restore_snapshot(found, save_snapshot(made, [3]))
    assert sorted(found.receiving) == [9]
    assert found.opened == 2


def test_snapshot_holds_only_cursors_of_our_channels() -> None:
    made = link()
    made.channel(0).base = 41
    found = link()
    restore_snapshot(found, save_snapshot(made))
    sent = found.sending[0]
    assert (sent.base, sent.next, sent.recv, sent.unsure) == (41, 41, 40, True)
    kept = Link(TERMS, False)
    kept.channel(0)
    with pytest.raises(LocalProtocolError, match="keeps its own messages"):
        save_snapshot(kept)


def test_invalid_snapshot_is_refused() -> None:
    whole = save_snapshot(worked([Ack.COMMITTED, None, Ack.UNCOMMITTED]))
    for size in range(len(whole)):
        with pytest.raises(ValueError):
            restore_snapshot(link(), whole[:size])
    for wrong in (b"\2" + whole[1:], whole + b"\0", b"\1" + b"\xff" * 12):
        with pytest.raises(ValueError):
            restore_snapshot(link(), wrong)
