"""Test runs: their columns are sliced and read without copying, and always agree with single records."""

from __future__ import annotations

from struct import pack, unpack
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.records import Delivery, Record, Run, halves

U64 = st.integers(0, (1 << 64) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Return any run, numbered or not, with each optional column present or not."""
    payloads = draw(st.lists(st.binary(max_size=12), min_size=1, max_size=8))
    n = len(payloads)
    columns: dict[str, Any] = {}
    seqs = draw(st.none() | st.integers(0, 1 << 62) | st.lists(U64, min_size=n, max_size=n))
    columns["producer_seq"] = pack(f"<{n}Q", *seqs) if isinstance(seqs, list) else seqs
    if draw(st.booleans()):
        columns["event_ids"] = draw(st.binary(min_size=16 * n, max_size=16 * n))
    if draw(st.booleans()):
        columns["event_times"] = pack(f"<{n}q", *draw(st.lists(I64, min_size=n, max_size=n)))
    run = Run.of("s", payloads, source="test", **columns)
    return run.numbered(draw(st.integers(1, 1 << 40)), 1_000_000) if draw(st.booleans()) else run


def test_records_of_a_run_come_from_its_columns() -> None:
    run = Run.of("s", [b"ab", b"", b"cde"], source="figg", producer="p", topic="t", producer_seq=7)
    assert run.lengths == unpack("12s", pack("<3I", 2, 0, 3))[0]
    assert run.payload == b"abcde"
    assert len(run) == 3
    assert run.size == 17
    assert list(run.sizes) == [2, 0, 3]
    assert [bytes(payload) for payload in run.payloads()] == [b"ab", b"", b"cde"]
    assert list(run.producer_seqs() or ()) == [7, 8, 9]
    assert {record.seq for record in run.records()} == {0}, "a draft has a number"


def test_a_numbered_run_shares_the_columns_of_its_draft() -> None:
    draft = Run.of("s", [b"ab", b"c"], source="figg", producer_seq=7, topic="t")
    run = draft.numbered(5, 1_000_000)
    assert run.payload is draft.payload
    assert run.lengths is draft.lengths
    assert (run.first_seq, run.last_seq, run.time) == (5, 6, 1_000_000)
    assert attrs.evolve(run, first_seq=0, time=0) == draft
    assert list(run.records())[1] == Record(
        stream="s",
        seq=6,
        time=1_000_000,
        source="figg",
        producer=None,
        topic="t",
        content_type=None,
        producer_seq=8,
        event_id=None,
        event_time=None,
        payload=b"c",
    )


@given(runs(), st.data())
def test_a_slice_has_the_records_of_its_range(run: Run, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(run)))
    stop = data.draw(st.integers(start, len(run) + 1))
    assert list(run.slice(start, stop).records()) == list(run.records())[start:stop]


@given(runs(), st.data())
def test_a_slice_of_a_slice_has_the_records_of_both_ranges(run: Run, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(run) - 1))
    inner = data.draw(st.integers(0, len(run) - start))
    twice = run.slice(start, len(run)).slice(inner, len(run))
    assert list(twice.records()) == list(run.records())[start + inner :]


@given(runs(), st.integers(0, 40))
def test_fitting_is_the_most_records_and_at_least_one(run: Run, max_bytes: int) -> None:
    fitting = run.fitting(max_bytes)
    sizes = list(run.sizes)
    assert 1 <= fitting <= len(run)
    assert fitting == 1 or sum(sizes[:fitting]) <= max_bytes
    assert fitting == len(run) or sum(sizes[: fitting + 1]) > max_bytes


@given(runs())
def test_size_counts_all_columns(run: Run) -> None:
    columns = [column for column in (run.producer_seq, run.event_ids, run.event_times) if isinstance(column, bytes)]
    assert run.size == sum(run.sizes) + 4 * len(run) + sum(map(len, columns))


def test_a_delivery_is_encoded_once_for_each_protocol() -> None:
    delivery = Delivery(
        (
            Run.of("s", [b"a", b"b"], source="x").numbered(3, 1),
            Run.of("s", [b"c"], source="y").numbered(5, 1),
        )
    )
    calls: list[str] = []

    def figg(runs: tuple[Run, ...]) -> bytes:
        calls.append("figg")
        return b"|".join(bytes(payload) for run in runs for payload in run.payloads())

    def lines(runs: tuple[Run, ...]) -> int:
        calls.append("lines")
        return len(runs)

    assert [delivery.encoded(figg) for _ in range(3)] == [b"a|b|c"] * 3
    assert delivery.encoded(lines) == 2
    assert calls == ["figg", "lines"]
    assert (delivery.first_seq, delivery.last_seq, len(delivery), delivery.size) == (3, 5, 3, 15)


def test_splitting_a_publish_in_halves_keeps_the_order_of_messages() -> None:
    runs = [Run.of("a", [b"1"], source="x"), Run.of("b", [b"2", b"3", b"4", b"5"], source="x")]
    found = [[bytes(payload) for run in half for payload in run.payloads()] for half in halves(runs)]
    assert found == [[b"1", b"2"], [b"3", b"4", b"5"]]
