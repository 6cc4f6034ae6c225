"""Dead letters of listeners: what is kept, and how a letter describes it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from fyrehose.errors import ConfigError, Forbidden, InvalidName, NoRoomForKey, PayloadTooLarge, ReadOnly
from fyrehose.errors import TooManyStreamsFromPeer as TooMany
from fyrehose.options import build
from fyrehose.protocols.figg.server import FiggSettings
from fyrehose.records import MAX_NAME, Run
from fyrehose.subscriptions.letters import CLOSE, KEEP, KEEP_FORBIDDEN, MOST, SOURCE, joined, keeps, letter


@pytest.mark.parametrize(
    "error", [PayloadTooLarge("x"), InvalidName("x"), TooMany("x")], ids=lambda e: type(e).__name__
)
def test_messages_refused_for_good_become_dead_letters_if_the_option_says_so(error: Exception) -> None:
    assert [keeps(refused, error) for refused in (CLOSE, KEEP, KEEP_FORBIDDEN)] == [False, True, True]


def test_messages_refused_by_the_policy_become_dead_letters_only_if_the_option_says_so() -> None:
    assert [keeps(refused, Forbidden("x")) for refused in (CLOSE, KEEP, KEEP_FORBIDDEN)] == [False, False, True]


@pytest.mark.parametrize("error", [ReadOnly("full"), NoRoomForKey("later")], ids=lambda e: type(e).__name__)
def test_messages_that_can_be_published_later_do_not_become_dead_letters(error: Exception) -> None:
    assert not keeps(KEEP_FORBIDDEN, error)


def test_a_dead_letter_has_the_message_its_peer_and_the_reason() -> None:
    run = Run.of("orders", [b"no"], source="figg", producer="h:1", producer_seq=7, content_type="text/plain")
    kept = letter("figg", run, PayloadTooLarge("too large"))
    assert (kept.stream, bytes(kept.payload), kept.producer, kept.producer_seq) == ("dead.figg", b"no", "h:1", 7)
    assert (kept.topic, kept.content_type) == ("PayloadTooLarge 2 orders", "text/plain")
    assert kept.source == SOURCE, "no peer can give its records this source"


def test_a_dead_letter_has_valid_names_and_a_bounded_payload() -> None:
    run = Run.of("\ud800" + "\u20ac" * 300, [bytes(MOST + 1)], source="figg", content_type="c" * 300)
    kept = letter("figg", run, InvalidName("x"))
    assert len(kept.payload) == MOST
    assert kept.topic is not None
    assert kept.topic.startswith(f"InvalidName {MOST + 1} ?")
    assert len(kept.topic.encode()) <= MAX_NAME
    assert kept.content_type == "c" * MAX_NAME


@pytest.mark.parametrize("seed", range(10))
def test_joined_dead_letters_are_the_same_in_fewer_runs(seed: int) -> None:
    dice, labels = Random(seed), ("producer", "topic", "content_type")
    runs = [
        Run.of(
            "dead",
            [b"%d" % number] * dice.randint(1, 3),
            source=SOURCE,
            producer_seq=10 * number,
            **{label: dice.choice(("a", "a", None)) for label in labels},
        )
        for number in range(30)
    ]

    def letters(runs: Sequence[Run]) -> list[Any]:
        return [
            (payload, seq, *(getattr(run, label) for label in labels))
            for run in runs
            for payload, seq in zip(map(bytes, run.payloads()), run.producer_seqs() or (), strict=True)
        ]

    found = joined(runs)
    assert letters(found) == letters(runs)
    assert all(letters([one])[-1][2:] != letters([other])[0][2:] for one, other in pairwise(found)), "no run more"


def test_error_of_an_unknown_choice_says_what_is_expected() -> None:
    with pytest.raises(ConfigError) as caught:
        build(FiggSettings, "figg", {"refused": "keep"})
    assert str(caught.value) == (
        "invalid value 'keep' for option figg.refused: expected close, dead-letter or dead-letter+policy"
    )
