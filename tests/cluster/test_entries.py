"""Entries of the shared log: golden bytes in both directions, damage is detected, and only valid entries count."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from fyrehose.cluster import entries
from fyrehose.cluster.entries import HEADER, EntryKind, EntryWriter, LogEntry, Piece, Validity, divide
from fyrehose.cluster.members import Members
from fyrehose.journal.exchange import Batches
from fyrehose.journal.format import SEGMENT_MAGIC, UNKNOWN, Damage, Newer

A, B = EntryWriter("a", 0x0102030405060708), EntryWriter("b", 2)
DATA = LogEntry(EntryKind.DATA, 7, A, 0x1000, b"batch", True, bytes(range(16)), 0x0A0B0C0D, 0x01020304)
GOLDEN = bytes.fromhex(
    # magic, version 3, kind 3, part, one byte of name
    "46595245 03 03 01 01"
    # epoch, position, incarnation
    "0700000000000000 0010000000000000 0807060504030201"
    # five bytes of data; the checksum of what follows the header
    "05000000 ef5fce59"
    # identity of the journal; chain before and after; the checksum of the header
    "000102030405060708090a0b0c0d0e0f 0d0c0b0a 04030201 00000000 ae784828"
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


def test_an_entry_has_the_specified_bytes() -> None:
    assert DATA.pack() == GOLDEN
    assert LogEntry.unpack(GOLDEN) == DATA


@pytest.mark.parametrize("entry", [takeover(1, 0), checkpoint(3, 64), data(1 << 60, 1 << 50, b"x" * 70_000)])
def test_every_kind_of_entry_survives_a_round_trip(entry: LogEntry) -> None:
    assert LogEntry.unpack(memoryview(entry.pack())) == entry


def test_an_entry_with_a_list_of_members_has_the_specified_bytes() -> None:
    entry = LogEntry(EntryKind.MEMBERS, 7, A, 64, members=Members(12, ("a", "node-2"), places=1))
    assert entry.pack().endswith(b"a12 1 a node-2")
    assert LogEntry.unpack(entry.pack()) == entry
    assert entry.end == 64


def of_version(version: int, entry: LogEntry) -> bytes:
    """Return *entry* as another version packs it, with the checksum of its header."""
    packed = bytearray(entry.pack())
    packed[4] = version
    packed[HEADER.size - 4 : HEADER.size] = crc32c(packed[: HEADER.size - 4]).to_bytes(4, "little")
    return bytes(packed)


def test_an_entry_of_the_version_before_has_no_list_of_members() -> None:
    packed = of_version(2, checkpoint(3, 64))
    assert packed[4] == 2
    assert LogEntry.unpack(packed) == checkpoint(3, 64)


def test_the_list_of_members_of_the_last_entry_that_counts_applies() -> None:
    one, two = Members(1, ("a",), 1), Members(2, ("a", "b"))
    rule = Validity()
    assert rule.counts(changed(takeover(1, 0), members=one))
    assert rule.counts(data(1, 0, b"ab"))
    assert not rule.counts(LogEntry(EntryKind.MEMBERS, 2, A, 2, members=two))
    assert rule.members == one
    assert rule.counts(LogEntry(EntryKind.MEMBERS, 1, A, 2, members=two))
    assert rule.members == two
    assert rule.counts(takeover(2, 2)), "of a server that knows no lists yet"
    assert rule.members == two


def test_the_members_do_not_change_within_a_batch() -> None:
    rule = Validity()
    assert rule.counts(takeover(1, 0))
    assert rule.counts(data(1, 0, b"ab", part=True))
    assert not rule.counts(LogEntry(EntryKind.MEMBERS, 1, A, 2, members=Members(1, ("a",))))


def test_a_log_begins_with_the_members_of_its_first_entry() -> None:
    rule = Validity()
    rule.begin(changed(checkpoint(4, 64), members=Members(1, ("a",))))
    assert rule.members == Members(1, ("a",))


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


def test_an_entry_of_a_newer_version_is_refused_as_newer() -> None:
    with pytest.raises(Newer, match="version 4, this reads 3"):
        LogEntry.unpack(of_version(4, DATA))


def test_invalid_values_are_refused_although_the_checksums_match() -> None:
    for invalid in (
        changed(DATA, data=b""),
        changed(takeover(1, 0), kind=EntryKind.MEMBERS),
        changed(checkpoint(1, 0), part=True),
    ):
        with pytest.raises(Damage, match="do not agree"):
            LogEntry.unpack(invalid.pack())


@pytest.mark.parametrize("listed", [b"x", b"1 0", b"1 0 a a", b"1 0 a b\n", b"1 0 " + b"x" * 65, b"\xff", b"1 0  a"])
def test_an_invalid_list_of_members_is_damage(listed: bytes) -> None:
    with pytest.raises(Damage, match="invalid list of members"):
        LogEntry.unpack(changed(takeover(1, 0), data=listed).pack())


def test_two_changes_of_the_members_at_one_position_have_different_idents() -> None:
    two, three = (LogEntry(EntryKind.MEMBERS, 1, A, 0, members=Members(version, ("a",))) for version in (2, 3))
    assert two.ident != three.ident


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


def test_an_entry_of_a_deposed_leader_does_not_count() -> None:
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
def test_the_first_entry_that_is_left_gives_epoch_and_end_of_the_log(first: LogEntry) -> None:
    rule = Validity()
    rule.begin(first)
    assert rule.counts(first)
    assert (rule.epoch, rule.end) == (4, 100)
    assert rule.counts(data(4, 100, b"x"))


def test_an_entry_of_another_journal_or_with_another_checksum_does_not_count() -> None:
    mine, other = bytes(15) + b"1", bytes(15) + b"2"
    rule = Validity()
    first = changed(checkpoint(3, 64), identity=mine, chain=7, after=7)
    rule.begin(first)
    assert rule.counts(first)
    foreign = changed(takeover(4, 64), identity=other, chain=7, after=7)
    assert not rule.counts(foreign), "another journal of the same length"
    assert not rule.counts(changed(foreign, identity=UNKNOWN)), "an empty journal is not this one"
    assert not rule.counts(changed(foreign, identity=mine, chain=8, after=8)), "a copy that went on by itself"
    assert rule.counts(changed(foreign, identity=mine))
    part = changed(data(4, 64, b"ab", part=True), identity=mine, chain=7, after=7)
    assert rule.counts(part)
    assert rule.counts(changed(part, position=66, part=False, after=9))
    assert (rule.end, rule.chain) == (68, 9)
    assert not rule.counts(changed(data(4, 68, b"x"), identity=mine, chain=7, after=10))


def test_the_first_segment_gives_an_empty_log_its_identity() -> None:
    rule = Validity()
    rule.begin(takeover(1, 0))
    assert rule.counts(takeover(1, 0))
    assert rule.counts(changed(data(1, 0, b"ab"), identity=bytes(range(16)), after=5))
    assert rule.identity == bytes(range(16))


def test_the_shared_log_cannot_begin_with_data() -> None:
    with pytest.raises(Damage, match="begins with data"):
        Validity().begin(data(1, 0, b"x"))


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.integers(5, 30))
@settings(max_examples=200)
def test_batches_divided_over_entries_keep_their_bytes_and_count(batches: list[bytes], most: int) -> None:
    rule = Validity()
    assert rule.counts(takeover(1, 0))
    joined = b""
    chains = [crc32c(b"".join(batches[: at + 1])) for at in range(len(batches))]
    for piece in divide(0, 0, list(map(Batches, batches, chains)), most):
        assert len(piece.data) <= most
        assert rule.counts(
            attrs.evolve(data(1, piece.position, piece.data, piece.part), chain=piece.chain, after=piece.after)
        )
        joined += piece.data
        assert piece.part or piece.after == crc32c(joined)
    assert joined == b"".join(batches)
    assert rule.end == rule.reached == len(joined)


def test_an_entry_never_spans_the_beginning_of_a_segment() -> None:
    segment = SEGMENT_MAGIC + b"12345678"
    batches = [Batches(b"aaaa", 1), Batches(b"bbbb", 2), Batches(segment, 3), Batches(b"cccc", 4)]
    pieces = list(divide(100, 9, batches, 1000))
    assert pieces == [Piece(100, b"aaaabbbb", False, 9, 2), Piece(108, segment + b"cccc", False, 2, 4)]


def test_small_batches_share_an_entry_and_large_ones_are_divided() -> None:
    pieces = list(divide(0, 9, [Batches(b"aa", 1), Batches(b"bb", 2), Batches(b"c" * 9, 3), Batches(b"d", 4)], 4))
    assert pieces == [
        Piece(0, b"aabb", False, 9, 2),
        Piece(4, b"cccc", True, 2, 2),
        Piece(8, b"cccc", True, 2, 2),
        Piece(12, b"c", False, 2, 3),
        Piece(13, b"d", False, 3, 4),
    ]


def test_the_largest_entry_fits_into_a_message_of_one_mebibyte() -> None:
    largest = LogEntry(EntryKind.DATA, 1, EntryWriter("n" * entries.MAX_WRITER, 1), 0, bytes(entries.MAX_DATA))
    assert len(largest.pack()) <= entries.MAX_ENTRY < 1 << 20
