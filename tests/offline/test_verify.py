"""Verify reports no problems of an undamaged journal, whatever its history, and all of a damaged one."""

from __future__ import annotations

import random
from pathlib import Path

import attrs
import pytest
from crc32c import crc32c

from fyrehose.errors import JournalError
from fyrehose.journal import format as fmt
from fyrehose.journal import packing, scan
from fyrehose.journal.ends import END, vouched_end
from fyrehose.journal.files import Files
from fyrehose.journal.quarantine import set_aside
from fyrehose.journal.settings import durability
from fyrehose.journal.streams import StreamLimits
from fyrehose.offline.backup import Backup
from fyrehose.offline.dump import stats
from fyrehose.offline.mirror import Replica
from fyrehose.offline.places import Directory
from fyrehose.offline.verify import Report, verify
from fyrehose.offline.walk import Batch, Log, walk
from fyrehose.records import Run
from tests.doubles.disk import WatchedFiles


def fill(bench, count: int = 60) -> None:  # type: ignore[no-untyped-def]
    for i in range(count):
        bench.append(b"%04d" % i * 20)
        if i % 4 == 0:
            bench.append(b"other", stream="o")


def problems(directory: Path) -> list[str]:
    return [str(problem) for problem in verify(directory).problems]


def batches(directory: Path) -> list[Batch]:
    return [found for found in walk(Log.of(directory)) if isinstance(found, Batch)]


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_undamaged_journal_has_no_problems(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    fill(bench)
    told: list[tuple[int, int]] = []
    report = verify(bench.directory, lambda done, total: told.append((done, total)))
    assert report.problems == []
    assert (report.records, report.streams) == (75, 2)
    assert report.segments == len(scan.segments(bench.directory))
    assert report.end == report.mark == scan.read_mark(bench.directory)
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]
    bench.close()
    report = verify(bench.directory)
    assert (report.problems, report.notes, report.gaps) == ([], [], [])


