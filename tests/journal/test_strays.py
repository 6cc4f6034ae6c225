"""Segment files that are no part of the log: of another journal, and named like one of this."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal import packing, scan
from fyrehose.offline.verify import verify
from fyrehose.offline.walk import Batch, Log, walk
from tests.doubles.files import flip

COUNT = 300
PAYLOADS = [b"%06d" % i + b"." * 50 for i in range(COUNT)]


def filled(open_journal, count: int = COUNT, stream: str = "s", **settings):  # type: ignore[no-untyped-def]
    """Return a closed journal with *count* records."""
    bench = open_journal(segment_size=8192, **settings)
    for payload in PAYLOADS[:count]:
        bench.append(payload, stream=stream)
    bench.close()
    return bench


def first_segment_of_another(open_journal, tmp_path: Path, count: int, stream: str) -> bytes:  # type: ignore[no-untyped-def]
    bench = filled(open_journal, count, stream)
    content = scan.segments(bench.directory)[0].path.read_bytes()
    bench.directory.rename(tmp_path / "other")
    return content


def middle(segment: scan.Segment) -> int:
    return segment.base + segment.size // 2 // 8 * 8


@pytest.mark.parametrize("stream", ["s", "of the other journal"])
@pytest.mark.parametrize("count", [3, 40, COUNT])
@pytest.mark.parametrize("within", [0, 2, -1])
def test_quarantine_sets_a_stray_segment_aside_and_every_record_is_read(
    open_journal, tmp_path: Path, within: int, count: int, stream: str
) -> None:
    """The stray file is named like a segment that begins in the middle of a sealed segment, or of the last one."""
    stray = first_segment_of_another(open_journal, tmp_path, count, stream)
    bench = filled(open_journal)
    base = middle(scan.segments(bench.directory)[within])
    scan.path_of(bench.directory, base).write_bytes(stray)
    assert verify(bench.directory).problems
    with pytest.raises(JournalCorrupt, match=rf"where {base:016x}\.segment begins: one of the two does not belong"):
        open_journal()
    bench = open_journal(quarantine=True)
    assert bench.payloads() == PAYLOADS
    assert list(bench.journal.ends()) == ["s"]
    (aside,) = bench.directory.glob("quarantine-*")
    assert aside.read_bytes() == stray
    bench.append(b"one more")
    bench.close()
    report = verify(bench.directory)
    assert (report.problems, report.gaps, report.records) == ([], [], COUNT + 1)


def test_segment_of_another_journal_that_begins_at_the_same_position_is_set_aside(open_journal) -> None:
    """The header of the stray segment is undamaged; its identity is not taken for that of this journal."""
    bench, base = overlapped(open_journal)
    path = scan.path_of(bench.directory, base)
    content = path.read_bytes()
    header = fmt.SegmentHeader.unpack(content)
    stray = fmt.SegmentHeader(base, header.created, header.chain, b"another journal!").pack() + content[64:]
    for segment in scan.segments(bench.directory)[3:]:  # so that the stray one is the last
        segment.path.unlink()
    (bench.directory / "MARK").unlink()
    path.write_bytes(stray)
    bench = open_journal(quarantine=True)
    assert bench.payloads() == PAYLOADS[: len(bench.payloads())]
    assert bench.journal.ends()["s"] >= bench.records()[-1].seq
    (aside,) = bench.directory.glob("quarantine-*.segment.bytes")
    assert aside.read_bytes() == stray


def test_stray_segment_is_set_aside_where_the_log_has_only_zeros_behind_its_start(open_journal, tmp_path: Path) -> None:
    """Zeros at the end of a payload must not be taken for space that was allocated ahead."""
    stray = first_segment_of_another(open_journal, tmp_path, 3, "s")
    bench = open_journal()
    bench.append(b"before")
    bench.append(bytes(3000))
    end = bench.journal.writer.position
    bench.crash()
    scan.path_of(bench.directory, (end - 1000) // 8 * 8).write_bytes(stray)
    assert verify(bench.directory).problems
    with pytest.raises(JournalCorrupt):
        open_journal()
    assert open_journal(quarantine=True).payloads() == [b"before", bytes(3000)]


def test_several_stray_segments_are_set_aside(open_journal, tmp_path: Path) -> None:
    stray = first_segment_of_another(open_journal, tmp_path, COUNT, "s")
    bench = filled(open_journal)
    found = scan.segments(bench.directory)
    bases = [found[1].base + 512, found[1].base + 1024, found[-1].base + 512]
    for base in bases:
        scan.path_of(bench.directory, base).write_bytes(stray)
    bench = open_journal(quarantine=True)
    assert bench.payloads() == PAYLOADS
    assert len(list(bench.directory.glob("quarantine-*"))) == len(bases)


@pytest.mark.parametrize("which", [1, -1])
@pytest.mark.parametrize("count", [3, COUNT])
def test_readers_continue_behind_a_segment_that_one_of_another_journal_replaced(
    open_journal, tmp_path: Path, count: int, which: int
) -> None:
    stray = first_segment_of_another(open_journal, tmp_path, count, "s")
    bench = filled(open_journal)
    scan.segments(bench.directory)[which].path.write_bytes(stray)
    bench = open_journal(quarantine=True)
    bench.append(b"behind it")
    records = bench.records()
    assert records[-1].payload == b"behind it"
    assert all(record.payload == PAYLOADS[record.seq - 1] for record in records[:-1])
    bench.close()
    report = verify(bench.directory)
    assert report.problems == []
    assert sum(gap.last + 1 - gap.first for gap in report.gaps if gap.stream) + len(records) == records[-1].seq


def overlapped(open_journal):  # type: ignore[no-untyped-def]
    """Return a closed journal, and the base of an undamaged segment of it that begins within the second one."""
    bench = filled(open_journal)
    before, after = scan.segments(bench.directory)[1:3]
    base, chain, last = middle(before), 0, 0
    for found in walk(Log.of(bench.directory)):
        if isinstance(found, Batch) and found.header.end <= base:
            chain = found.header.checksum
            last = max([last, *(run.last_seq for run in found.runs())])
    reader = scan.SegmentReader(before.path, before.base)
    header = fmt.SegmentHeader(base, reader.header().created, chain, reader.header().identity)
    reader.close()
    _, beginning = packing.batch(
        fmt.Kind.ENDS,
        [fmt.Entry("s", last, last), fmt.Entry("", 0, 0)],
        position=base + fmt.SEGMENT_HEADER.size,
        durable=base,
        time=0,
        clock=0,
        chain=chain,
        fill=after.base - base - fmt.SEGMENT_HEADER.size,
    )
    scan.path_of(bench.directory, base).write_bytes(header.pack() + bytes(beginning))
    return bench, base


def test_verify_finds_a_segment_within_another_even_if_its_checksums_are_right(open_journal) -> None:
    bench, base = overlapped(open_journal)
    said = [str(problem) for problem in verify(bench.directory).problems]
    assert any(f"continues behind the start of {base:016x}.segment" in each for each in said)


def test_overlapping_segments_of_one_journal_are_refused_also_by_quarantine(open_journal) -> None:
    bench, base = overlapped(open_journal)
    with pytest.raises(JournalCorrupt, match=rf"where {base:016x}\.segment begins"):
        open_journal()
    kept = {path.name: path.read_bytes() for path in bench.directory.iterdir()}
    with pytest.raises(JournalCorrupt, match="both have the log at position"):
        open_journal(quarantine=True)
    kept["QUARANTINE"] = b""
    assert {path.name: path.read_bytes() for path in bench.directory.iterdir()} == kept


def test_bytes_behind_the_end_of_a_sealed_segment_are_set_aside(open_journal) -> None:
    bench = filled(open_journal)
    path = scan.segments(bench.directory)[1].path
    with path.open("ab") as file:
        file.write(b"no batch")
    assert any("continues behind the start" in str(problem) for problem in verify(bench.directory).problems)
    with pytest.raises(JournalCorrupt, match="has 8 bytes behind position"):
        open_journal()
    bench = open_journal(quarantine=True)
    assert bench.payloads() == PAYLOADS
    (aside,) = bench.directory.glob("quarantine-*.bytes")
    assert aside.read_bytes() == b"no batch"


def test_zeros_behind_the_end_of_a_sealed_segment_are_no_damage(open_journal) -> None:
    """A copy that was made while a server wrote may have space that was allocated ahead."""
    bench = filled(open_journal)
    with scan.segments(bench.directory)[1].path.open("ab") as file:
        file.write(bytes(4096))
    assert verify(bench.directory).problems == []
    assert open_journal().payloads() == PAYLOADS


def test_verify_reads_records_as_the_server_does(open_journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify reports every record that a server's store cannot find."""
    bench = filled(open_journal)
    lost = Random(1).choice(scan.segments(bench.directory)[1:-1]).base
    batches = verify.__globals__["Store"].batches

    def blind(self, base: int, *rest):  # type: ignore[no-untyped-def]
        return iter(()) if base == lost else batches(self, base, *rest)

    monkeypatch.setattr("fyrehose.journal.store.Store.batches", blind)
    (problem,) = verify(bench.directory).problems
    assert f"{lost:016x}.segment" in str(problem)
    assert "a server cannot read record" in str(problem)


def test_verify_leaves_no_file_behind(open_journal) -> None:
    bench = filled(open_journal)
    for path in bench.directory.glob("*.index"):
        path.unlink()
    kept = sorted(bench.directory.iterdir())
    assert verify(bench.directory).problems == []
    assert sorted(bench.directory.iterdir()) == kept


def test_damage_that_reading_finds_is_in_the_status_until_its_segment_is_deleted(open_journal) -> None:
    bench = filled(open_journal)
    damaged = scan.segments(bench.directory)[1]
    size = sum(segment.size for segment in scan.segments(bench.directory))
    bench = open_journal(segment_size=8192, verify=0, keep_bytes=size + 8192)
    assert bench.journal.status().damage == ()
    flip(damaged.path, damaged.path.stat().st_size // 2)
    with pytest.raises(JournalCorrupt):
        bench.records()
    (said,) = bench.journal.status().damage
    assert damaged.path.name in said
    for payload in PAYLOADS[:200]:
        bench.append(payload)
    bench.clock.advance(1)
    assert not damaged.path.exists()
    assert bench.journal.status().damage == ()
