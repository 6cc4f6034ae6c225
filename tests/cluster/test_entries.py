"""Entries of the shared log: golden bytes in both directions, damage is detected, and only valid entries count."""

from __future__ import annotations

from collections import Counter
from random import Random
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
    kinds = EntryKind.TAKEOVER, EntryKind.CHECKPOINT, EntryKind.DATA, EntryKind.MEMBERS
    assert kinds == (1, 2, 3, 4)


@pytest.mark.parametrize(
    "entry",
    [changed(takeover(1, 0), writer=EntryWriter("", 1)), checkpoint(3, 64), data(1 << 60, 1 << 50, b"x" * 70_000)],
)
def test_every_kind_of_entry_survives_a_round_trip(entry: LogEntry) -> None:
    assert LogEntry.unpack(memoryview(entry.pack())) == entry


def test_an_entry_with_a_list_of_members_has_the_specified_bytes() -> None:
    entry = LogEntry(EntryKind.MEMBERS, 7, A, 64, members=Members(12, ("a", "node-2"), places=1))
    assert entry.pack().endswith(b"a12 1 a node-2")
    assert LogEntry.unpack(entry.pack()) == entry
    assert entry.end == 64


def forged(entry: LogEntry, at: int, byte: int) -> bytes:
    """Return *entry* with another byte at the position *at*, and checksums that match."""
    packed = bytearray(entry.pack())
    packed[at] = byte
    packed[36:40] = crc32c(packed[HEADER.size :]).to_bytes(4, "little")
    packed[HEADER.size - 4 : HEADER.size] = crc32c(packed[: HEADER.size - 4]).to_bytes(4, "little")
    return bytes(packed)


def of_version(version: int, entry: LogEntry) -> bytes:
    """Return *entry* as another version packs it."""
    return forged(entry, 4, version)


@pytest.mark.parametrize(
    ("at", "byte", "said"),
    [
        (0, 0x47, "the header of an entry .* is damaged"),
        (5, 0, "kind 0, part 1 and 5 bytes: these do not agree"),
        (5, 5, "kind 5, part 1 and 5 bytes: these do not agree"),
        (7, 0, "an entry of the shared log is damaged"),
        (32, 4, "an entry of the shared log is damaged"),
        (72, 0xFF, "the writer .* is not UTF-8"),
    ],
    ids=["magic", "kind below", "kind above", "length of the name", "length of the data", "name"],
)
def test_wrong_fields_are_refused_although_the_checksums_match(at: int, byte: int, said: str) -> None:
    with pytest.raises(Damage, match=said):
        LogEntry.unpack(forged(DATA, at, byte))


def test_an_entry_of_the_version_before_has_no_list_of_members() -> None:
    packed = of_version(2, checkpoint(3, 64))
    assert packed[4] == 2
    assert LogEntry.unpack(packed) == checkpoint(3, 64)


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


@pytest.mark.parametrize(("version", "age"), [(1, Damage), (4, Newer)])
def test_an_entry_of_an_unknown_version_is_refused(version: int, age: type[Exception]) -> None:
    with pytest.raises(age, match=f"version {version}, this reads 3") as refused:
        LogEntry.unpack(of_version(version, DATA))
    assert refused.type is age, "only a newer version helps against a newer one"


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
    assert changed(takeover(7, 1), members=Members(2, ("a",))).ident == takeover(7, 1).ident == "7/takeover/1/b/2"


@attrs.define
class Counted:
    """The model of Validity: the entries that have counted so far, from which all that it knows follows.

    :ivar begun: the first entry, with which the log begins; None: the log is new
    """

    begun: LogEntry | None
    entries: list[LogEntry] = attrs.field(factory=list)

    def state(self) -> Validity:
        """Return what is known after these entries."""
        known = self.entries or ([self.begun] if self.begun else [])
        epochs = [each.epoch for each in known if each.kind is EntryKind.TAKEOVER] or [each.epoch for each in known]
        whole = next((each for each in reversed(known) if not each.part), LogEntry(EntryKind.CHECKPOINT, 0, A, 0))
        last = known[-1] if known else whole
        members = [each.members for each in known if each.members is not None]
        return Validity(
            epoch=epochs[-1] if epochs else 0,
            end=whole.end,
            reached=last.end if last.part else whole.end,
            identity=last.identity,
            chain=whole.after if whole.kind is EntryKind.DATA else whole.chain,
            members=members[-1] if members else None,
        )

    def counts(self, entry: LogEntry) -> bool:
        now, alone = self.state(), entry == self.begun and not self.entries
        if entry.chain != now.chain or now.identity not in (UNKNOWN, entry.identity):
            return False
        if entry.kind is EntryKind.TAKEOVER:
            return (entry.epoch > now.epoch or alone) and entry.position == now.end
        whole = entry.kind is EntryKind.DATA or now.reached == now.end
        return entry.epoch == now.epoch and entry.position == now.reached and whole