def test_every_byte_is_counted_once(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    fill(bench)
    report = verify(bench.directory)
    found = scan.segments(bench.directory)
    assert report.size == report.end == found[-1].end - report.allocated
    assert 0 < report.allocated < 4096
    bench.close()
    told: list[tuple[int, int]] = []
    report = verify(bench.directory, lambda done, total: told.append((done, total)))
    size = sum(segment.size for segment in found[:-1]) + scan.segments(bench.directory)[-1].size
    assert (report.size, report.end, report.allocated) == (size, size, 0)
    assert report.batches == 75 + len(found) + 1  # with the first batches of segments, and CLOSED
    assert told[-2:] == [(size - 64 * len(found), size), (size, size)]


def test_damage_is_reported_with_its_place_and_the_lost_numbers(open_journal) -> None:
    """A damaged range is one problem; numbers that later batches show to be lost are reported as gaps."""
    bench = open_journal()
    for i in range(6):
        bench.append(b"%d" % i)
        bench.append(b"%d" % i, stream="o")
    bench.close()
    (segment,) = scan.segments(bench.directory)
    reader = scan.SegmentReader(segment.path, 0)
    found = [header for header, _ in reader.batches(64, segment.end)]
    reader.close()
    third = found[3]
    patch(segment.path, third.position + 70, b"damage")
    report = verify(bench.directory)
    size = third.end - third.position
    (problem,) = report.problems
    assert str(problem).startswith(f"{segment.path.name} at byte {third.position}: ")
    assert str(problem).endswith(f" ({size} bytes)")
    assert report.gaps == [fmt.Entry("s", 2, 2)]
    assert (report.end, report.size, report.records) == (segment.end, segment.end - size, 11)


def test_damaged_batches_that_follow_each_other_are_one_problem(open_journal) -> None:
    bench = open_journal()
    for i in range(6):
        bench.append(b"%d" % i)
    bench.close()
    second, third = [header for _, header in places(bench.directory)][2:4]
    for header in (second, third):
        patch(scan.segments(bench.directory)[0].path, header.position + 70, b"damage")
    (problem,) = verify(bench.directory).problems
    assert problem.offset == second.position
    assert problem.what.endswith(f" ({third.end - second.position} bytes)")


def test_after_damage_every_stream_may_have_lost_numbers_once(open_journal) -> None:
    bench = open_journal()
    bench.append(b"1")
    bench.append(b"lost", stream="o")
    forge(bench, run(4, b"x"))
    forge(bench, run(6, b"y"))
    bench.close()
    (segment,) = scan.segments(bench.directory)
    reader = scan.SegmentReader(segment.path, 0)
    lost = [header for header, _ in reader.batches(64, segment.end)][2]
    reader.close()
    patch(segment.path, lost.position + 70, b"damage")
    report = verify(bench.directory)
    assert report.gaps == [fmt.Entry("s", 2, 3)]
    assert [problem.what for problem in report.problems[1:]] == ["stream 's' skips 5 to 5, and no gap is noted"]


def test_numbers_skipped_after_a_record_behind_damage_are_a_separate_problem(open_journal) -> None:
    bench = open_journal()
    bench.append(b"1")
    bench.append(b"lost", stream="o")
    forge(bench, run(2, b"x"))
    forge(bench, run(4, b"y"))
    bench.close()
    patch(scan.segments(bench.directory)[0].path, places(bench.directory)[2][1].position + 70, b"damage")
    report = verify(bench.directory)
    assert report.gaps == []
    assert [problem.what for problem in report.problems[1:]] == ["stream 's' skips 3 to 3, and no gap is noted"]


def test_number_of_reported_problems_is_limited(open_journal) -> None:
    bench = open_journal()
    for first in (5, 10, 15, 20, 25):
        forge(bench, run(first, b"x"))
    assert len(verify(bench.directory).problems) == 5
    assert len(verify(bench.directory, most=3).problems) == 3


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([("s", 3, fmt.StreamState.RETIRED)], []),
        ([("s", 2, fmt.StreamState.RETIRED)], ["goes back from 3 to 2", "skips 3 to 3"]),
        ([("s", 5, fmt.StreamState.RETIRED)], ["skips 4 to 5", "goes back from 5 to 3"]),
        ([("s", 3, fmt.StreamState.FORGOTTEN), ("", 7, fmt.StreamState.LIVE)], ["'s' goes back from 7 to 3"]),
        ([("s", 3, fmt.StreamState.FORGOTTEN), ("", 3, fmt.StreamState.LIVE)], []),
    ],
)
def test_retired_streams_are_compared_with_the_records(open_journal, entries, said: list[str]) -> None:
    bench = open_journal()
    bench.append(b"1", b"2", b"3")
    forge(bench, kind=fmt.Kind.STREAMS, entries=[fmt.Entry(stream, 0, last, state) for stream, last, state in entries])
    forge(bench, run(4, b"back"))
    found = problems(bench.directory)
    assert all(what in problem for what, problem in zip(said, found, strict=True))


@pytest.mark.parametrize("mode", ["batch", "never"])
def test_gaps_that_crashes_leave_are_no_problems(open_journal, mode: str) -> None:
    for _ in range(3):
        bench = open_journal(segment_size=4096, durability=durability(mode))
        fill(bench, 30)
        bench.crash()
    bench = open_journal(segment_size=4096, durability=durability(mode))
    fill(bench, 30)
    bench.close()
    report = verify(bench.directory)
    assert report.problems == []
    assert {gap.stream for gap in report.gaps} == ({"s", "o"} if mode == "never" else set())
    assert len(report.gaps) == (6 if mode == "never" else 0)


