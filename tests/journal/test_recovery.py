"""Recovery truncates torn tails, refuses damage, and quarantine leaves a visible gap.

The rules are those of docs/journal-format.md.  A record counts as acknowledged here when the Deferred of its append
has fired.
"""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from crc32c import crc32c

from fyrehose.errors import JournalCorrupt, JournalError, JournalFailed
from fyrehose.journal import format as fmt
from fyrehose.journal import packing, scan
from fyrehose.journal.files import Files
from fyrehose.journal.recovery import next_whole, recover
from fyrehose.journal.writer import Writer
from fyrehose.records import Run
from tests.doubles.disk import NameAdded, RecordingFiles, images, put, what_stays
from tests.doubles.files import FaultyFiles


def last_segment(bench) -> Path:  # type: ignore[no-untyped-def]
    return scan.segments(bench.directory)[-1].path


def batches(bench) -> list[fmt.BatchHeader]:  # type: ignore[no-untyped-def]
    """Return the batches of the last segment."""
    segment = scan.segments(bench.directory)[-1]
    found = []
    with scan.SegmentReader(segment.path, segment.base) as reader, suppress(fmt.Damage):  # the zeros behind the end
        for header, _ in reader.batches(segment.base + 64, segment.end):
            found.append(header)
    return found


def patch(path: Path, offset: int, data: bytes) -> None:
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, data, offset)
    os.close(fd)


def forget_mark(bench) -> None:  # type: ignore[no-untyped-def]
    (bench.directory / "MARK").unlink()


class TestTornTail:
    """A batch that was being written when the process or the machine died was never acknowledged."""

    @pytest.mark.parametrize("what", ["truncate", "zeros", "garbage"])
    def test_damage_at_any_byte_of_an_unacknowledged_last_batch_is_truncated(self, open_journal, what: str) -> None:
        bench = open_journal(segment_size=1 << 14)
        bench.append(b"first")
        durable = scan.read_mark(bench.directory)
        bench.append(b"second" * 20)
        bench.crash()
        torn = batches(bench)[-1]
        path = last_segment(bench)
        whole = path.read_bytes()
        rng = random.Random(1)
        for cut in range(torn.position, torn.end):
            path.write_bytes(whole)
            (bench.directory / "MARK").write_bytes(scan.pack_mark(durable))
            if what == "truncate":
                os.truncate(path, cut)
            elif what == "zeros":
                patch(path, cut, bytes(torn.end - cut))
            else:
                patch(path, cut, bytes([whole[cut] ^ 1 + rng.randrange(255)]) + rng.randbytes(torn.end - cut - 1))
            found = recover(bench.directory, Files())
            assert found.streams.ends == {"s": 1}
            assert found.position == torn.position
            assert path.read_bytes()[: torn.position] == whole[: torn.position]
            aside = bench.directory / f"torn-{torn.position:016x}.bytes"
            if what == "garbage" or cut > torn.position:
                assert aside.exists(), "what is cut off is kept"
                assert path.stat().st_size == torn.position
            aside.unlink(missing_ok=True)

    def test_writing_continues_where_a_torn_tail_was_truncated(self, open_journal) -> None:
        bench = open_journal()
        bench.append(b"first")
        durable = scan.read_mark(bench.directory)
        bench.append(b"torn")
        bench.crash()
        last = batches(bench)[-1]
        patch(last_segment(bench), last.end - 9, b"\xff")
        (bench.directory / "MARK").write_bytes(scan.pack_mark(durable))
        bench = open_journal()
        assert any("never acknowledged" in line for line in bench.journal.report.lines())
        bench.append(b"second")
        bench.crash()
        assert open_journal().payloads() == [b"first", b"second"]

    def test_the_bytes_of_a_torn_tail_in_a_later_segment_are_set_aside_unchanged(self, open_journal) -> None:
        bench = open_journal(segment_size=1 << 12)
        for _ in range(2):
            bench.append(bytes(3000))
        durable = scan.read_mark(bench.directory)
        bench.append(b"torn")
        bench.crash()
        segment = scan.segments(bench.directory)[-1]
        assert 0 < segment.base < durable
        end = bench.journal.writer.position
        patch(segment.path, end - segment.base - 9, b"\xff")
        data = segment.path.read_bytes()[durable - segment.base : end - segment.base]
        (bench.directory / "MARK").write_bytes(scan.pack_mark(durable))
        open_journal(segment_size=1 << 12)
        (aside,) = bench.directory.glob("torn-*.bytes")
        assert aside.read_bytes() == data.rstrip(b"\0")

    def test_an_intact_later_batch_of_the_same_torn_commit_does_not_stop_a_start(self, open_journal) -> None:
        """Unsynced pages reach the disk in any order: the second batch of a commit may be intact, the first not."""
        bench = open_journal()
        bench.append(b"first")
        durable = scan.read_mark(bench.directory)
        position, chain = bench.journal.writer.position, bench.journal.writer._chain
        data = b""
        for seq in (2, 3):
            run = Run.of("s", [b"unsynced"], source="t").numbered(seq, 1)
            header, encoded = packing.batch(
                fmt.Kind.RECORDS, [run], position=position, durable=durable, time=1, clock=1, chain=chain
            )
            position, chain = header.end, header.checksum
            data += encoded
        bench.crash()
        torn = bytearray(data)
        torn[70] ^= 1
        patch(last_segment(bench), durable, torn)
        bench = open_journal()
        assert bench.payloads() == [b"first"]


