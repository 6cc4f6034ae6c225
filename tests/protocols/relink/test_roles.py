"""The terms of a link from both points of view."""

from __future__ import annotations

import pytest

from fyrehose.protocols.relink.handshake import Terms
from fyrehose.protocols.relink.roles import Roles


@pytest.mark.parametrize("connector", [False, True])
def test_roles_select_the_terms_of_each_peer(connector: bool) -> None:
    terms = Terms(endpoint="e", connector_size=1, listener_size=8, connector_transactions=True)
    roles = Roles(terms, connector)
    ours, theirs = (roles.our_size, roles.our_transactions), (roles.peer_size, roles.peer_transactions)
    assert (ours, theirs) == (((1, True), (8, False)) if connector else ((8, False), (1, True)))