IDENTITIES = (UNKNOWN, b"one journal.....", b"another one.....")


@pytest.mark.parametrize("seed", range(4))
def test_random_entries_count_if_they_continue_the_log_of_the_last_leader(seed: int) -> None:
    """Each entry is the next one of the leader, of another leader, or differs from that in a field or two."""
    dice, kinds = Random(seed), Counter[tuple[EntryKind, bool, bool]]()
    for _ in range(300):
        first = LogEntry(dice.choice(list(EntryKind)), 4, B, 100, identity=dice.choice(IDENTITIES), chain=7)
        first = attrs.evolve(first, members=dice.choice([None, Members(1, ("a",))]))
        rule, model = Validity(), Counted(None)
        if dice.random() < 0.5:
            if not first.may_begin:
                with pytest.raises(Damage, match=f"begins with {first.kind.name.lower()}"):
                    rule.begin(first)
                continue
            rule.begin(first)
            model = Counted(first)
            assert rule.counts(first), f"the log begins with {first}"
            model.entries.append(first)
        for _ in range(30):
            now = model.state()
            kind = dice.choice([*EntryKind, EntryKind.DATA, EntryKind.DATA])
            takes_over = kind is EntryKind.TAKEOVER
            entry = LogEntry(
                kind,
                now.epoch + dice.choice([takes_over, takes_over, takes_over, 0, 1, -1, 3]),
                dice.choice((A, B)),
                (now.end if takes_over else now.reached) if dice.random() < 0.8 else now.end + dice.randint(-1, 3),
                dice.randbytes(dice.randint(1, 3)) if kind is EntryKind.DATA else b"",
                kind is EntryKind.DATA and dice.random() < 0.3,
                dice.choice([now.identity] * 9 + [*IDENTITIES]),
                now.chain + (dice.random() < 0.1),
                dice.randint(0, 9),
                dice.choice([None, Members(dice.randint(1, 9), ("a", "b"))]) if kind is not EntryKind.DATA else None,
            )
            counts = model.counts(entry)
            assert rule.counts(entry) == counts, f"{entry} after {model.entries}"
            model.entries += [entry] * counts
            assert rule == model.state(), f"after {model.entries}"
            kinds[kind, entry.part, counts] += 1
    assert len(kinds) == 10, f"a kind of entry never counted, or always: {kinds}"


def packed(batches: list[Batches], most: int) -> list[list[Batches]]:
    """Return which of *batches* share an entry: as many as fit, but no beginning of a segment behind another batch."""
    found: list[list[Batches]] = []
    for each in batches:
        together = [*found[-1], each] if found else [each]
        fits = sum(len(one.data) for one in together) <= most
        if found and fits and not each.data.startswith(SEGMENT_MAGIC):
            found[-1] = together
        else:
            found.append([each])
    return found


CONTENTS = st.binary(min_size=1, max_size=40) | st.binary(min_size=1, max_size=9).map(lambda more: SEGMENT_MAGIC + more)


@given(st.lists(CONTENTS, max_size=8), st.integers(5, 30))
@settings(max_examples=300)
def test_batches_share_entries_if_they_are_small_and_are_divided_if_they_are_large(
    contents: list[bytes], most: int
) -> None:
    batches = [Batches(each, number) for number, each in enumerate(contents, 1)]
    expected, position, chain = list[Piece](), 100, 9
    for group in packed(batches, most):
        data = b"".join(each.data for each in group)
        for at in range(0, len(data), most):
            part = at + most < len(data)
            expected.append(Piece(position + at, data[at : at + most], part, chain, chain if part else group[-1].chain))
        position, chain = position + len(data), group[-1].chain
    assert list(divide(100, 9, batches, most)) == expected


def test_the_largest_entry_fits_into_a_message_of_one_mebibyte() -> None:
    largest = LogEntry(EntryKind.DATA, 1, EntryWriter("n" * entries.MAX_WRITER, 1), 0, bytes(entries.MAX_DATA))
    assert len(largest.pack()) == entries.MAX_ENTRY == (1 << 20) - 4096