class TestCorruption:
    """If acknowledged records are damaged or missing, the journal does not open, and nothing is changed."""

    @pytest.fixture
    def broken(self, open_journal):  # type: ignore[no-untyped-def]
        bench = open_journal(segment_size=4096)
        for i in range(40):
            bench.append(b"%04d" % i * 20)
            bench.append(b"other %d" % i, stream="o")
        bench.close()
        return bench

    def refuses(self, open_journal, bench, match: str) -> None:  # type: ignore[no-untyped-def]
        before = {path.name: path.read_bytes() for path in bench.directory.iterdir() if path.name != "LOCK"}
        with pytest.raises(JournalCorrupt, match=match) as refused:
            open_journal(segment_size=4096)
        assert refused.value.exit_status == 3
        assert "--quarantine" in str(refused.value)
        after = {path.name: path.read_bytes() for path in bench.directory.iterdir() if path.name != "LOCK"}
        assert before == after

    @pytest.mark.parametrize(
        ("harm", "match"),
        [
            (lambda found: patch(found[-1].path, 300, b"\xff"), "damaged at byte"),
            (lambda found: patch(found[1].path, 1000, b"\xff\xff"), "damaged at byte"),
            (lambda found: patch(found[2].path, 20, b"\xff"), "header of the segment"),
            (lambda found: found[2].path.unlink(), "missing or truncated"),
            (lambda found: found[-1].path.unlink(), "the end of the log is missing"),
        ],
        ids=["last segment", "sealed segment", "header of a segment", "segment missing", "last segment missing"],
    )
    def test_damaged_or_missing_segment_is_refused(self, open_journal, broken, harm: Any, match: str) -> None:
        harm(scan.segments(broken.directory))
        self.refuses(open_journal, broken, match)

    def test_damage_that_a_later_batch_notes_as_durable_is_refused(self, open_journal) -> None:
        """This works without MARK, because a later batch notes what was durable."""
        bench = open_journal()
        for payload in (b"a", b"b", b"c"):
            bench.append(payload)
        bench.crash()
        forget_mark(bench)
        patch(last_segment(bench), batches(bench)[1].position + 70, b"\xff")
        self.refuses(open_journal, bench, "damaged at byte")

    @pytest.mark.parametrize(("cut", "match"), [(False, "damaged at byte"), (True, "the end of the log is missing")])
    def test_last_acknowledged_batch_that_is_zeros_or_missing_is_refused(
        self, open_journal, cut: bool, match: str
    ) -> None:
        bench = open_journal()
        bench.append(b"a")
        bench.crash()
        last = batches(bench)[-1]
        if cut:
            os.truncate(last_segment(bench), last.position)
        else:
            patch(last_segment(bench), last.position, bytes(last.end - last.position))
        self.refuses(open_journal, bench, match)

    def test_a_newer_format_does_not_count_as_damage(self, open_journal, broken) -> None:
        segment = scan.segments(broken.directory)[-1]
        header = bytearray(segment.path.read_bytes()[:64])
        header[8] = 9
        header[-4:] = crc32c(bytes(header[:-4])).to_bytes(4, "little")
        patch(segment.path, 0, bytes(header))
        said = r"cannot be read: it was written by a newer .* \(format version 9; .*\); serve it with that version"
        with pytest.raises(JournalCorrupt, match=said) as refused:
            open_journal(segment_size=4096)
        assert "--quarantine" not in str(refused.value)
        before = {path.name: path.read_bytes() for path in broken.directory.iterdir() if path.name != "LOCK"}
        with pytest.raises(JournalCorrupt, match=said):
            open_journal(segment_size=4096, quarantine=True)
        assert before == {path.name: path.read_bytes() for path in broken.directory.iterdir() if path.name != "LOCK"}

    def test_a_journal_without_its_oldest_segments_is_refused(self, open_journal, broken) -> None:
        for segment in scan.segments(broken.directory)[:2]:
            segment.path.unlink()
        begin = scan.segments(broken.directory)[0].base
        self.refuses(open_journal, broken, f"are missing: its log began at position 0, not at {begin}")

    def test_missing_segments_are_refused(self, open_journal, broken) -> None:
        for segment in scan.segments(broken.directory):
            segment.path.unlink()
        with pytest.raises(JournalCorrupt, match="has no segments"):
            open_journal()

    def test_damage_in_an_unchecked_segment_is_found_by_reading(self, open_journal, broken) -> None:
        patch(scan.segments(broken.directory)[1].path, 2000, b"\xff\xff")
        for index in broken.directory.glob("*.index"):
            index.unlink()
        bench = open_journal(segment_size=4096, verify=0)
        with pytest.raises(JournalCorrupt, match="damaged at byte"):
            bench.payloads()
        assert bench.payloads("o", 40) == [b"other 39"]


