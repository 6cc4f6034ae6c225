"""The table of recent UUIDs."""

from __future__ import annotations

from fyrehose.protocols.eventbus.dedup import Seen


def test_uuids_expire_by_age_and_number() -> None:
    seen = Seen(most=2, age=10)
    assert seen.add(b"a", 0)
    assert not seen.add(b"a", 5)
    assert seen.add(b"b", 6)
    assert seen.add(b"c", 7), "the oldest, a, is dropped"
    assert len(seen) == 2
    assert seen.add(b"a", 8)
    assert seen.add(b"x", 18.5), "all others are too old"
    assert len(seen) == 1
    seen.forget(b"x")
    seen.forget(b"never")
    assert seen.add(b"x", 19)


def test_number_of_uuids_is_bounded() -> None:
    seen = Seen(most=100)
    for n in range(10_000):
        seen.add(b"%d" % n, 0)
    assert len(seen) == 100
