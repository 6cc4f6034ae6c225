"""The records that a journal peer stores."""

from __future__ import annotations

from fyrehose.protocols.backbone.repair import RecentRuns
from fyrehose.records import Run


def run(first: int, *payloads: bytes) -> Run:
    return Run.of("backbone", payloads, source="backbone").numbered(first, 0)


def read(store: RecentRuns, first: int, last: int) -> list[tuple[int, bytes]]:
    return [
        (part.first_seq + i, bytes(payload))
        for part in store.read(first, last)
        for i, payload in enumerate(part.payloads())
    ]


def test_read_returns_exactly_the_range() -> None:
    store = RecentRuns(1_000)
    store.add(run(5, b"5", b"6", b"7"))
    store.add(run(1, b"1", b"2"))  # repaired later
    assert read(store, 0, 99) == [(1, b"1"), (2, b"2"), (5, b"5"), (6, b"6"), (7, b"7")]
    assert read(store, 2, 5) == [(2, b"2"), (5, b"5")]
    assert read(store, 3, 4) == []
    assert read(store, 6, 6) == [(6, b"6")]
    assert read(store, 8, 9) == []


def test_oldest_runs_are_removed_first() -> None:
    store = RecentRuns(100)
    for seq in range(1, 50):
        store.add(run(seq, bytes(6)))  # 10 with its length
        assert store.size <= 100
    assert [seq for seq, _ in read(store, 1, 99)] == list(range(40, 50))


def test_run_larger_than_the_limit_is_not_stored() -> None:
    store = RecentRuns(0)
    store.add(run(1, b""))
    assert (store.size, read(store, 1, 1)) == (0, [])
