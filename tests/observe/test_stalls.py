"""The count of the reactor's stalls, and the longest of them."""

from __future__ import annotations

from fyrehose.observe.stalls import Stalls


def test_stalls_are_counted_and_the_longest_is_kept() -> None:
    stalls = Stalls()
    for seconds in (3.0, 9.5, 2.1):
        stalls.add(seconds)
    assert (stalls.count, stalls.longest) == (3, 9.5)
