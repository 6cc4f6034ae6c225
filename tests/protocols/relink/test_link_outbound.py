"""The outbound half of a link, while the link is detached: what it keeps, and what it reports if it is lost."""

from __future__ import annotations

import pytest

from fyrehose.errors import LocalProtocolError
from fyrehose.protocols.relink.events import MessageOutcome
from fyrehose.protocols.relink.frames import Op, Terms
from fyrehose.protocols.relink.link import Link, LinkLimits


def test_messages_of_a_lost_link_are_reported_unless_they_were_rolled_back() -> None:
    link = Link(Terms(endpoint="e", connector_size=1, connector_transactions=True), True)
    for payload in (b"a", b"b", b"c"):
        link.send((1,), (payload,))
    link.decide(1, Op.COMMIT, 0)
    link.decide(1, Op.ROLLBACK, 1)
    assert [(one.parts, one.outcome) for one in link.unsettled()] == [
        ((b"a",), MessageOutcome.UNKNOWN),
        ((b"c",), MessageOutcome.NOT_PROCESSED),
    ]


def test_outcome_of_a_message_without_transaction_is_unknown_after_its_link_is_lost() -> None:
    link = Link(Terms(endpoint="e", connector_size=1), True)
    link.send((1,), (b"a",))
    assert [(one.parts, one.outcome) for one in link.unsettled()] == [((b"a",), MessageOutcome.UNKNOWN)]


def test_full_window_refuses_a_multicast_on_all_of_its_channels() -> None:
    link = Link(Terms(endpoint="e", connector_size=1), True, limits=LinkLimits(window=1))
    link.send((2,), (b"x",))
    with pytest.raises(LocalProtocolError, match="window of channel 2"):
        link.send((1, 2), (b"y",))
    assert link.channel(1).next == 0