@pytest.mark.parametrize(("more", "checked"), [(-1, 2), (0, 2), (1, 3)])
def test_recovery_checks_as_many_bytes_of_sealed_segments_as_verify_says_newest_first(
    open_journal, more: int, checked: int
) -> None:
    bench = open_journal(segment_size=2048)
    for i in range(16):
        bench.append(b"%d" % i * 400)
    bench.close()
    sealed = scan.segments(bench.directory)[:-1]
    assert len(sealed) > 4
    found = []
    for segment in sealed:
        whole = segment.path.read_bytes()
        patch(segment.path, 1000, b"damage")
        try:
            recover(bench.directory, Files(), verify=sum(each.size for each in sealed[-2:]) + more)
        except JournalCorrupt:
            found.append(segment)
        patch(segment.path, 0, whole)
    assert found == sealed[-checked:]


class TestQuarantine:
    def fill(self, bench, count: int = 60) -> dict[str, list[bytes]]:  # type: ignore[no-untyped-def]
        wrote: dict[str, list[bytes]] = {"s": [], "o": []}
        for i in range(count):
            wrote["s"].append(b"%04d" % i * 20)
            bench.append(wrote["s"][-1])
            if i % 4 == 0:
                wrote["o"].append(b"other %d" % i)
                bench.append(wrote["o"][-1], stream="o")
        return wrote

    def check(self, bench, wrote: dict[str, list[bytes]]) -> int:  # type: ignore[no-untyped-def]
        """Check that all served records are as they were written; return how many are lost."""
        lost = 0
        for stream, payloads in wrote.items():
            records = bench.records(stream)
            assert all(record.payload == payloads[record.seq - 1] for record in records)
            lost += len(payloads) - len(records)
            first = bench.next[stream]
            assert first > len(payloads) or records[-1].seq < first
            assert bench.append(b"new", stream=stream).called
            assert bench.records(stream)[-1].seq == first
            assert first > len(payloads), "no number is given out twice"
        return lost

    @pytest.mark.parametrize("where", ["first", "middle", "sealed end", "last", "header", "ends", "missing", "cut"])
    def test_a_damaged_range_becomes_a_gap(self, open_journal, where: str) -> None:
        bench = open_journal(segment_size=4096)
        wrote = self.fill(bench)
        bench.close()
        found = scan.segments(bench.directory)
        damage = {
            "first": (found[0], 200),
            "middle": (found[2], 1000),
            "sealed end": (found[1], found[1].size - 20),
            "last": (found[-1], 300),
            "header": (found[1], 10),
            "ends": (found[2], 70),
        }
        if where == "missing":
            found[2].path.unlink()
        elif where == "cut":
            os.truncate(found[2].path, 500)
        else:
            segment, offset = damage[where]
            patch(segment.path, offset, b"\xff\xfe\xfd")
        with pytest.raises(JournalCorrupt):
            open_journal(segment_size=4096)
        bench = open_journal(segment_size=4096, quarantine=True)
        lost = self.check(bench, wrote)
        assert (lost > 0) == (where not in ("header", "ends"))
        if where != "header":
            assert list(bench.directory.glob("quarantine-*.bytes"))
            assert any("set aside" in line for line in bench.journal.report.lines())
        bench.close()
        assert open_journal(segment_size=4096).journal.report.closed, "it opens without help from now on"

    def test_after_a_lost_end_of_the_log_no_number_is_used_again(self, open_journal) -> None:
        bench = open_journal()
        wrote = self.fill(bench, 10)
        bench.append(b"known to nobody else", stream="new")
        bench.append(*[b"gone"] * 100)
        bench.crash()
        last = batches(bench)[-2:]
        patch(last_segment(bench), last[0].position, bytes(last[1].end - last[0].position))
        bench = open_journal(quarantine=True)
        assert bench.next["s"] > 110
        assert bench.journal.floor >= 1
        assert bench.payloads("s") == wrote["s"]
        assert bench.append(b"again", stream="new").called
        assert bench.records("new")[0].seq > 1, "its first number was given out before"
        bench.close()
        again = open_journal()
        assert again.journal.floor == bench.journal.floor
        again.close()

    def test_quarantine_of_an_undamaged_journal_changes_nothing(self, open_journal) -> None:
        bench = open_journal(segment_size=4096)
        wrote = self.fill(bench)
        bench.crash()
        bench = open_journal(segment_size=4096, quarantine=True)
        assert not list(bench.directory.glob("quarantine-*"))
        assert {stream: bench.payloads(stream) for stream in wrote} == wrote