@pytest.mark.parametrize("mark", [None, b"", "flipped"])
def test_damage_is_found_without_a_mark_file(open_journal, mark: object) -> None:
    bench = open_journal()
    fill(bench)
    bench.close()
    path = bench.directory / "MARK"
    if mark is None:
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[3] ^= 4
        path.write_bytes(data if mark == "flipped" else b"")
    report = verify(bench.directory)
    assert report.records == 75, "not nothing"
    assert any("what follows the end that was checked is unknown" in note for note in report.notes)
    patch(scan.segments(bench.directory)[0].path, 2000, b"damage")
    assert len(verify(bench.directory).problems) == 1


def test_bytes_that_were_not_checked_are_noted(open_journal) -> None:
    bench = open_journal()
    fill(bench)
    position = bench.journal.writer.position
    bench.crash()
    (bench.directory / "MARK").unlink()
    report = verify(bench.directory)
    assert report.records < 75
    behind = position - report.end
    (note,) = [note for note in report.notes if note.startswith("not checked: ")]
    # The last bytes may be padding: zeros, as behind them.
    assert note.partition(",")[0] in {f"not checked: {behind - n} bytes behind position {report.end}" for n in range(8)}
    assert abs(report.allocated - ((1 << 20) - position)) < 8
    assert verify(bench.directory, everything=True).records == 75


def test_journal_without_checkable_batches_is_an_error(open_journal) -> None:
    bench = open_journal()
    bench.crash()
    segment = scan.segments(bench.directory)[0]
    segment.path.write_bytes(segment.path.read_bytes()[:64])
    (bench.directory / "MARK").unlink()
    with pytest.raises(JournalError, match=r"nothing .* could be checked"):
        verify(bench.directory)


def test_a_last_batch_that_is_not_the_one_of_the_backup_is_reported_with_its_place(  # type: ignore[no-untyped-def]
    open_journal, tmp_path: Path
) -> None:
    bench, target = open_journal(segment_size=4096), tmp_path / "copy"
    fill(bench)
    with Replica(target, Files()) as replica:
        Backup(Directory(bench.directory), replica).run()
    last = batches(target)[-1]
    segment, at = last.segment, last.header.position
    assert problems(target) == []
    end = vouched_end(target, Files())
    assert end is not None
    for other in (attrs.evolve(end, chain=end.chain ^ 1), attrs.evolve(end, identity=bytes(16))):
        (target / END).write_bytes(other.pack())
        what = "the last batch is not the one that the file END names, which is of another log, or damaged"
        assert problems(target) == [f"{segment.path.name} at byte {at - segment.base}: {what}"]


