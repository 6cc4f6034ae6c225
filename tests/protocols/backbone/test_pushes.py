"""The window of a publisher: unconfirmed, confirmed and expired pushes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fyrehose.protocols.backbone.pushes import PACE, Pushes
from fyrehose.protocols.backbone.rates import Rates
from fyrehose.records import Run


def make(
    window: int = 4, window_bytes: int = 1_000, timeout: float = 5.0, retries: int = 0, pace: int = 1_000_000
) -> Pushes:
    return Pushes(window, window_bytes, timeout, retries, Rates(pace, pace, most=1))


def confirmed(pushes: Pushes, first: int, *payloads: bytes) -> list[tuple[object, int]]:
    run = Run.of("backbone", payloads, source="backbone").numbered(first, 0)
    return [(push.handle, seq) for push, seq in pushes.delivered(run)]


def test_deliver_with_the_same_bytes_confirms_a_push() -> None:
    pushes = make()
    for handle, payload in enumerate((b"a", b"b", b"a")):
        pushes.add(payload, handle)
    assert not pushes.idle
    assert pushes.take(0, 0.0) == [b"a", b"b", b"a"]
    assert confirmed(pushes, 1, b"x", b"a", b"b", b"b") == [(0, 2), (1, 3)]
    assert confirmed(pushes, 5, b"a", b"a") == [(2, 5)]
    assert pushes.idle
    assert confirmed(pushes, 7, b"a") == []


def test_records_published_before_the_push_do_not_confirm_it() -> None:
    pushes = make()
    pushes.add(b"a", 0)
    pushes.take(10, 0.0)
    assert confirmed(pushes, 9, b"a", b"a") == []  # repaired history with the same bytes
    assert confirmed(pushes, 11, b"a") == [(0, 11)]


def test_the_window_counts_bytes() -> None:
    pushes = make(window_bytes=10)
    for payload in (bytes(50), bytes(5), bytes(5), b"!"):
        pushes.add(payload, len(payload))
    assert pushes.take(0, 0.0) == [bytes(50)]  # one may be of any size
    confirmed(pushes, 1, bytes(50))
    assert pushes.take(0, 0.0) == [bytes(5), bytes(5)]
    assert not pushes.has_room


def test_pace_limits_pushes() -> None:
    pushes = make(window=1_000, pace=100)
    for i in range(150):
        pushes.add(b"%d" % i, i)
    assert len(pushes.take(0, 0.0)) == 100
    assert pushes.next_due(0.0, True) == PACE
    assert pushes.next_due(0.0, False) == 5.0
    assert len(pushes.take(0, 0.1)) == 10


def test_push_expires_without_deliver() -> None:
    pushes = make(timeout=5.0)
    pushes.add(b"a", "a")
    pushes.take(0, 0.0)
    pushes.add(b"b", "b")
    pushes.take(0, 1.0)
    assert pushes.next_due(1.0, True) == 5.0
    assert pushes.expired(4.9) == []
    assert [push.handle for push in pushes.expired(5.0)] == ["a"]
    assert pushes.next_due(5.0, True) == 6.0
    assert confirmed(pushes, 1, b"b") == [("b", 1)]
    assert pushes.next_due(5.0, True) is None
    assert pushes.expired(99.0) == []
    assert confirmed(pushes, 2, b"a") == []


def test_a_retry_pushes_again_and_either_deliver_confirms() -> None:
    pushes = make(timeout=5.0, retries=1)
    pushes.add(b"a", "a")
    pushes.take(0, 0.0)
    pushes.add(b"b", "b")
    assert pushes.expired(5.0) == []
    assert pushes.take(0, 5.0) == [b"a", b"b"]
    assert confirmed(pushes, 1, b"a", b"a") == [("a", 1)]
    assert pushes.expired(10.0) == []
    assert pushes.take(2, 10.0) == [b"b"]
    assert [push.handle for push in pushes.expired(15.0)] == ["b"]
    assert pushes.idle


@given(st.lists(st.sampled_from(["add", "take", "expire", "deliver"]), max_size=40), st.integers(1, 5))
def test_pushes_are_sent_and_sent_again_in_the_order_in_which_they_were_added(steps: list[str], window: int) -> None:
    """Whatever is sent is what waits of the smallest numbers; each push counts once, wherever it is."""
    pushes, now, added, seq = make(window=window, retries=100), 0.0, 0, 0
    waiting, sent = list[int](), list[int]()
    for step in [*steps, *["take", "deliver"] * (len(steps) + 1)]:
        if step == "add":
            pushes.add(b"%d" % added, added)
            waiting, added = [*waiting, added], added + 1
        elif step == "take":
            taken = [int(payload) for payload in pushes.take(seq, now)]
            fitting = max(0, window - len(sent))
            assert taken == waiting[:fitting]
            waiting, sent = waiting[fitting:], sent + taken
        elif step == "expire":
            now += 5.0
            assert pushes.expired(now) == []
            waiting, sent = sorted(sent + waiting), []
        elif sent:
            seq += 1
            assert confirmed(pushes, seq, b"%d" % sent[0]) == [(sent.pop(0), seq)]
        assert (pushes.has_room, pushes.unsent) == (len(waiting + sent) < window, sum(len(str(n)) for n in waiting))
    assert pushes.idle


def test_abandon_returns_unconfirmed_pushes() -> None:
    pushes = make(window=1)
    for i in range(3):
        pushes.add(b"%d" % i, i)
    pushes.take(0, 0.0)
    assert [push.handle for push in pushes.abandon()] == [0, 1, 2]
    assert pushes.idle
    assert confirmed(pushes, 1, b"0") == []
    assert pushes.expired(99.0) == []