def test_flipped_bits_are_always_detected(open_journal) -> None:
    """This flips a sample of the bits; ``make torture`` flips every bit of a segment."""
    bench = open_journal(segment_size=1 << 16)
    wrote = [b"%08d" % i * 8 for i in range(300)]
    for i in range(0, 300, 10):
        bench.append(*wrote[i : i + 10])
    bench.crash()
    path = last_segment(bench)
    end = batches(bench)[-1].end
    whole = path.read_bytes()
    mark = (bench.directory / "MARK").read_bytes()
    rng = random.Random(2)
    for bit in rng.sample(range(8 * end), 1500):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(JournalCorrupt):
            recover(bench.directory, Files())
    path.write_bytes(whole)
    assert (bench.directory / "MARK").read_bytes() == mark
    assert open_journal(segment_size=1 << 16).payloads() == wrote


CALLS = ("open", "write", "sync", "allocate", "truncate", "rename", "sync_directory")


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EROFS"])
def test_recovery_after_any_system_call_has_failed(open_journal, logged_errors, name: str, error: str) -> None:
    """For every N, a restart serves the acknowledged records once and in order, and no others."""
    import errno

    nth = 0
    while True:
        nth += 1
        directory = None
        files = FaultyFiles(name=name, nth=nth, error=getattr(errno, error), short=10)
        acked: list[bytes] = []
        tried: list[bytes] = []
        try:
            bench = open_journal(files=files, segment_size=4096)
        except Exception:
            bench = None
        if bench is not None:
            directory = bench.directory
            for i in range(12):
                if bench.journal.state.value == "read-only":
                    bench.clock.advance(1)
                    bench.next = {s: end + 1 for s, end in bench.journal.ends().items()}
                payload = b"%d %d" % (nth, i) * 100
                tried.append(payload)
                if bench.journal.state.value == "writable":
                    appended = bench.append(payload)
                    appended.addCallbacks(lambda _, p=payload, acked=acked: acked.append(p), lambda f: None)
            bench.close()
        logged_errors.take()
        again = open_journal(segment_size=4096)
        served = again.payloads()
        assert [p for p in served if p in acked] == acked
        assert [p for p in tried if p in served] == served, "nothing that was not sent, nothing twice, in order"
        again.close()
        done = files.calls[name] < nth
        for path in again.directory.iterdir():
            path.unlink()
        assert directory is None or directory == again.directory
        if done:
            assert acked == tried, "without a fault everything is acknowledged"
            break
    assert nth > 2


