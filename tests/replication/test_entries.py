"""Entries of the shared log: golden bytes in both directions, damage is detected, and only valid entries count."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fyrehose.journal.format import SEGMENT_MAGIC, Damage, Newer
from fyrehose.replication import entries
from fyrehose.replication.entries import EntryKind, EntryWriter, LogEntry, Validity, divide

A, B = EntryWriter("a", 0x0102030405060708), EntryWriter("b", 2)
DATA = LogEntry(EntryKind.DATA, 7, A, 0x1000, b"batch", part=True)
GOLDEN = bytes.fromhex(
    # magic, version 1, kind 3, part, one byte of name
    "46595245 01 03 01 01"
    # epoch, position, incarnation
    "0700000000000000 0010000000000000 0807060504030201"
    # five bytes of data; checksums of what follows and of the header
    "05000000 ef5fce59 00000000 446a468b"
    # "a" "batch"
    "61 6261746368"
)


def data(epoch: int, position: int, content: bytes, part: bool = False) -> LogEntry:
    return LogEntry(EntryKind.DATA, epoch, A, position, content, part)


def changed(entry: LogEntry, **changes: Any) -> LogEntry:
    return attrs.evolve(entry, **changes)


def takeover(epoch: int, position: int) -> LogEntry:
    return LogEntry(EntryKind.TAKEOVER, epoch, B, position)


def checkpoint(epoch: int, position: int) -> LogEntry:
    return LogEntry(EntryKind.CHECKPOINT, epoch, A, position)


def test_the_bytes_of_an_entry() -> None:
    assert DATA.pack() == GOLDEN
    assert LogEntry.unpack(GOLDEN) == DATA


@pytest.mark.parametrize("entry", [takeover(1, 0), checkpoint(3, 64), data(1 << 60, 1 << 50, b"x" * 70_000)])
def test_every_kind_of_entry_survives_a_round_trip(entry: LogEntry) -> None:
    assert LogEntry.unpack(memoryview(entry.pack())) == entry


def test_every_flipped_bit_of_an_entry_is_detected() -> None:
    for bit in range(8 * len(GOLDEN)):
        damaged = bytearray(GOLDEN)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damage):
            LogEntry.unpack(damaged)


def test_every_truncated_entry_is_detected() -> None:
    for size in range(len(GOLDEN)):
        with pytest.raises(Damage):
            LogEntry.unpack(GOLDEN[:size])
    with pytest.raises(Damage):
        LogEntry.unpack(GOLDEN + b"\0")


def test_an_entry_of_a_newer_version_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "VERSION", 2)
    packed = DATA.pack()
    monkeypatch.setattr(entries, "VERSION", 1)
    with pytest.raises(Newer, match="version 2, this reads 1"):
        LogEntry.unpack(packed)


def test_invalid_values_are_refused_although_the_checksums_match() -> None:
    for invalid in (
        changed(DATA, data=b""),
        changed(takeover(1, 0), data=b"x"),
        changed(checkpoint(1, 0), part=True),
    ):
        with pytest.raises(Damage, match="invalid values"):
            LogEntry.unpack(invalid.pack())


def test_entries_of_two_incarnations_have_different_idents() -> None:
    later = changed(DATA, writer=EntryWriter("a", 9))
    assert DATA.ident != later.ident
    assert takeover(7, 0x1000).ident != DATA.ident


def test_entries_count_in_the_order_of_their_positions() -> None:
    rule = Validity()
    assert rule.counts(takeover(1, 0))
    assert rule.counts(data(1, 0, b"ab"))
    assert rule.counts(data(1, 2, b"c"))
    assert not rule.counts(data(1, 2, b"c"))
    assert not rule.counts(data(1, 4, b"d"))
    assert rule.end == 3


def test_a_deposed_leaders_entry_does_not_count() -> None:
    rule = Validity()
    assert rule.counts(takeover(1, 0))
    assert rule.counts(takeover(2, 0))
    assert not rule.counts(data(1, 0, b"ab"))
    assert not rule.counts(checkpoint(1, 0))
    assert rule.counts(data(2, 0, b"cd"))


def test_a_takeover_counts_only_in_a_greater_epoch_and_at_the_end() -> None:
    rule = Validity()
    assert rule.counts(takeover(5, 0))
    assert rule.counts(data(5, 0, b"ab"))
    assert not rule.counts(takeover(5, 2))
    assert not rule.counts(takeover(6, 0))
    assert rule.epoch == 5
    assert rule.counts(takeover(6, 2))


def test_an_incomplete_batch_does_not_count_after_a_takeover() -> None:
    rule = Validity()
    assert rule.counts(takeover(1, 0))
    assert rule.counts(data(1, 0, b"abc", part=True))
    assert rule.end == 0
    assert not rule.counts(checkpoint(1, 3))
    assert rule.counts(takeover(2, 0))
    assert not rule.counts(data(1, 3, b"def"))
    assert rule.counts(data(2, 0, b"xyz"))
    assert rule.end == 3


def test_a_batch_in_parts_counts_with_its_last_part() -> None:
    rule = Validity()
    assert rule.counts(takeover(1, 0))
    assert rule.counts(data(1, 0, b"abc", part=True))
    assert not rule.counts(takeover(2, 3))
    assert rule.counts(data(1, 3, b"d"))
    assert rule.end == 4
    assert rule.counts(checkpoint(1, 4))


@pytest.mark.parametrize("first", [takeover(4, 100), checkpoint(4, 100)])
def test_the_first_entry_that_is_left_says_epoch_and_end(first: LogEntry) -> None:
    rule = Validity()
    rule.begin(first)
    assert rule.counts(first)
    assert (rule.epoch, rule.end) == (4, 100)
    assert rule.counts(data(4, 100, b"x"))


def test_the_shared_log_cannot_begin_with_data() -> None:
    with pytest.raises(Damage, match="begins with data"):
        Validity().begin(data(1, 0, b"x"))


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.integers(5, 30))
@settings(max_examples=200)
def test_divided_batches_are_the_same_bytes_and_count(batches: list[bytes], most: int) -> None:
    rule = Validity()
    assert rule.counts(takeover(1, 0))
    joined = b""
    for position, content, part in divide(0, batches, most):
        assert len(content) <= most
        assert rule.counts(data(1, position, content, part))
        joined += content
    assert joined == b"".join(batches)
    assert rule.end == rule.reached == len(joined)


def test_an_entry_never_spans_the_beginning_of_a_segment() -> None:
    segment = SEGMENT_MAGIC + b"12345678"
    pieces = list(divide(100, [b"aaaa", b"bbbb", segment, b"cccc"], 1000))
    assert pieces == [(100, b"aaaabbbb", False), (108, segment + b"cccc", False)]


def test_small_batches_share_an_entry_and_large_ones_are_divided() -> None:
    pieces = list(divide(0, [b"aa", b"bb", b"c" * 9, b"d"], 4))
    assert pieces == [(0, b"aabb", False), (4, b"cccc", True), (8, b"cccc", True), (12, b"c", False), (13, b"d", False)]


def test_the_largest_entry_fits_into_a_message_of_one_mebibyte() -> None:
    largest = LogEntry(EntryKind.DATA, 1, EntryWriter("n" * entries.MAX_WRITER, 1), 0, bytes(entries.MAX_DATA))
    assert len(largest.pack()) <= entries.MAX_ENTRY < 1 << 20
