"""Quarantine, besides test_recovery.py: large ranges, interrupted starts, forged payloads."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal import packing, quarantine, scan
from fyrehose.journal.files import Files, SteppedFiles
from fyrehose.journal.recovery import recover
from fyrehose.journal.settings import durability
from fyrehose.journal.streams import RESERVE
from fyrehose.offline.verify import verify
from fyrehose.offline.walk import Batch, Log, walk
from fyrehose.records import Buffer, Run
from tests.doubles.appending import append_runs
from tests.doubles.disk import RecordingFiles, WatchedFiles, images, put, what_stays
from tests.doubles.files import CountedFiles, flip


def patch(bench, position: int, data: bytes) -> None:  # type: ignore[no-untyped-def]
    """Damage the log at ``position``."""
    segment = [s for s in scan.segments(bench.directory) if s.base <= position][-1]
    fd = os.open(segment.path, os.O_RDWR)
    os.pwrite(fd, data, position - segment.base)
    os.close(fd)


def forged(position: int, durable: int, stream: str = "forged") -> bytes:
    """Return a payload that looks like a valid batch at *position*, with the right checksums."""
    run = Run.of(stream, [b"never published"], source="t").numbered(1, 1)
    return packing.batch(
        fmt.Kind.RECORDS, [run], position=position, durable=durable, time=1, clock=1, chain=0x12345678
    )[1]


def payload_at(bench) -> int:  # type: ignore[no-untyped-def]
    """Return the position that the payload of the next append will have in the log."""
    _, data = packing.batch(
        fmt.Kind.RECORDS,
        [Run.of("s", [b"MARKER"], source="test").numbered(1, 1)],
        position=0,
        durable=0,
        time=0,
        clock=0,
        chain=0,
    )
    return int(bench.journal.writer.position) + data.index(b"MARKER")


class TestForgedBatches:
    """A client that knows the length of the log can make a payload look like a batch."""

    def test_the_mark_of_a_forged_batch_in_a_torn_tail_is_ignored(self, open_journal) -> None:
        bench = open_journal()
        bench.append(b"kept")
        durable = scan.read_mark(bench.directory)
        at = payload_at(bench)
        bench.append(forged(at, durable=at) + b"torn" * 10)
        end = bench.journal.writer.position
        bench.crash()
        patch(bench, end - 8, b"\xff")
        (bench.directory / "MARK").write_bytes(scan.pack_mark(durable))
        bench = open_journal()
        assert bench.payloads() == [b"kept"]
        assert "forged" not in bench.journal.ends()

    def test_a_forged_batch_in_a_damaged_range_is_not_served(self, open_journal) -> None:
        bench = open_journal()
        bench.append(b"kept")
        at = payload_at(bench)
        bench.append(forged(at, durable=0) + b"damaged" * 10)
        end = bench.journal.writer.position
        bench.append(b"behind it")
        bench.close()
        patch(bench, end - 8, b"\xff")
        with pytest.raises(JournalCorrupt):
            open_journal()
        bench = open_journal(quarantine=True)
        assert [(r.seq, r.payload) for r in bench.records()] == [(1, b"kept"), (3, b"behind it")]
        assert "forged" not in bench.journal.ends()


def test_batches_behind_damage_are_each_read_once(open_journal) -> None:
    """Each of thousands of small batches behind the damage is read once."""
    bench = open_journal(segment_size=1 << 20)
    for i in range(800):
        bench.append(b"%d" % i)
    bench.crash()
    files = CountedFiles()
    patch(bench, 300, b"\xff")
    with pytest.raises(JournalCorrupt):
        recover(bench.directory, files)
    assert sum(size for _, _, size in files.reads) < 10 * (1 << 20)


def test_a_large_range_is_set_aside_in_pieces(open_journal) -> None:
    bench = open_journal(segment_size=1 << 20)
    for i in range(400):
        bench.append(b"%03d" % i + b"." * 10_000)
    bench.close()
    found = scan.segments(bench.directory)
    lost = sum(segment.size for segment in found[1:4])
    for segment in found[1:4]:
        segment.path.unlink()

    class SmallPieces(CountedFiles):
        piece = 100_000

    files = SmallPieces()
    bench = open_journal(segment_size=1 << 20, quarantine=True, verify=0, files=files)
    (aside,) = bench.directory.glob("quarantine-*.bytes")
    assert aside.stat().st_size == lost
    assert max(size for _, _, size in files.reads) <= fmt.BATCH, "the range was never in memory as a whole"
    records = bench.records()
    assert all(record.payload.startswith(b"%03d" % (record.seq - 1)) for record in records)
    assert 0 < 400 - len(records) < 400


def test_earlier_files_that_were_set_aside_are_kept(open_journal) -> None:
    """If a start was killed while it replaced the range, the next one sets the rest aside as well."""
    bench = open_journal()
    for i in range(10):
        bench.append(b"%d" % i)
    bench.close()
    patch(bench, 400, b"damage")

    class Killed(SteppedFiles):
        """Files of a process that is killed while it replaces what was set aside."""

        def write(self, fd: int, data: Buffer, offset: int) -> None:
            if not list(bench.directory.glob("quarantine-*.bytes")):
                super().write(fd, data, offset)
                return
            super().write(fd, data[:20], offset)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quarantine.set_aside(bench.directory, Killed())
    (first,) = bench.directory.glob("quarantine-*.bytes")
    original = first.read_bytes()
    assert b"damage" in original
    bench = open_journal(quarantine=True)
    assert first.read_bytes() == original
    assert len(list(bench.directory.glob("quarantine-*.bytes"))) == 2


def test_numbers_that_a_crash_had_skipped_are_not_listed_as_lost(open_journal) -> None:
    """A gap that the log notes is not counted as lost, and no further numbers are skipped."""
    for _ in range(2):
        bench = open_journal(durability=durability("never"))
        bench.append(b"kept")
        bench.crash()
    bench = open_journal()
    bench.append(b"last")
    at = bench.journal.writer.position
    bench.append(b"other", stream="o")
    bench.append(b"again")
    ends = dict(bench.journal.ends())
    bench.close()
    patch(bench, at + 70, b"\xff\xff")
    bench = open_journal(quarantine=True)
    assert [record.payload for record in bench.records()] == [b"kept", b"kept", b"last", b"again"]
    assert bench.journal.ends()["s"] == ends["s"]
    bench.close()
    report = verify(bench.directory)
    assert report.problems == []


def test_a_damaged_range_too_small_for_the_list_of_lost_numbers_becomes_a_gap(open_journal) -> None:
    """The names of many streams do not fit into the place of the damaged batch."""
    bench = open_journal()
    for name in "abc":
        bench.append(b"x", stream=name * 200)
    at = bench.journal.writer.position
    runs = [Run.of(name * 200, [b""], source="t") for name in "abc"]
    append_runs(bench.journal, runs, [2, 2, 2])
    append_runs(bench.journal, runs, [3, 3, 3])
    bench.close()
    patch(bench, at + 70, b"\xff\xff")
    bench = open_journal(quarantine=True)
    for name in "abc":
        assert [record.seq for record in bench.records(name * 200)] == [1, 3]
    bench.close()
    assert verify(bench.directory).problems == []


class TestNumbersAreNeverUsedAgain:
    """Whatever quarantine sets aside, a number that a subscriber may have seen is never used again."""

    @pytest.mark.parametrize("more", [False, True], ids=["alone", "with records behind it"])
    def test_numbers_are_not_used_again_if_their_reservation_is_damaged(self, open_journal, more: bool) -> None:
        """Numbers up to the reservation may have been given out, and no other batch notes them."""
        bench = open_journal(durability=durability("never"))
        bench.append(b"kept")
        reserved = bench.journal.writer.streams.reserved["s"]
        bench.append(b"perhaps lost", stream="other")
        bench.append(b"synced with what is before it", stream="third")
        bench.append(b"kept, too")
        bench.crash()
        where, *_ = [header.position for header, _ in batches(bench) if header.kind is fmt.Kind.RESERVED]
        of_other = [header.position for header, _ in batches(bench) if header.kind is fmt.Kind.RECORDS][1]
        for position in (where, of_other)[: 1 + more]:
            patch(bench, position + 70, b"damage")
        with pytest.raises(JournalCorrupt):
            open_journal(durability=durability("never"))
        bench = open_journal(durability=durability("never"), quarantine=True)
        assert bench.payloads() == [b"kept", b"kept, too"]
        assert bench.journal.ends()["s"] >= reserved
        assert bench.journal.floor >= reserved - 1

    def test_numbers_are_not_used_again_if_a_gap_in_a_closed_log_is_damaged(self, open_journal) -> None:
        """An orderly close ends reservations, but does not tell which numbers a damaged gap has skipped."""
        bench = open_journal(durability=durability("never"))
        bench.append(b"kept")
        bench.crash()
        bench = open_journal(durability=durability("never"))
        end = bench.journal.ends()["s"]
        assert end > 1, "the start has noted the numbers that may have been given out"
        (where,) = [header.position for header, _ in batches(bench) if header.kind is fmt.Kind.GAP]
        bench.close()
        patch(bench, where + 10, b"damage")
        bench = open_journal(durability=durability("never"), quarantine=True)
        assert bench.payloads() == [b"kept"]
        assert bench.journal.ends()["s"] >= end

    def test_numbers_are_not_used_again_after_a_second_quarantine(self, open_journal) -> None:
        """The stream's first record is damaged; only the first quarantine's gap notes its numbers."""
        bench = open_journal()
        bench.crash()
        patch(bench, 64 + 60, b"damage")
        bench = open_journal(quarantine=True)
        bench.append(b"first")
        end = bench.journal.ends()["s"]
        assert end > 1
        bench.crash()
        patch(bench, [header.position for header, _ in batches(bench)][-1] + 70, b"damage")
        bench = open_journal(quarantine=True)
        assert bench.journal.bounds("s")[1] >= end

    def test_numbers_are_not_used_again_if_the_gap_of_an_earlier_quarantine_is_damaged(self, open_journal) -> None:
        """That gap skips more numbers than its own bytes could have contained as records."""
        bench = open_journal()
        bench.append(b"kept")
        at = bench.journal.writer.position
        bench.append(*[b""] * 1000)
        bench.crash()
        patch(bench, at + 10, b"damage")
        bench = open_journal(quarantine=True)
        end, floor = bench.journal.ends()["s"], bench.journal.floor
        bench.append(b"behind", stream="other")
        bench.crash()
        gap = [header for header, _ in batches(bench) if header.kind is fmt.Kind.GAP and not header.mended][-1]
        patch(bench, gap.position + 10, b"damage")
        bench = open_journal(quarantine=True)
        assert bench.journal.ends()["s"] >= end
        assert bench.journal.floor >= floor


def batches(bench) -> list[tuple[fmt.BatchHeader, bytes]]:  # type: ignore[no-untyped-def]
    """Return the batches of the only segment that can be read one after the other."""
    (segment,) = scan.segments(bench.directory)
    found: list[tuple[fmt.BatchHeader, bytes]] = []
    position = segment.base + fmt.SEGMENT_HEADER.size
    with scan.SegmentReader(segment.path, segment.base) as reader, suppress(fmt.Damage):
        while True:
            header, body = reader.batch(position)
            found.append((header, bytes(body)))
            position = header.end
    return found


def test_a_lost_record_in_front_of_another_gap_is_listed(open_journal) -> None:
    bench = open_journal(durability=durability("never"))
    bench.append(b"1")
    bench.append(b"2")
    bench.crash()
    bench = open_journal(durability=durability("never"))  # the rest of what was reserved is a gap
    bench.append(b"3")
    bench.crash()
    records = [header for header, _ in batches(bench) if header.kind is fmt.Kind.RECORDS]
    patch(bench, records[1].position + 70, b"damage")
    bench = open_journal(durability=durability("never"), quarantine=True)
    entries = [fmt.entries(body, header.parts) for header, body in batches(bench) if header.kind is fmt.Kind.GAP]
    assert fmt.Entry("s", 2, 2) in [entry for many in entries for entry in many]


def test_retention_by_age_does_not_delete_a_segment_with_a_repaired_header(open_journal) -> None:
    now = 1_700_000_000_000_000
    settings = {"now": lambda: now, "segment_size": 1 << 10}
    bench = open_journal(**settings)
    for _ in range(20):
        bench.append(b"." * 100)
    bench.close()
    second = scan.segments(bench.directory)[1]
    patch(bench, second.base + 8, b"damage")
    bench = open_journal(quarantine=True, keep_age=3600.0, **settings)
    bench.clock.advance(5)
    assert len(bench.records()) == 20


def gaps(bench) -> list[tuple[str, int, int]]:  # type: ignore[no-untyped-def]
    """Return the numbers that the only segment says are missing."""
    return [
        (entry.stream, entry.first, entry.last)
        for header, body in batches(bench)
        if header.kind is fmt.Kind.GAP
        for entry in fmt.entries(body, header.parts)
    ]


def test_damage_at_the_end_skips_as_many_numbers_as_it_can_have_contained(open_journal) -> None:
    """A record has at least four bytes, and any stream may have had all records of the range."""
    bench = open_journal()
    bench.append(b"kept")
    at = bench.journal.writer.position
    bench.append(*[b""] * 1000)
    end = bench.journal.writer.position
    bench.crash()
    patch(bench, at + 70, b"damage")
    before = len(list(Path("/proc/self/fd").iterdir()))
    notes = quarantine.set_aside(bench.directory, Files())
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert notes[0] == f"the end of the log is damaged: all streams skip {(end - at) // 4:,} numbers"
    assert gaps(bench) == [("s", 2, 1 + (end - at) // 4), ("", 1, (end - at) // 4)]
    assert quarantine.set_aside(bench.directory, Files()) == [], "once is enough"


def test_streams_with_records_behind_the_damage_skip_only_lost_numbers(open_journal) -> None:
    bench = open_journal()
    for stream in ("a", "b", "quiet"):
        bench.append(b"kept", stream=stream)
    at = bench.journal.writer.position
    bench.append(b"lost", stream="a")
    end = bench.journal.writer.position
    bench.append(b"behind", stream="a")
    bench.append(b"behind", stream="b")
    bench.crash()
    patch(bench, at + 70, b"damage")
    quarantine.set_aside(bench.directory, Files())
    skip = (end - at) // 4
    assert gaps(bench) == [("a", 2, 2), ("quiet", 2, 1 + skip), ("", 1, skip)]


@pytest.mark.parametrize(("lost", "said"), [(1, "'s00' 2-2"), (10, "'s09' 2-2"), (11, "'s09' 2-2 and 1 more")])
def test_the_log_names_the_lost_records_and_the_file_that_has_the_damage(open_journal, lost: int, said: str) -> None:
    bench = open_journal()
    streams = [f"s{i:02}" for i in range(lost)]
    for number in (1, 2, 3):
        if number == 2:
            at = bench.journal.writer.position
        runs = [Run.of(stream, [b"x"], source="t") for stream in streams]
        append_runs(bench.journal, runs, [number] * lost)
        if number == 2:
            end = bench.journal.writer.position
    bench.close()
    patch(bench, at + 70, b"damage")
    before = scan.segments(bench.directory)[0].path.read_bytes()
    *_, note = quarantine.set_aside(bench.directory, Files())
    assert note.startswith(f"{end - at} damaged bytes of {scan.segments(bench.directory)[0].path.name} (")
    assert f" were set aside in quarantine-{at:016x}.bytes; lost records: 's00' 2-2" in note
    assert note.endswith(said)
    (aside,) = bench.directory.glob("quarantine-*.bytes")
    assert aside.read_bytes() == before[at:end]
    mended = [header for header, _ in batches(bench) if header.mended]
    assert [(header.position, header.durable) for header in mended] == [(at, at)] * len(mended) != []
    assert mended[-1].end == end


def content(bench) -> dict[str, bytes]:  # type: ignore[no-untyped-def]
    return {path.name: path.read_bytes() for path in bench.directory.iterdir()}


@pytest.mark.parametrize("mode", ["batch", "never"])
def test_quarantine_changes_nothing_in_a_journal_that_was_only_killed(open_journal, mode: str) -> None:
    bench = open_journal(segment_size=2048, durability=durability(mode), keep_bytes=8000)
    for i in range(60):
        bench.append(b"%d" % i * 100)
    bench.crash()
    assert len(scan.segments(bench.directory)) > 2
    before = content(bench)
    assert quarantine.set_aside(bench.directory, Files()) == []
    assert content(bench) == before


def test_only_the_damaged_part_of_a_later_segment_is_set_aside(open_journal) -> None:
    bench = open_journal(segment_size=2048)
    for i in range(60):
        bench.append(b"%d" % i * 100)
    bench.close()
    segment = scan.segments(bench.directory)[2]
    patch(bench, segment.base + 800, b"damage")
    before = content(bench)
    quarantine.set_aside(bench.directory, Files())
    (aside,) = bench.directory.glob("quarantine-*.bytes")
    at = int(aside.stem.partition("-")[2], 16) - segment.base
    size = aside.stat().st_size
    assert at < 800 < at + size
    assert aside.read_bytes() == before[segment.path.name][at : at + size]
    changed = {name for name, data in content(bench).items() if before.get(name) != data}
    assert changed == {segment.path.name, aside.name}
    assert before.keys() - content(bench).keys() == {segment.path.with_suffix(".index").name}


def test_damage_at_the_end_skips_numbers_from_the_last_known_gap_on(open_journal) -> None:
    bench = open_journal(durability=durability("never"))
    bench.append(b"kept")
    bench.crash()
    bench = open_journal()  # the rest of what was reserved is a gap
    end = bench.journal.ends()["s"]
    at = bench.journal.writer.position
    bench.append(b"lost", stream="other")
    bench.crash()
    patch(bench, at + 70, b"damage")
    quarantine.set_aside(bench.directory, Files())
    assert [(stream, first) for stream, first, _ in gaps(bench)] == [("s", 2), ("s", end + 1), ("", 1)]


def test_a_repaired_header_of_a_segment_is_the_same_as_before(open_journal) -> None:
    """The header gets the time of the first intact batch, which is a little later."""
    bench = open_journal(segment_size=1 << 10, now=lambda: 1_700_000_000_000_000)
    for i in range(20):
        bench.append(b"%d" % i * 100)
    bench.close()
    for which in (0, 1, 2):
        segment = scan.segments(bench.directory)[which]
        before = segment.path.read_bytes()
        patch(bench, segment.base + 8, b"damage")
        assert quarantine.set_aside(bench.directory, Files()) == []
        assert segment.path.read_bytes() == before


def test_a_gap_that_replaces_damage_has_no_time(open_journal) -> None:
    bench = open_journal()
    bench.append(b"lost")
    bench.append(b"kept")
    bench.close()
    (segment,) = scan.segments(bench.directory)
    flip(segment.path, segment.path.read_bytes().index(b"lost"))
    quarantine.set_aside(bench.directory, Files())
    (gap,) = [header for header, _ in batches(bench) if header.mended]
    assert (gap.kind, gap.time, gap.clock) == (fmt.Kind.GAP, 0, 0)


def test_the_time_of_the_file_is_used_if_no_batch_tells_when_a_segment_was_created(open_journal) -> None:
    bench = open_journal()
    bench.close()
    (segment,) = scan.segments(bench.directory)
    segment.path.write_bytes(b"\xff" * segment.size)
    os.utime(segment.path, ns=(1, 5_000_000))
    quarantine.set_aside(bench.directory, Files())
    assert fmt.SegmentHeader.unpack(segment.path.read_bytes()[:64]).created == 5_000


def test_a_mended_batch_does_not_tell_when_a_segment_was_created(open_journal) -> None:
    bench = open_journal()
    bench.append(b"kept")
    bench.close()
    (segment,) = scan.segments(bench.directory)
    created = fmt.SegmentHeader.unpack(segment.path.read_bytes()[:64]).created
    for at in (fmt.SEGMENT_HEADER.size + 20, 20):
        flip(segment.path, at)
        quarantine.set_aside(bench.directory, Files())
    assert fmt.SegmentHeader.unpack(segment.path.read_bytes()[:64]).created >= created > 0


def test_a_damaged_range_longer_than_a_batch_is_replaced_by_several_gaps(open_journal) -> None:
    """Reading the batches that replace it takes no more memory than reading any other batch."""
    bench = open_journal()
    bench.append(b"kept")
    at = bench.journal.writer.position
    bench.append(b"x" * 3000)
    bench.append(b"behind")
    bench.close()
    patch(bench, at + 70, b"damage")
    quarantine.set_aside(bench.directory, Files(), longest=1000)
    mended = [header for header, _ in batches(bench) if header.mended]
    assert len(mended) >= 3
    assert max(header.end - header.position for header in mended) <= 1000 + fmt.BATCH_HEADER.size
    bench = open_journal()
    assert [(record.seq, record.payload) for record in bench.records()] == [(1, b"kept"), (3, b"behind")]


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_the_name_of_a_file_that_was_set_aside_gets_a_number_if_it_is_taken(open_journal, taken: int) -> None:
    bench = open_journal()
    at = bench.journal.writer.position
    bench.append(b"lost")
    bench.close()
    patch(bench, at + 70, b"damage")
    names = [f"quarantine-{at:016x}{number}.bytes" for number in ("", "-2", "-3")]
    for name in names[:taken]:
        bench.directory.joinpath(name).write_bytes(b"from before")
    assert f" {names[taken]};" in quarantine.set_aside(bench.directory, Files())[-1]
    assert b"damage" in bench.directory.joinpath(names[taken]).read_bytes()
    assert {bench.directory.joinpath(name).read_bytes() for name in names[:taken]} <= {b"from before"}


def served(directory: Path) -> dict[tuple[str, int], bytes]:
    """Return every record that can be read."""
    return {
        (run.stream, record.seq): record.payload
        for found in walk(Log.of(directory))
        if isinstance(found, Batch)
        for run in found.runs()
        for record in run.records()
    }


def do_damage(bench, random: Random) -> set[tuple[str, int]]:  # type: ignore[no-untyped-def]
    """Damage a batch, or the header of a segment, or delete a segment; return the stream and number of what is lost."""
    found = [each for each in walk(Log.of(bench.directory), everything=True) if isinstance(each, Batch)]
    durable = max([scan.read_mark(bench.directory), *(each.header.durable for each in found)])
    found = [each for each in found if each.header.end <= durable]
    if not found:
        return set()
    rare = [each for each in found if each.header.kind is not fmt.Kind.RECORDS] or found
    batch, how = random.choice(random.choice((found, rare))), random.choice(("batch", "batch", "header", "missing"))
    lost = [batch]
    if how == "header":
        patch(bench, batch.segment.base + random.randrange(40), b"damage")
        return set()
    if how == "missing" and batch.segment.base and batch.segment.base != found[-1].segment.base:
        batch.segment.path.unlink()
        lost = [each for each in found if each.segment.base == batch.segment.base]
    else:
        at = random.choice((10, 40, random.randrange(batch.header.end - batch.header.position - 8)))
        patch(bench, batch.header.position + at, b"damage")
    return {(run.stream, record.seq) for each in lost for run in each.runs() for record in run.records()}


def cut_power(directory: Path, random: Random) -> set[tuple[str, int]]:
    """Cut the newest records off a log that is not synced; return the stream and number of each."""
    found = [each for each in walk(Log.of(directory), everything=True) if isinstance(each, Batch)]
    newest: list[Batch] = []
    while found[-1].header.kind is fmt.Kind.RECORDS and found[-1].header.position > found[-1].segment.base + 64:
        newest.insert(0, found.pop())
    lost = newest[random.randint(0, len(newest)) :]
    for each in lost[:1]:
        os.truncate(each.segment.path, each.header.position - each.segment.base)
    return {(run.stream, record.seq) for each in lost for run in each.runs() for record in run.records()}


@pytest.mark.parametrize("seed", [*range(24), 282])
def test_random_damage_loses_no_other_record_and_no_number_is_used_again(open_journal, seed: int) -> None:
    random = Random(seed)
    kept: dict[tuple[str, int], bytes] = {}
    last: dict[str, int] = {}
    for _ in range(5):
        mode = durability(random.choice(("never", "batch")))
        bench = open_journal(segment_size=1024 << 10 * (seed % 2), durability=mode, quarantine=True)
        for stream, number in last.items():
            assert bench.next.get(stream, bench.journal.floor + 1) > number, f"{stream!r} uses {number} again"
        assert served(bench.directory) == kept
        assert verify(bench.directory).problems == []
        for _ in range(random.randint(1, 9)):
            stream = random.choice("abc")
            first = bench.next.get(stream, bench.journal.floor + 1)
            payloads = [b"%d" % random.randrange(1 << 30) * random.choice((0, 1, 20))] * random.choice((1, 2, 300))
            bench.append(*payloads, stream=stream)
            kept |= {(stream, first + number): payload for number, payload in enumerate(payloads)}
            last[stream] = first + len(payloads) - 1
        stop = random.choice((bench.crash, bench.close))
        stop()
        lost = cut_power(bench.directory, random) if mode.mode == "never" and stop == bench.crash else set()
        for _ in range(random.choice((0, 1, 1, 3))):
            lost |= do_damage(bench, random)
        for at in lost:
            del kept[at]


DAMAGES = ["records", "end", "ends", "header", "missing", "cut", "front"]


def damaged_journal(open_journal, what: str):  # type: ignore[no-untyped-def]
    """Return a journal that was killed, and has been damaged since; and the last number of each stream."""
    bench = open_journal(segment_size=1024)
    for i in range(9):
        bench.append(b"%d" % i * 150)
    bench.append(b"last", stream="o")
    ends = dict(bench.journal.ends())
    mark = scan.look_at_mark(bench.directory, Files())
    bench.crash()
    bench.directory.joinpath("MARK").write_bytes(scan.pack_mark(mark.durable, mark.begin))  # images are no copies
    *_, last = [found.header.position for found in walk(Log.of(bench.directory)) if isinstance(found, Batch)]
    first, second, third = scan.segments(bench.directory)[:3]
    place = {"records": second.base + 600, "end": last + 70, "ends": second.base + 70, "header": second.base + 10}
    if what in place:
        patch(bench, place[what], b"damage")
    elif what == "cut":
        segment = scan.segments(bench.directory)[-1]
        os.truncate(segment.path, last + 70 - segment.base)
    else:
        (first if what == "front" else third).path.unlink()
    return bench, ends


@pytest.mark.parametrize("what", DAMAGES)
def test_a_power_cut_during_quarantine_loses_no_further_record(open_journal, tmp_path: Path, what: str) -> None:
    """Whichever of its changes are on disk, the next quarantine has the same result; a completed one needs no other."""
    bench, ends = damaged_journal(open_journal, what)
    files = RecordingFiles(bench.directory)
    quarantine.set_aside(bench.directory, files)
    left = served(bench.directory)
    assert (len(left) < 10) == (what not in ("ends", "header"))
    tried: list[dict[str, bytes]] = []
    for upto in range(len(files.log) + 1):
        for image in images(files, upto, Random(1), 0):
            if image in tried and upto < len(files.log):
                continue
            directory = put(tmp_path / f"{len(tried)}", image)
            tried.append(image)
            if upto < len(files.log):
                quarantine.set_aside(directory, WatchedFiles())
            found = recover(directory, WatchedFiles(), verify=1 << 20)
            assert all(found.streams.ends.get(stream, found.streams.floor) >= end for stream, end in ends.items())
            assert served(directory) == left
            assert verify(directory).problems == []
            segments = scan.segments(directory)
            assert [segment.end for segment in segments[:-1]] == [segment.base for segment in segments[1:]]


@pytest.mark.parametrize("repeated", [True, False])
@pytest.mark.parametrize("what", DAMAGES)
def test_a_power_cut_after_a_killed_quarantine_loses_no_further_record(
    open_journal, tmp_path: Path, what: str, repeated: bool
) -> None:
    """The kernel has everything that the killed process wrote, so the next start sees no damage until the power cut."""
    bench, ends = damaged_journal(open_journal, what)
    files = RecordingFiles(bench.directory)
    quarantine.set_aside(bench.directory, files)
    left = served(bench.directory)
    checked = 0
    for upto in range(len(files.log) + 1):
        kept = what_stays(files, upto)
        directory = put(tmp_path / f"killed-{upto}", kept.files())
        again = RecordingFiles(directory, kept)
        try:
            if repeated:
                quarantine.set_aside(directory, again)
            recover(directory, again, verify=1 << 20)
        except JournalCorrupt:
            assert not repeated
            continue
        for number, image in enumerate(images(again, len(again.log), Random(1), 0)):
            after = put(tmp_path / f"cut-{upto}-{number}", image)
            found = recover(after, WatchedFiles(), verify=1 << 20)
            assert all(found.streams.ends.get(stream, found.streams.floor) >= end for stream, end in ends.items())
            assert served(after) == left
            checked += 1
    assert checked > 1


@pytest.mark.parametrize("kept", [1, 3])
def test_streams_of_an_oldest_segment_without_a_beginning_start_at_their_first_record(open_journal, kept: int) -> None:
    """Retention has deleted earlier records: their numbers are neither given out again nor listed as kept."""
    bench = open_journal(segment_size=2048)
    for stream, count in (("second", 1), ("third", 2), ("gone", 5)):
        bench.append(*[b""] * count, stream=stream)
    for i in range(6):
        runs = [Run.of(stream, [b"%d" % i * 250], source="t") for stream in ("second", "third", "s")]
        append_runs(bench.journal, runs, [2 + i, 3 + i, 1 + i])
    bench.append(b"", stream="new")
    bench.close()
    for segment in scan.segments(bench.directory)[:-kept]:
        segment.path.unlink()
        segment.path.with_suffix(".index").unlink()
    oldest = scan.segments(bench.directory)[0]
    bench.directory.joinpath("MARK").unlink()
    bench = open_journal(segment_size=2048)
    streams = ("second", "third", "s", "new")
    before = {stream: bench.journal.bounds(stream) for stream in streams}
    found = next(found for found in walk(Log.of(bench.directory)) if isinstance(found, Batch))
    size = found.header.end - found.header.position
    bench.close()
    patch(bench, oldest.base + 70, b"damage")
    # The damaged range may have had a gap, which skips many numbers in few bytes.
    skip = (size + oldest.base) // 4 + RESERVE if kept == 1 else 0
    assert len(quarantine.set_aside(bench.directory, Files())) == (2 if skip else 1)
    found = next(found for found in walk(Log.of(bench.directory)) if isinstance(found, Batch))
    begun = {entry.stream: entry for entry in found.entries()}
    first = {stream: first for stream, (first, _) in before.items() if first > 1}
    if kept > 1:
        first["gone"] = 6  # the next segment says so
    assert begun == {
        **{stream: fmt.Entry(stream, number - 1, number - 1) for stream, number in first.items()},
        "": fmt.Entry("", 0, 0),
    }
    bench = open_journal(segment_size=2048)
    assert {stream: bench.journal.bounds(stream) for stream in streams} == before
    assert bench.journal.floor == skip
    assert bench.journal.bounds("gone") == ((6, 5) if kept > 1 else (skip + 1, skip))
    bench.close()
    assert verify(bench.directory).problems == []


def leave_damaged_beginning(bench) -> None:  # type: ignore[no-untyped-def]
    """Cut the last segment behind its first batch, and damage that; MARK is gone."""
    last = scan.segments(bench.directory)[-1]
    with scan.SegmentReader(last.path, last.base) as reader:
        header = reader.batch(last.base + 64)[0]
    os.truncate(last.path, header.end - last.base)
    patch(bench, header.position + 70, b"damage")
    (bench.directory / "MARK").unlink()


def test_a_segment_with_only_a_damaged_beginning_is_replaced(open_journal) -> None:
    """Without MARK, the durable mark is unknown; but every segment of a server begins with a batch."""
    bench = open_journal(segment_size=2048)
    for _ in range(3):
        bench.append(b"x" * 900)
    bench.close()
    leave_damaged_beginning(bench)
    bench = open_journal(segment_size=2048, quarantine=True)
    assert bench.payloads() == [b"x" * 900] * 2


def test_time_does_not_go_back_if_only_the_header_of_a_segment_is_left(open_journal) -> None:
    now, back = 1_700_000_000_000_000, 40_000_000
    bench = open_journal(now=lambda: now, segment_size=2048)
    for _ in range(3):
        bench.append(b"x" * 900)
    bench.close()
    for segment in scan.segments(bench.directory)[:-1]:
        segment.path.unlink()
    leave_damaged_beginning(bench)
    bench = open_journal(now=lambda: now - back, segment_size=2048, quarantine=True)
    bench.append(b"later")
    assert [run.time for run in bench.records()] >= [now]


def test_first_record_of_a_stream_is_named_if_it_is_lost(open_journal) -> None:
    bench = open_journal()
    bench.append(b"before", stream="old")
    at = bench.journal.writer.position
    bench.append(b"lost", stream="new")
    bench.append(b"kept", stream="new")
    bench.crash()
    patch(bench, at + 70, b"damage")
    note = quarantine.set_aside(bench.directory, Files())[-1]
    assert note.endswith("; lost records: 'new' 1-1")


def test_numbers_of_a_stream_that_was_retired_behind_the_damage_are_named(open_journal) -> None:
    bench = open_journal()
    bench.append(b"kept")
    at = bench.journal.writer.position
    bench.append(*[b"lost"] * 5, stream="t")
    bench.journal.retire(["t"])
    bench.append(b"kept, too")
    bench.crash()
    patch(bench, at + 70, b"damage")
    quarantine.set_aside(bench.directory, Files())
    assert ("t", 1, 5) in gaps(bench)
    assert verify(bench.directory).problems == []


def test_a_damaged_beginning_of_the_oldest_segment_is_replaced_by_what_follows(open_journal) -> None:
    """The numbers before it were deleted by retention, and are not lost."""
    bench = open_journal(segment_size=1 << 10, keep_bytes=2000)
    for _ in range(6):
        bench.append(bytes(900))
        if len(scan.segments(bench.directory)) == 2:
            scan.segments(bench.directory)[0].path.unlink()
            break
    bench.append(bytes(900))
    bench.crash()
    first = scan.segments(bench.directory)[0]
    mark = scan.look_at_mark(bench.directory, Files())
    (bench.directory / "MARK").write_bytes(scan.pack_mark(mark.durable, first.base))
    patch(bench, first.base + 64 + 70, b"damage")
    quarantine.set_aside(bench.directory, Files())
    assert verify(bench.directory).problems == []
    again = open_journal(segment_size=1 << 10)
    assert again.journal.bounds("s") == (2, 3)
