"""The messages between servers: invalid, late and own ones, and those of another server with the same name."""

from __future__ import annotations

import json
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.cluster.entries import EntryWriter
from fyrehose.cluster.peers import DRIFT, MAX_MESSAGE, MOST_PEERS, MOST_STRANGERS, ClusterPeer, Peers
from fyrehose.cluster.role import Append, Role
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.errors import ConfigError
from fyrehose.journal.format import UNKNOWN


def peers(name: str, incarnation: int = 1) -> Peers:
    return Peers(ReplicationSettings(name=name, address=f"{name}:1"), incarnation)


#: Where journals end, and the checksums there.
ENDS = ((1, 1), (1, 2), (2, 1), (2, 2))


def said(by: Peers, position: int = 0) -> bytes:
    return by.pack(Role(by.writer, position), leaving=False, now=0.0)


def test_a_server_is_described_by_its_last_message() -> None:
    here, there = peers("a"), peers("b")
    heard = here.hear(said(there, position=7), 12.0)
    assert heard is not None
    assert not heard.leads
    assert (here.last_of("b").address, here.last_of("b").position) == ("b:1", 7)
    assert (here.last_of("c").address, here.last_of("").heard, here.last_of("c").position) == ("", -inf, 0)
    assert [peer.name for peer in here.heard_since(11.0)] == ["b"]
    assert not here.heard_since(12.0)


def test_message_without_further_fields_says_nothing_more() -> None:
    """A server of another version sends fewer fields; it has neither records nor wishes."""
    here = peers("a")
    heard = here.hear(b'{"name": "b", "incarnation": 5, "epoch": 1, "state": "follower"}', 1.0)
    assert heard == ClusterPeer(heard=1.0, name="b", incarnation=5, state="follower", epoch=1)
    assert (heard.position, heard.reported, heard.applied, heard.end, heard.leaving) == (0, 0, 0, 0, False)
    assert {heard.address, heard.journal, heard.successor, heard.unfit} == {""}
    assert heard.answer_to(here.writer) == inf


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 60_000,
        b"{}",
        b'{"name": "b"}',
        json.dumps({"name": "b", "incarnation": 1, "epoch": "x", "state": "leader"}).encode(),
        json.dumps({"name": "b", "incarnation": 1, "epoch": 1, "state": "leader", "reported": None}).encode(),
    ],
)
def test_messages_that_no_server_of_the_cluster_sends_are_ignored(message: bytes) -> None:
    here = peers("a")
    assert here.hear(message, 1.0) is None
    assert not here.others


def test_own_messages_and_those_of_an_earlier_start_are_ignored() -> None:
    here = peers("a", 2)
    assert here.hear(said(here), 1.0) is None
    earlier = said(peers("a", 1))
    for _ in range(10):
        assert here.hear(earlier, 2.0) is None


def test_another_server_with_the_same_name_is_noticed_once_it_answers() -> None:
    here, rival = peers("a", 1), peers("a", 2)
    rival.hear(said(here), 1.0)
    with pytest.raises(ConfigError, match="has the same name, 'a'"):
        here.hear(said(rival), 1.0)


@pytest.mark.parametrize("seed", range(10))
def test_the_last_message_of_each_server_counts_unless_its_journal_is_another_one(
    seed: int, log_lines: list[str]
) -> None:
    """Journals differ if their identities do, or their bytes up to the same end; an empty one is like any other."""
    dice, here = Random(seed), peers("a")
    last, left, strangers = dict[str, int](), set[EntryWriter](), set[EntryWriter]()
    journals = [(UNKNOWN, 0, 0), *((identity, end, chain) for identity in (b"x", b"y") for end, chain in ENDS)]
    for now in range(1200):
        ours, theirs = dice.choices(journals, [2, *[3] * len(ENDS), *[1] * len(ENDS)], k=2)
        there, leaving = peers(dice.choice((f"s{now}", "b", "c", "d")), dice.randint(1, 3)), dice.random() < 0.1
        name = there.settings.name
        message = there.pack(Role(there.writer, theirs[1], identity=theirs[0], chain=theirs[2]), leaving, now=0.0)
        heard = here.hear(message, now, Role(here.writer, ours[1], identity=ours[0], chain=ours[2]))
        if UNKNOWN in (ours[0], theirs[0]) or (ours[0] == theirs[0] and (ours[1] != theirs[1] or ours == theirs)):
            assert heard is here.last_of(name)
            if name not in last and len(last) == MOST_PEERS:
                del last[min(last, key=lambda each: last[each])]
            last[name] = now
            left |= {there.writer} if leaving else set()
        else:
            assert heard is None
            last.pop(name, None)
            strangers.add(there.writer)
        assert {name: peer.heard for name, peer in here.others.items()} == last
        assert here.has_left(there.writer) == (there.writer in left)
        assert here.stranger in ({each.name for each in strangers} or {""})
    assert len(last) > MOST_PEERS - 4, "those that were silent for longest are forgotten"
    ignored = [line for line in log_lines if "is ignored, because its journal" in line]
    assert len(ignored) == min(len(strangers), MOST_STRANGERS), "each is logged once"


def test_messages_that_are_too_large_or_have_no_name_of_a_server_are_ignored() -> None:
    here = peers("a")
    message = json.loads(said(peers("b")))
    for changed in ({"name": "b" * 1000}, {"name": "b\n"}, {"name": 7}, {"journal": "x" * MAX_MESSAGE}):
        assert here.hear(json.dumps({**message, **changed}).encode(), 1.0) is None
    assert not here.others


moments = st.integers(0, 1000).map(lambda tenths: tenths / 10)


@given(asked=moments, way=st.integers(0, 50), confirmed=moments, late=moments, ours=moments, theirs=moments)
def test_age_that_a_leader_answers_is_never_less_than_the_true_one(
    asked: float, way: int, confirmed: float, late: float, ours: float, theirs: float
) -> None:
    """The clocks of both servers differ by any time; the follower's question takes *way* tenths to the leader."""
    follower, leader = peers("f", 1), peers("l", 2)
    heard = asked + way / 10
    leader.hear(follower.pack(Role(follower.writer, 0), False, now=asked + ours), heard + theirs)
    role = Role(leader.writer, 0)
    assert role.take_over(0)
    (append,) = [action for action in role.take() if isinstance(action, Append)]
    role.accepted(append.entry, 1)
    now = max(heard, confirmed) + late
    for proven in (confirmed + theirs, -inf):
        message = leader.pack(role, False, confirmed=proven, now=now + theirs)
        said = follower.hear(message, now + ours)
        assert said is not None
        answer, truth = said.answer_to(follower.writer), (confirmed + ours if proven > -inf else -inf)
        if proven == -inf:
            assert answer == inf, "the leader knows nothing yet"
            continue
        assert answer <= truth + 1e-6, f"records up to {truth} are known, and {answer} is answered"
        assert answer >= truth - way / 10 - DRIFT * abs(confirmed - heard) - 1e-6, "the age is exaggerated"
