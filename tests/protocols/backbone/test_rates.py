"""Token buckets: grants, debts, bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fyrehose.protocols.backbone.rates import Rates


def test_key_gets_its_burst_at_once_and_then_its_rate() -> None:
    rates = Rates(10, 5)
    assert rates.take("a", 7, 0.0) == 5
    assert rates.take("a", 1, 0.05) == 0
    assert rates.take("a", 7, 0.3) == 3
    assert rates.take("a", 99, 60.0) == 5  # a burst is all that gathers


def test_charge_beyond_the_tokens_is_a_debt_that_the_rate_repays() -> None:
    rates = Rates(100, 50)
    assert rates.spend("a", 0, 0.0)
    rates.charge("a", 150, 0.0)
    assert not rates.spend("a", 0, 0.9)
    assert rates.spend("a", 0, 1.1)


def test_new_keys_share_one_bucket_when_the_table_is_full() -> None:
    rates = Rates(1, 1, most=2)
    assert [rates.take(key, 1, 0.0) for key in "abcde"] == [1, 1, 1, 0, 0]
    assert len(rates) == 2
    # After a second the buckets are full again and are forgotten, so that new keys get their own.
    assert [rates.take(key, 1, 1.0) for key in "cd"] == [1, 1]
    assert len(rates) == 2


def test_keys_whose_buckets_are_full_again_make_room_behind_one_that_is_busy() -> None:
    rates = Rates(1, 1, most=2)
    assert [rates.take(key, 1, 0.0) for key in ("busy", "idle")] == [1, 1]
    rates.charge("busy", 9, 0.5)
    assert [rates.take(key, 1, 2.0) for key in ("new", "newer")] == [1, 1], "one has the place, one the shared bucket"
    assert rates.take("newest", 1, 2.0) == 0


def test_flood_of_keys_keeps_the_table_bounded() -> None:
    rates = Rates(10, 10, most=100)
    assert rates.take("known", 1, 0.0) == 1
    for i in range(10_000):
        rates.take(i, 1, i / 100_000)
    assert len(rates) <= 100
    assert rates.take("known", 1, 0.1) == 1


@given(steps=st.lists(st.tuples(st.integers(0, 20), st.floats(0, 2)), max_size=40))
def test_granted_tokens_never_exceed_the_burst_plus_the_rate(steps: list[tuple[int, float]]) -> None:
    rates = Rates(4, 6)
    now = 0.0
    granted = 0
    for wanted, pause in steps:
        now += pause
        got = rates.take("a", wanted, now)
        assert 0 <= got <= wanted
        granted += got
        assert granted <= 6 + 4 * now + 1e-6


def test_rate_and_capacity_change_for_everybody() -> None:
    rates = Rates(rate=10, burst=10)
    assert rates.take("a", 4, 0.0) == 4
    rates.change(1, 2)
    assert rates.take("a", 10, 0.0) == 2, "a bucket keeps at most its new capacity"
    assert rates.take("a", 10, 1.0) == 1
    assert rates.take("b", 10, 1.0) == 2