def test_the_directory_is_synced_before_anything_is_appended_after_a_kill(tmp_path: Path) -> None:
    """The process was killed after it had renamed a new segment, before it synced the directory."""
    directory = tmp_path / "j"
    directory.mkdir()
    files = RecordingFiles(directory)
    writer = Writer(directory, recover(directory, files), 1 << 12, files=files)
    writer.open(1)
    writer.close(in_order=False)
    named = max(at for at, step in enumerate(files.log) if isinstance(step, NameAdded) and step.old)
    kept = what_stays(files, named + 1)
    put(directory, kept.files())
    files = RecordingFiles(directory, kept)
    writer = Writer(directory, recover(directory, files), 1 << 12, files=files)
    writer.open(1)
    writer.commit([[Run.of("s", [b"acknowledged"], source="test").numbered(1, 1)]], 1, 1)
    for state in images(files, len(files.log), Random(1), 5):
        assert any(b"acknowledged" in content for content in state.values())
    writer.close(in_order=False)


def test_a_directory_that_cannot_be_synced_is_a_failed_disk(tmp_path: Path) -> None:
    class Failing(Files):
        def sync_directory(self, directory: Path) -> None:
            raise OSError(5, "Input/output error")

    with pytest.raises(JournalFailed, match="cannot sync the directory: Input/output error"):
        recover(tmp_path, Failing())


def test_log_says_whether_the_journal_is_new_and_was_closed_in_order(open_journal) -> None:
    bench = open_journal()
    assert bench.journal.report.lines() == ["new"]
    bench.append(b"x", b"y")
    bench.close()
    bench = open_journal()
    end = bench.journal.report.position
    assert bench.journal.report.lines() == [f"1 stream, 2 numbers given out, log ends at {end} (closed in order)"]
    bench.append(b"z")
    bench.crash()
    assert "(not closed in order)" in open_journal().journal.report.lines()[0]


def test_the_search_for_a_batch_finds_one_at_the_beginning_of_a_piece(open_journal) -> None:
    bench = open_journal()
    for _ in range(3):
        bench.append(b"x" * 1000)
    bench.crash()
    segment = scan.segments(bench.directory)[0]
    second, third = batches(bench)[-2:]
    patch(segment.path, second.position, b"damage")

    class Splitting(Files):
        piece = third.position - second.position - 8  # the header of the third begins in one piece and ends in the next

    reader = scan.SegmentReader(segment.path, segment.base, Splitting())
    assert next_whole(reader, second.position, segment.end) == third.position
    reader.close()