def test_missing_oldest_segments_are_reported(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    fill(bench)
    bench.close()
    scan.segments(bench.directory)[0].path.unlink()
    (problem,) = problems(bench.directory)
    assert "retention did not delete them" in problem


def test_retention_is_no_damage(open_journal) -> None:
    bench = open_journal(segment_size=4096, keep_bytes=9000)
    bench.append(b"once", stream="rare")
    fill(bench, 200)
    report = verify(bench.directory)
    assert report.problems == []
    assert report.streams == 3


@pytest.mark.parametrize("seed", range(8))
def test_damage_is_reported_until_quarantine_has_replaced_it(open_journal, seed: int) -> None:
    rng = random.Random(seed)
    bench = open_journal(segment_size=4096)
    fill(bench, 100)
    bench.close()
    segment = rng.choice(scan.segments(bench.directory))
    at = rng.randrange(segment.size)
    patch(segment.path, at, bytes([segment.path.read_bytes()[at] ^ 1 << rng.randrange(8)]))
    assert problems(bench.directory)
    bench = open_journal(segment_size=4096, quarantine=True)
    fill(bench, 5)
    bench.close()
    assert problems(bench.directory) == []


def packed(bench, entries, ahead: int = 0, kind=fmt.Kind.RECORDS, time: int = 1_000_000):  # type: ignore[no-untyped-def]
    """Return the header and the bytes of the next batch, whose durable position is *ahead* bytes beyond the end."""
    writer = bench.journal.writer
    return packing.batch(
        kind,
        entries,
        position=writer.position,
        durable=writer.position + ahead,
        time=time,
        clock=1,
        chain=writer.chain,
    )


def forge(bench, *runs: Run, kind=fmt.Kind.RECORDS, entries=None, time: int = 1_000_000) -> None:  # type: ignore[no-untyped-def]
    """Append an invalid batch with the right checksums."""
    writer = bench.journal.writer
    header, data = packed(bench, list(runs) if entries is None else entries, kind=kind, time=time)
    writer.apply(header.position, data)
    writer.sync()


def replace_end(directory: Path, data: bytes) -> None:
    """Replace the last batch by *data*, which has the same size."""
    last = scan.segments(directory)[-1]
    header = places(directory)[-1][1]
    assert len(data) == header.end - header.position
    patch(last.path, header.position - last.base, data)


def run(first: int, *payloads: bytes, stream: str = "s") -> Run:
    return Run.of(stream, payloads, source="t").numbered(first, 1)


@pytest.mark.parametrize(
    ("stream", "first", "said"),
    [
        ("s", 5, "skips 4 to 4"),
        ("s", 3, "goes back from 3 to 2"),
        ("s", 1, "goes back from 3 to 0"),
        ("new", 2, "skips 1 to 1"),
    ],
)
def test_numbers_without_a_record_or_a_gap_are_reported(open_journal, stream: str, first: int, said: str) -> None:
    bench = open_journal()
    bench.append(b"1", b"2", b"3")
    forge(bench, run(first, b"x", stream=stream))
    (problem,) = problems(bench.directory)
    assert said in problem


def test_numbers_that_a_gap_notes_are_not_reported(open_journal) -> None:
    bench = open_journal()
    bench.append(b"1", b"2", b"3")
    forge(bench, kind=fmt.Kind.GAP, entries=[fmt.Entry("s", 4, 9), fmt.Entry("", 1, 100)])
    forge(bench, run(10, b"x"), run(101, b"y", stream="new"))
    assert problems(bench.directory) == []
    forge(bench, run(100, b"z", stream="newer"))
    (problem,) = problems(bench.directory)
    assert "'newer' goes back" in problem


def test_numbers_that_are_missing_before_a_gap_are_reported(open_journal) -> None:
    bench = open_journal()
    bench.append(b"1", b"2", b"3")
    forge(bench, kind=fmt.Kind.GAP, entries=[fmt.Entry("s", 6, 9)])
    forge(bench, run(10, b"x"))
    (problem,) = problems(bench.directory)
    assert "stream 's' skips 4 to 5" in problem


def test_time_that_goes_back_is_reported(open_journal) -> None:
    bench = open_journal()
    bench.append(b"x")
    forge(bench, run(2, b"y"), time=999_999)
    assert "time of the batch is before" in problems(bench.directory)[0]


def test_run_with_wrong_lengths_is_reported(open_journal) -> None:
    bench = open_journal()
    bad = Run(stream="s", source="t", lengths=(9).to_bytes(4, "little"), payload=b"abc", first_seq=1)
    forge(bench, bad)
    assert "another size than the sum of its lengths" in problems(bench.directory)[0]


def test_segment_that_lacks_a_stream_is_reported(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    bench.append(b"x", stream="forgotten")
    del bench.journal.writer.streams.ends["forgotten"]
    fill(bench)
    said = problems(bench.directory)
    assert "lacks 1 stream, such as 'forgotten'" in said[0]
    assert len(said) == 1 or "forgotten" in said[1]


class TestIndexes:
    @pytest.fixture
    def index(self, open_journal) -> Path:  # type: ignore[no-untyped-def]
        bench = open_journal(segment_size=4096)
        fill(bench)
        bench.close()
        return sorted(bench.directory.glob("*.index"))[1]

    def report(self, index: Path) -> Report:
        return verify(index.parent)

    def test_missing_or_damaged_index_is_only_noted(self, index: Path) -> None:
        data = index.read_bytes()
        index.write_bytes(data[:-1] + b"\xff")
        assert "will be rebuilt" in self.report(index).notes[0]
        index.unlink()
        assert "is missing" in self.report(index).notes[0]
        assert self.report(index).problems == []

    def test_index_that_does_not_match_its_segment_is_reported(self, index: Path) -> None:
        data = bytearray(index.read_bytes())
        data[-8] ^= 8  # the position of a stream's batch
        data[48:52] = bytes(4)
        data[48:52] = crc32c(bytes(data)).to_bytes(4, "little")
        index.write_bytes(data)
        assert "does not match its segment" in str(self.report(index).problems[0])


def test_segments_that_retention_deletes_meanwhile_are_no_damage(open_journal, monkeypatch) -> None:
    bench = open_journal(segment_size=4096)
    bench.append(b"only at the beginning", stream="rare")
    fill(bench, 100)
    deleted = scan.segments(bench.directory)[1:4]

    def delete(done: int, total: int) -> None:
        for segment in deleted:
            segment.path.unlink(missing_ok=True)

    report = verify(bench.directory, delete)
    assert report.problems == []
    assert 0 < report.records < 126


def test_streams_retired_in_segments_that_retention_deletes_meanwhile_are_not_counted(
    open_journal, monkeypatch
) -> None:
    bench = open_journal(segment_size=4096, stream_limits=StreamLimits(retired=1))
    for name in ("a", "b"):
        bench.append(b"x", stream=name)
    fill(bench, 50)
    for name in ("a", "b"):
        bench.journal.retire([name])
    fill(bench, 100)
    deleted = scan.segments(bench.directory)[1:-1]

    def delete(done: int, total: int) -> None:
        for segment in deleted:
            segment.path.unlink(missing_ok=True)

    report = verify(bench.directory, delete)
    assert (report.problems, report.segments) == ([], 2)
    assert report.streams == 3, "a is forgotten"


def test_segment_with_another_chain_is_reported(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    fill(bench)
    bench.close()
    found = scan.segments(bench.directory)
    header = fmt.SegmentHeader.unpack(found[1].path.read_bytes()[:64])
    patch(found[1].path, 0, fmt.SegmentHeader(header.base, header.created, header.chain ^ 1).pack())
    said = f"{found[1].path.name} at byte 0: the segment does not continue from the previous one"
    assert said in problems(bench.directory)


def test_a_damaged_header_of_a_segment_is_one_problem(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    fill(bench)
    bench.close()
    found = scan.segments(bench.directory)
    patch(found[1].path, 20, b"damage")
    (problem,) = problems(bench.directory)
    assert problem.startswith(f"{found[1].path.name} at byte 0: the header of the segment is damaged")


@pytest.mark.parametrize(
    ("ahead", "records", "what"), [(8, 1, "beyond its own"), (0, 7, "the counts in the header of the batch are wrong")]
)
def test_invalid_batch_with_right_checksums_is_reported(open_journal, ahead, records, what) -> None:
    bench = open_journal()
    bench.append(b"x")
    header, data = packed(bench, [run(2, b"y")], ahead)
    forge(bench, run(2, b"y"))
    replace_end(bench.directory, attrs.evolve(header, records=records).pack() + data[64:])
    assert what in " ".join(problems(bench.directory))


def test_contradicting_lengths_are_reported(open_journal) -> None:
    bench = open_journal()
    bench.append(b"x")
    header, data = packed(bench, [run(2, b"y")])
    body = b"\xf0" + data[65:]
    forge(bench, run(2, b"y"))
    replace_end(bench.directory, attrs.evolve(header, checksum=crc32c(body, header.chain)).pack() + body)
    assert "the checksum of the batch is right, but" in problems(bench.directory)[0]


def places(directory: Path) -> list[tuple[scan.Segment, fmt.BatchHeader]]:
    """Return every batch, with its segment."""
    return [(found.segment, found.header) for found in walk(Log.of(directory)) if isinstance(found, Batch)]


def test_damage_of_any_batch_is_one_problem_and_none_after_quarantine(open_journal) -> None:
    """The batches behind the damage, also in the next segment, are not reported as further problems."""
    bench = open_journal(segment_size=2048)
    for i in range(4):
        bench.append(b"%d" % i * 900)
        bench.append(b"other", stream="o")
    bench.append(b"the end is not lost")
    bench.close()
    mark = scan.look_at_mark(bench.directory, Files())
    bench.directory.joinpath("MARK").write_bytes(
        scan.pack_mark(mark.durable, mark.begin)
    )  # the damage is in no particular file
    whole = {path.name: path.read_bytes() for path in bench.directory.iterdir()}
    found = places(bench.directory)
    size = sum(segment.size for segment in scan.segments(bench.directory))
    assert len({segment.base for segment, _ in found}) >= 3
    for segment, header in found[:-1]:  # the last one says that the journal was closed in order
        patch(segment.path, header.position - segment.base + 70, b"damage")
        told: list[tuple[int, int]] = []
        report = verify(bench.directory, lambda done, total, told=told: told.append((done, total)))
        assert [(problem.path, problem.offset) for problem in report.problems] == [
            (segment.path, header.position - segment.base)
        ]
        lost = header.end - header.position
        assert (report.end, report.size, report.batches) == (size, size - lost, len(found) - 1)
        assert told[-2][0] == size - 64 * report.segments
        assert {gap.stream for gap in report.gaps} <= ({"s", "o"} if header.records else set())
        set_aside(bench.directory, WatchedFiles())
        assert verify(bench.directory).problems == []
        for path in bench.directory.iterdir():
            path.unlink()
        for name, content in whole.items():
            bench.directory.joinpath(name).write_bytes(content)


def test_a_stream_that_was_forgotten_since_the_snapshot_is_found_in_its_own_segment(open_journal) -> None:
    limits = StreamLimits(inline=0, retired=1)
    bench = open_journal(segment_size=4096, stream_limits=limits)
    bench.append(bytes(4000), stream="first")
    bench.append(bytes(4000), stream="a")  # the next segment refers to an earlier snapshot, which lacks this stream
    bench.append(b"x", stream="b")
    bench.journal.retire(["a", "b"])
    bench.crash()
    bench = open_journal(segment_size=4096, stream_limits=limits)
    bench.journal.retire(["first"])
    assert "a" not in bench.journal.retired(), "it is forgotten"
    bench.append(bytes(4000), stream="c")
    bench.append(b"x", stream="c")
    bench.close()
    assert verify(bench.directory).problems == []


def test_a_stream_that_was_forgotten_in_a_damaged_batch_is_no_problem_of_its_own(open_journal) -> None:
    bench = open_journal(segment_size=4096, stream_limits=StreamLimits(retired=1))
    for name in ("a", "b"):
        bench.append(b"x", stream=name)
        at = bench.journal.writer.position
        bench.journal.retire([name])
    bench.append(bytes(4000))
    bench.crash()
    found = scan.segments(bench.directory)
    assert len(found) == 2
    patch(found[0].path, at + 70, b"damage")
    (problem,) = problems(bench.directory)
    assert f"{found[0].path.name} at byte {at}" in problem


@pytest.mark.parametrize("which", [0, -1])
def test_sparse_segments_are_verified_and_read_without_their_holes(open_journal, which: int) -> None:
    """A sealed segment, or the last one, with a byte behind a hole of 64 GiB."""
    bench = open_journal(segment_size=4096)
    for i in range(50):
        bench.append(b"%03d" % i * 100)
    bench.close()
    segment = scan.segments(bench.directory)[which]
    with segment.path.open("r+b") as file:
        file.seek(64 << 30)
        file.write(b"x")
    report = verify(bench.directory)
    assert (report.records, len(report.problems)) == (50, 1 if which == 0 else 0)
    assert stats(bench.directory).records == 50
