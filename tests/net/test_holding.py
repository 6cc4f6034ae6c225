"""Refused connections are held for a while, within bounds."""

from __future__ import annotations

from collections import Counter
from random import Random

import attrs
import pytest
from twisted.internet.task import Clock

from fyrehose.net.holding import FIRST, FORGOTTEN, LONGEST, MOST_ADDRESSES, MOST_OF_ONE, Holding
from tests.doubles.references import references


@pytest.mark.parametrize("longest", [0.0, 2 * FIRST, LONGEST])
def test_the_delay_doubles_for_each_refusal_of_an_address_until_it_is_forgotten(longest: float) -> None:
    dice, clock, seen = Random(int(longest * 10)), Clock(), Counter[str]()
    holding = Holding(clock, longest)
    kinds = (holding.refusals, holding.handshakes)
    refused: dict[tuple[object, str], tuple[int, float]] = {}
    for _ in range(2_000):
        delays, network = dice.choice(kinds), dice.choice("abc")
        count, last = refused.get((delays, network), (0, 0.0))
        if clock.seconds() - last >= FORGOTTEN:
            count = 0
            seen["forgotten"] += last > 0
        if counts := dice.random() < 0.5:
            count += 1
            refused[delays, network] = count, clock.seconds()
        found = (delays.count if counts else delays.of)(network)
        assert found == (min(FIRST * 2 ** (count - 1), longest) if count else 0.0), f"after {count} refusals"
        seen["longest"] += count > 6
        if dice.random() < 0.05:
            clock.advance(dice.choice((1.0, FORGOTTEN - 1, FORGOTTEN)))
        if dice.random() < 0.01:
            longest = dice.choice((0.0, 2 * FIRST, LONGEST))
            holding.change(longest)
    assert min(seen["forgotten"], seen["longest"]) > 10, f"hardly tried: {seen}"


def test_the_table_of_refused_addresses_is_bounded_and_forgets_the_oldest() -> None:
    holding = Holding(Clock())
    for number in range(MOST_ADDRESSES):
        holding.refusals.count(str(number))
    assert holding.refusals.count("0") == 2 * FIRST
    before = references(holding.refusals)
    holding.refusals.count("one more")
    assert references(holding.refusals) == before
    assert holding.refusals.count("1") == FIRST, "it was the oldest, and is forgotten"
    assert holding.refusals.count("0") == 4 * FIRST


@attrs.define(eq=False)
class Held:
    """A connection that says how it was closed, and until when it is to be held."""

    network: str
    until: float
    ended: str = ""

    def end_delay(self) -> None:
        assert not self.ended, "it is closed twice"
        self.ended = "closed"

    def abort(self) -> None:
        assert not self.ended, "it is aborted after its end"
        self.ended = "aborted"


class Model:
    """The connections that are held, the oldest first, and those that are closing."""

    def __init__(self, seed: int, seen: Counter[str]) -> None:
        self.dice, self.seen, self.clock, self.freed = Random(seed), seen, Clock(), 0
        self.holding = Holding(self.clock, freed=self.free)
        self.held: list[Held] = []
        self.closing: list[Held] = []
        self.stopped, self.lost = False, 0
        self.most = (3, 10, 1_000)
        if seed % 2:
            self.most = (1_000,)
            for _ in range(MOST_OF_ONE - 2):
                self.hold("a", 60.0, 1_000)

    def free(self) -> None:
        self.freed += 1

    def hold(self, network: str, seconds: float, most: int) -> None:
        held = Held(network, self.clock.seconds() + seconds)
        counts = Counter(each.network for each in [*self.held, held])
        self.holding.hold(held, network, seconds, most)
        if self.stopped or not seconds:
            assert held.ended == "closed"
            self.closing.append(held)
            return
        self.held.append(held)
        if counts[network] > MOST_OF_ONE:
            self.expect_abort({network}, "too many of one network")
        elif len(self.held) > most:
            self.expect_abort({each for each in counts if counts[each] == max(counts.values())}, "too many")

    def expect_abort(self, networks: set[str], why: str) -> None:
        """Expect that the oldest connection of one of *networks* was aborted, and no other."""
        aborted = [each for each in self.held if each.ended]
        oldest = [next(each for each in self.held if each.network == network) for network in networks]
        assert [each.ended for each in aborted] == ["aborted"]
        assert aborted[0] in oldest, f"{why}: another one than the oldest of {networks} is aborted"
        self.end(aborted, why)

    def end(self, ended: list[Held], why: str) -> None:
        self.held = [each for each in self.held if each not in ended]
        self.closing += ended
        self.seen[why] += len(ended)

    def step(self) -> None:
        chance = self.dice.random()
        if chance < 0.5:
            most = self.dice.choice(self.most)
            self.hold(self.dice.choice("aab"), self.dice.choice((0.0, 0.5, 2.0, 5.0)), max(most, len(self.held)))
        elif chance < 0.7:
            self.clock.advance(self.dice.choice((0.25, 1.0)))
            self.end([each for each in self.held if each.until <= self.clock.seconds()], "time")
        elif chance < 0.98:
            gone = self.dice.choice([*self.held[:3], *self.closing, None])
            if gone is not None:
                self.holding.lost(gone)
                self.held, self.closing = ([one for one in of if one is not gone] for of in (self.held, self.closing))
                self.lost += 1
        elif chance < 0.985:
            self.holding.stop()
            self.stopped = True
            self.end(list(self.held), "stop")
        assert len(self.holding) == len(self.held) + len(self.closing)
        assert not [each.ended for each in self.held if each.ended], "a connection is held no more, before its time"
        assert all(each.ended for each in self.closing), "a connection is held too long"
        assert (self.freed, len(self.clock.getDelayedCalls())) == (self.lost, len(self.held))


def test_connections_are_held_for_their_time_within_the_bounds() -> None:
    seen: Counter[str] = Counter()
    for seed in range(20):
        model = Model(seed, seen)
        for _ in range(200):
            model.step()
    cases = ("time", "stop", "too many", "too many of one network")
    assert min(seen[each] for each in cases) > 5, f"hardly tried: {seen}"
