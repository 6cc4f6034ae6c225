"""The choice of the network that loses a member when there are too many."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from fyrehose.net.crowds import Crowd


def oldest(crowd: Crowd[Any]) -> Any:
    """Return the oldest member of the network with the most members, or None."""
    return next(iter(crowd.largest()), None)


def test_the_largest_network_gives_up_its_oldest_member() -> None:
    crowd: Crowd[str] = Crowd()
    assert oldest(crowd) is None
    for member, network in (("a", "x"), ("b", "y"), ("c", "y")):
        crowd.add(member, network)
    assert oldest(crowd) == "b"
    crowd.discard("b")
    crowd.discard("b")
    assert len(crowd) == 2
    assert oldest(crowd) in ("a", "c")
    crowd.discard("a")
    crowd.discard("c")
    assert oldest(crowd) is None


@pytest.mark.slow
def test_crowd_agrees_with_a_simple_model() -> None:
    dice = Random(7)
    crowd: Crowd[int] = Crowd()
    plain: dict[int, int] = {}
    for number in range(3_000):
        if plain and dice.random() < 0.45:
            gone = dice.choice(list(plain))
            del plain[gone]
            crowd.discard(gone)
        else:
            plain[number] = dice.randrange(6)
            crowd.add(number, str(plain[number]))
        found = oldest(crowd)
        if not plain:
            assert found is None
            continue
        counts = {network: sum(one == network for one in plain.values()) for network in plain.values()}
        assert found is not None
        assert counts[plain[found]] == max(counts.values())
        preferred = str(dice.randrange(6))
        if found != (chosen := next(iter(crowd.largest(preferred)))):
            assert str(plain[chosen]) == preferred
            assert counts[plain[chosen]] == counts[plain[found]]
        assert found == next(member for member in plain if plain[member] == plain[found])
