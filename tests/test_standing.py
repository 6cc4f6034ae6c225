"""What a server says of itself: alone, leading or following, and whether it may write."""

from __future__ import annotations

import pytest

from fyrehose.errors import Closed, Following, ReadOnly, Unreplicated
from fyrehose.standing import ServerRole, Standing


def test_a_server_that_refuses_nothing_may_write() -> None:
    standing = Standing()
    standing.check_writable()
    assert (standing.role, standing.may_write, standing.leads_alone) == (ServerRole.ALONE, True, True)


def test_a_server_that_refuses_publishes_raises_the_reason_and_leads_nothing() -> None:
    full = ReadOnly("full")
    standing = Standing().refusing(full)
    assert (standing.may_write, standing.leads_alone) == (False, False)
    with pytest.raises(ReadOnly) as caught:
        standing.check_writable()
    assert caught.value is full


def test_the_first_refusal_counts() -> None:
    """A follower whose disk is full sends publishers to the leader, whose disk may have room."""
    following = Standing(ServerRole.FOLLOWER, refusal=Following("publish there"))
    assert following.refusing(ReadOnly("full")) is following


@pytest.mark.parametrize(
    ("refusal", "elsewhere"),
    [(None, False), (ReadOnly("full"), False), (Closed("x"), False), (Following("x"), True), (Unreplicated("x"), True)],
)
def test_only_a_cluster_has_another_server_that_may_lead(refusal: ReadOnly | Closed | None, elsewhere: bool) -> None:
    assert Standing(refusal=refusal).elsewhere == elsewhere
