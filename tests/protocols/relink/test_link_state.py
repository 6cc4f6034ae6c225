"""The handshake parameters of a link from both points of view."""

from __future__ import annotations

import pytest

from fyrehose.protocols.relink.frames import Terms
from fyrehose.protocols.relink.link import Link


@pytest.mark.parametrize("connector", [False, True])
def test_link_uses_the_handshake_parameters_of_each_peer(connector: bool) -> None:
    terms = Terms(endpoint="e", connector_size=1, listener_size=8, connector_transactions=True)
    link = Link(terms, connector)
    ours, theirs = (link.our_size, link.our_transactions), (link.peer_size, link.peer_transactions)
    assert (ours, theirs) == (((1, True), (8, False)) if connector else ((8, False), (1, True)))