def test_everything_behind_the_durable_mark_is_written_again_in_its_place(open_journal) -> None:
    bench = open_journal()
    bench.append(*(b"%d" % i * 1000 for i in range(10)))
    bench.crash()
    (bench.directory / "MARK").write_bytes(scan.pack_mark(64))
    before = last_segment(bench).read_bytes()

    class SmallPieces(FaultyFiles):
        piece = 3000

    files = SmallPieces()
    assert recover(bench.directory, files).position == bench.journal.writer.position
    assert files.calls["write"] == 4
    assert last_segment(bench).read_bytes() == before


def test_journal_that_was_closed_in_order_is_not_written_again(open_journal) -> None:
    bench = open_journal()
    bench.append(b"x")
    bench.close()
    files = FaultyFiles()
    recover(bench.directory, files)
    assert files.calls["write"] == 0


#: What may be in place of a file: nothing of it is waited for, written through, or read without a bound.
IRREGULAR = ("pipe", "directory", "link", "device", "sparse", "zeros")


def put_irregular(path: Path, kind: str) -> None:
    """Replace the file at *path*."""
    elsewhere = path.with_name("elsewhere")
    if kind == "link":
        path.rename(elsewhere)
    else:
        path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind in ("link", "device"):
        path.symlink_to(elsewhere if kind == "link" else "/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate((64 << 30) if kind == "sparse" else 100)


def closed_journal(open_journal: Any) -> Any:
    """Return a closed journal of several segments."""
    bench = open_journal(segment_size=4096)
    bench.fill(50)
    bench.close()
    return bench


@pytest.mark.parametrize("kind", IRREGULAR)
@pytest.mark.parametrize("which", ["first segment", "last segment", "MARK"])
def test_a_start_without_a_file_of_the_log_is_refused_with_its_name(open_journal: Any, which: str, kind: str) -> None:
    bench = closed_journal(open_journal)
    found = scan.segments(bench.directory)
    path = {"first segment": found[0].path, "last segment": found[-1].path, "MARK": bench.directory / "MARK"}[which]
    before = path.read_bytes()
    put_irregular(path, kind)
    if which == "MARK" and kind in ("sparse", "zeros"):
        open_journal(segment_size=4096).close()  # the batches tell what was durable
        return
    with pytest.raises(JournalError, match=path.name):
        open_journal(segment_size=4096)
    if kind in ("sparse", "zeros"):
        bench = open_journal(segment_size=4096, quarantine=True)
        assert bench.journal.report.notes, "the range is a gap"
        bench.close()
    if kind == "link":
        assert path.with_name("elsewhere").read_bytes() == before, "nothing was written through the link"


@pytest.mark.parametrize("kind", IRREGULAR)
def test_an_index_that_is_no_index_is_not_used(open_journal: Any, kind: str) -> None:
    bench = closed_journal(open_journal)
    put_irregular(scan.index_path_of(bench.directory, 0), kind)
    bench = open_journal(segment_size=4096)
    assert bench.journal.read("s", 1, 10)[0].first_seq == 1


@pytest.mark.parametrize("kind", IRREGULAR)
def test_a_subscription_that_cannot_be_read_keeps_the_log(open_journal: Any, kind: str) -> None:
    bench = closed_journal(open_journal)
    (bench.directory / "subscriptions").mkdir()
    (bench.directory / "subscriptions" / "lake").write_bytes(b"{}")
    put_irregular(bench.directory / "subscriptions" / "lake", kind)
    bench = open_journal(segment_size=4096, keep_bytes=4096)
    assert bench.journal.read("s", 1, 10)[0].first_seq == 1
