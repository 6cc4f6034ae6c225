"""The messages between servers: invalid, late and own ones, and those of another server with the same name."""

from __future__ import annotations

import json

import pytest

from fyrehose.cluster.entries import EntryWriter
from fyrehose.cluster.peers import MAX_MESSAGE, MOST_PEERS, Peers
from fyrehose.cluster.role import Role
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.errors import ConfigError


def peers(name: str, incarnation: int = 1) -> Peers:
    return Peers(ReplicationSettings(name=name, address=f"{name}:1"), incarnation)


def said(by: Peers, position: int = 0, leaving: bool = False) -> bytes:
    return by.pack(Role(EntryWriter(by.settings.name, by.incarnation), position), leaving, now=0.0)


def test_a_server_is_described_by_its_last_message() -> None:
    here, there = peers("a"), peers("b")
    heard = here.hear(said(there, position=7), 12.0)
    assert heard is not None
    assert not heard.leads
    assert here.address_of("b") == "b:1"
    assert here.position_of("b") == 7
    assert (here.address_of("c"), here.address_of(None), here.position_of("c")) == ("", "", 0)
    assert [peer.name for peer in here.heard_since(11.0)] == ["b"]
    assert not here.heard_since(12.0)


def test_a_leader_that_has_handed_over_has_left_even_if_an_earlier_message_arrives_later() -> None:
    here, there = peers("a"), peers("b")
    before = said(there)
    here.hear(said(there, leaving=True), 1.0)
    late = here.hear(before, 2.0)
    again = here.hear(said(peers("b", 2)), 3.0)
    assert late is not None
    assert again is not None
    assert here.has_left(late.writer)
    assert not here.has_left(again.writer)


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


def test_a_crowd_of_servers_displaces_those_that_were_silent_for_longest() -> None:
    here = peers("a")
    for number in range(MOST_PEERS + 20):
        assert here.hear(said(peers(f"s{number}")), float(number)) is not None
        here.hear(said(peers("b")), float(number))
    assert len(here.others) == MOST_PEERS
    assert {"b", f"s{MOST_PEERS + 19}"} <= here.others.keys()


def test_messages_that_are_too_large_or_have_no_name_of_a_server_are_ignored() -> None:
    here = peers("a")
    message = json.loads(said(peers("b")))
    for changed in ({"name": "b" * 1000}, {"name": "b\n"}, {"name": 7}, {"journal": "x" * MAX_MESSAGE}):
        assert here.hear(json.dumps({**message, **changed}).encode(), 1.0) is None
    assert not here.others
