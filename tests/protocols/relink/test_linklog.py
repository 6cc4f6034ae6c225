"""Links on disk: recovery of valid records, and loss of the links if records are damaged."""

from __future__ import annotations

from typing import Any

import pytest

from fyrehose.broker.state_stream import replay
from fyrehose.errors import JournalCorrupt
from fyrehose.protocols.relink import linklog
from fyrehose.protocols.relink.frames import Terms
from fyrehose.protocols.relink.linklog import (
    SOURCE,
    RecordKind,
    SavedLinks,
    name_of,
    pack,
    pack_entry,
    unpack_entry,
)
from fyrehose.records import Run

TERMS = Terms(endpoint="publish:s", connector_size=4, connector_transactions=True)


def entry(number: int, snapshot: bytes = b"\1\0\0\0") -> bytes:
    return pack_entry(bytes([number]) * 8, TERMS, b"me", [(0, 1), (5, 9)], snapshot)


def checkpoint(begin: int, *numbers: int) -> list[bytes]:
    """Return the records of a checkpoint that begins at *begin*, with the links of these numbers."""
    entries = [pack(RecordKind.ENTRY, 5, 0, entry(number)) for number in numbers]
    return [pack(RecordKind.GONE, 5, 0, b""), *entries, pack(RecordKind.GONE, 5, begin, b"")]


def recover(read: Any, bounds: tuple[int, int]) -> tuple[int, dict[bytes, linklog.Saved] | None]:
    """Return the epoch of the links, and the links; None: they are lost."""
    saved = SavedLinks()
    try:
        found = replay(saved, read, bounds, "l", SOURCE)
    except JournalCorrupt:
        return saved.epoch, None
    return saved.epoch, None if found.missing else saved.links


def written(*runs: tuple[str, list[bytes]]) -> Any:
    """Return a function that recovers the links from a journal with these records."""
    made: list[Run] = []
    seq = 1
    for source, records in runs:
        made.append(Run.of("l", records, source=source).numbered(seq, 1))
        seq += len(records)

    def read(stream: str, start: int, size: int) -> tuple[Run, ...]:
        return tuple(run.slice(max(0, start - run.first_seq), len(run)) for run in made if run.last_seq >= start)

    return lambda oldest=1, last=seq - 1: recover(read, (oldest, last))


def test_entry_round_trip() -> None:
    saved = unpack_entry(entry(7, b"snapshot"))
    assert (saved.name, saved.terms, saved.identity) == (b"\7" * 8, TERMS, b"me")
    assert (saved.anchors, saved.snapshots) == ([(0, 1), (5, 9)], [b"snapshot"])


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_truncated_entry_is_refused(cut: int) -> None:
    whole = entry(1, b"")
    with pytest.raises(ValueError):
        unpack_entry(whole[: len(whole) - cut])


def test_names_are_deterministic_and_distinct() -> None:
    assert name_of(1, 2) == name_of(1, 2)
    assert len({name_of(epoch, id_) for epoch in range(10) for id_ in range(10)}) == 100


def test_empty_stream_has_no_links() -> None:
    assert recover(lambda *a: (), (1, 0)) == (0, {})


def test_recovery_applies_all_record_kinds() -> None:
    more = [
        pack(RecordKind.ENTRY, 5, 1, entry(3)),
        pack(RecordKind.DELTA, 5, 1, b"\1" * 8 + b"a"),
        pack(RecordKind.DELTA, 5, 1, b"\1" * 8 + b"b"),
        pack(RecordKind.DELTA, 5, 1, b"\x99" * 8 + b"of nobody"),
        pack(RecordKind.GONE, 5, 1, b"\2" * 8 + b"\x98" * 8),
    ]
    epoch, links = written((SOURCE, checkpoint(1, 1, 2)), (SOURCE, more))()
    assert epoch == 5
    assert sorted(links) == [b"\1" * 8, b"\3" * 8]
    assert links[b"\1" * 8].snapshots == [b"\1\0\0\0", b"a", b"b"]


def test_recovery_begins_at_the_first_record_of_the_checkpoint_that_is_complete() -> None:
    old = [b"garbage of a version that nobody knows"]
    _, links = written((SOURCE, old), (SOURCE, checkpoint(2, 1)))()
    assert sorted(links) == [b"\1" * 8]


def test_records_of_other_sources_are_skipped() -> None:
    forged = [pack(RecordKind.GONE, 5, 1, b"\1" * 8)] * 9
    _, links = written(("figg", forged), (SOURCE, checkpoint(10, 1)), ("figg", forged))()
    assert sorted(links) == [b"\1" * 8]
    assert written(("figg", forged))() == (0, {})


@pytest.mark.parametrize(
    "damaged",
    [
        [pack(RecordKind.ENTRY, 5, 1, b"too short")],
        [b"\x09" + pack(RecordKind.GONE, 5, 1, b"")[1:]],
        [pack(RecordKind.GONE, 6, 1, b"")],
    ],
)
def test_damaged_record_loses_all_links_but_not_the_epoch(damaged: list[bytes]) -> None:
    last = pack(RecordKind.GONE, 5, 1, b"")
    found = written((SOURCE, checkpoint(1, 1)), (SOURCE, [*damaged, last]))()
    assert found == (5, None)


def test_missing_checkpoint_loses_all_links() -> None:
    runs = (SOURCE, checkpoint(1, 1)), (SOURCE, [pack(RecordKind.GONE, 5, 1, b"")])
    made = Run.of("l", runs[1][1], source=SOURCE).numbered(4, 1)
    assert recover(lambda stream, start, size: (made,) if start <= 4 else (), (4, 4)) == (5, None)


@pytest.mark.parametrize("last", [b"", b"\1"])
def test_invalid_last_record_loses_all_links(last: bytes) -> None:
    assert written((SOURCE, checkpoint(1, 1)), (SOURCE, [last]))() == (0, None)
