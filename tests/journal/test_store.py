"""The store: reads scan little, caches are bounded, and unreadable files are reported."""

from __future__ import annotations

import itertools
from pathlib import Path
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal import packing, scan
from fyrehose.journal.commit import InlineWorker
from fyrehose.journal.index import SegmentIndex
from fyrehose.journal.settings import Caches
from fyrehose.journal.store import Store
from fyrehose.offline.verify import verify
from fyrehose.records import Run
from tests.doubles.appending import append_runs
from tests.doubles.files import CountedFiles, FaultyFiles, flip

SMALL = 8192


def fill(bench, count: int, size: int = 500, stream: str = "busy") -> None:  # type: ignore[no-untyped-def]
    for i in range(count):
        bench.append(b"%06d" % i + b"." * size, stream=stream)


def test_a_rare_stream_is_found_without_a_walk_through_all_segments(open_journal) -> None:
    bench = open_journal(segment_size=SMALL)
    bench.append(b"first", stream="rare")
    fill(bench, 1500)
    bench.append(b"second", stream="rare")
    fill(bench, 100)
    bench.close()
    files = CountedFiles()
    bench = open_journal(segment_size=SMALL, verify=0, files=files)
    segments = len(scan.segments(bench.directory))
    assert segments > 100
    files.forget()
    assert bench.payloads("rare") == [b"first", b"second"]
    assert 0 < len(files.opened_of(".index")) < 25, "two searches by halves in more than 100 segments"


def test_records_behind_a_gap_are_found_without_a_walk(open_journal) -> None:
    bench = open_journal(segment_size=SMALL)
    bench.append(b"before", stream="rare")
    fill(bench, 10)
    bench.next["rare"] = 50  # numbers that are in no batch, as a quarantine leaves them
    bench.append(b"after", stream="rare")
    fill(bench, 1000)
    bench.append(b"last", stream="rare")
    bench.close()
    files = CountedFiles()
    bench = open_journal(segment_size=SMALL, verify=0, files=files)
    files.forget()
    assert [r.seq for r in bench.records("rare", 7)] == [50, 51]
    assert 0 < len(files.opened_of(".index")) < 25, "two searches by halves in about 70 segments"


def test_a_cached_small_batch_does_not_keep_the_bytes_read_with_it_in_memory(open_journal) -> None:
    bench = open_journal(segment_size=16 << 20)
    fill(bench, 300)
    bench.crash()
    bench = open_journal(segment_size=16 << 20)
    for seq in range(1, 300, 7):
        (run,) = bench.journal.read("busy", seq, 1)
        assert len(memoryview(run.payload).obj) < 4096


def test_the_cache_counts_what_batches_cost(open_journal) -> None:
    bench = open_journal()
    for i in range(100):
        bench.append(b"", stream=f"s{i}")
    assert bench.journal.store.cached >= 100 * 2 * packing.RUN_COST, "a batch, and its only run"


def test_caches_are_bounded(open_journal) -> None:
    bench = open_journal(segment_size=4096, caches=Caches(batches=50_000, indexes=5000, files=3))
    fill(bench, 400)
    store = bench.journal.store
    before = open_files()
    assert len(bench.payloads("busy")) == 400
    assert 0 < store.cached <= 50_000
    assert 0 < store.indexed <= 5000
    assert open_files() - before <= 3


def open_files() -> int:
    """Return how many segments this process has open."""
    return sum(each.readlink().suffix == scan.SUFFIX for each in Path("/proc/self/fd").iterdir() if each.is_symlink())


def test_segments_that_are_forgotten_take_no_memory(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    fill(bench, 40)
    bench.close()
    bench = open_journal(segment_size=4096, verify=0)
    store = bench.journal.store
    for base in store.bases:
        store.index(base)
    assert store.indexed == sum(path.stat().st_size for path in bench.directory.glob("*.index"))
    while store.sealed:
        store.drop_oldest()
    assert store.indexed == 0


def test_recently_used_entries_stay_in_the_caches(open_journal) -> None:
    """Every cache drops its least recently used entry first."""
    bench = open_journal(segment_size=4096)
    fill(bench, 40)
    bench.close()
    bench = open_journal(segment_size=4096, verify=0)
    firsts = [1 + bench.journal.store.before(base, "busy") for base in bench.journal.store.bases[:5]]
    bench.close()
    batch = 500 + 100 + 2 * packing.RUN_COST
    sizes = [path.stat().st_size for path in sorted(bench.directory.glob("*.index"))]
    files, two = CountedFiles(), Caches(files=2, batches=2 * batch, indexes=2 * max(sizes), ahead=0)
    store = open_journal(segment_size=4096, verify=0, files=files, caches=two).journal.store
    files.forget()
    for which in (0, 1, 0, 2, 0, 3, 0, 3):
        next(store.batches(store.bases[which], "busy", firsts[which]))
    read = [(name, at) for name, at in files.reads_of(scan.SUFFIX) if at > fmt.SEGMENT_HEADER.size]
    for used in (files.opened_of(scan.SUFFIX), files.opened_of(".index"), read):
        assert len(used) == len(set(used)), "nothing is opened or read again"
    assert len(files.opened_of(scan.SUFFIX)) == len(files.opened_of(".index")) == 4, "the four segments"


def test_entry_larger_than_its_cache_is_kept_until_another_is_used(open_journal) -> None:
    """A reader needs the entry in many small steps; without the cache each step would build it again."""
    bench = open_journal(segment_size=4096)
    bench.append(*[b"%d" % i * 100 for i in range(10)], stream="busy")
    fill(bench, 20)
    bench.close()
    files = CountedFiles()
    bench = open_journal(segment_size=4096, verify=0, files=files, caches=Caches(batches=10, indexes=10, ahead=0))
    store = bench.journal.store
    files.forget()
    for _ in range(3):
        assert next(store.batches(store.bases[0], "busy", 1))
    assert len(files.opened_of(".index")) == 1
    assert len(files.reads_of(scan.SUFFIX)) == 2, "the header, and the body"
    second = store.index(store.bases[1])
    assert store.indexed == len(second.data), "only the one that was used last"


class NeverPacks(InlineWorker):
    """A worker that runs all calls, except those that pack an index."""

    def call(self, job: Any) -> Any:
        packs = isinstance(getattr(job, "__self__", None), SegmentIndex)
        return Deferred() if packs else super().call(job)


def test_a_segment_that_was_just_sealed_is_read_before_its_index_is_packed(open_journal) -> None:
    bench = open_journal(segment_size=4096, worker=NeverPacks())
    fill(bench, 20)
    assert not list(bench.directory.glob("*.index"))
    assert len(scan.segments(bench.directory)) > 1
    assert len(bench.payloads("busy")) == 20


def test_reading_the_end_of_a_stream_scans_nothing_behind_it(open_journal) -> None:
    bench = open_journal()
    bench.append(b"only", stream="rare")
    fill(bench, 50, 10)
    bench.close()
    bench = open_journal()
    assert [bytes(payload) for run in bench.journal.read("rare", 1, 1000) for payload in run.payloads()] == [b"only"]
    assert bench.journal.store.cached < 2 * 2 * packing.RUN_COST, "one batch of one run"


def test_read_returns_what_it_found_after_a_limited_scan(open_journal) -> None:
    """More records may follow far behind those of other streams; the next read finds them."""
    bench = open_journal(caches=Caches(enough=10_000))
    bench.append(b"first", stream="rare")
    fill(bench, 50, 1000)
    bench.append(b"second", stream="rare")
    bench.append(b"third", stream="rare")
    (run,) = bench.journal.read("rare", 1, 1000)
    assert [bytes(payload) for payload in run.payloads()] == [b"first"]
    assert bench.payloads("rare") == [b"first", b"second", b"third"]


def test_segment_is_created_at_the_time_of_its_first_records(open_journal) -> None:
    times = iter(range(1_000_000, 10**9, 1_000_000))
    bench = open_journal(segment_size=4096, now=lambda: next(times))
    fill(bench, 30)
    store = bench.journal.store
    base, after = store.bases[1:3]
    assert store.created(base) < store.created_after(base) == store.created(after)
    assert store.created(base) == store.time_at(base, base + 64)


def test_time_of_a_damaged_batch_raises_with_its_position(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    fill(bench, 30)
    bench.close()
    bench = open_journal(segment_size=4096, verify=0)
    base = bench.journal.store.bases[1]
    path = scan.path_of(bench.directory, base)
    flip(path, 64 + 30)
    with pytest.raises(JournalCorrupt, match=rf"{path.name} is damaged at byte 64 \(position {base + 64}\)"):
        bench.journal.store.time_at(base, base + 64)


@pytest.mark.parametrize("trouble", ["gone", "unreadable", "cut"])
def test_unreadable_segment_is_reported_with_its_path(open_journal, trouble: str) -> None:
    bench = open_journal(segment_size=4096)
    fill(bench, 50)
    bench.close()
    files = FaultyFiles()
    bench = open_journal(segment_size=4096, files=files)
    path = scan.segments(bench.directory)[0].path
    if trouble == "gone":
        path.unlink()
    elif trouble == "cut":
        path.write_bytes(path.read_bytes()[:200])
    else:
        for base in bench.journal.store.bases:
            bench.journal.store.index(base)
        files.name, files.nth, files.times = "read", 1, 1000
    with pytest.raises(JournalCorrupt, match="while reading stream 'busy' from 1") as error:
        bench.journal.read("busy", 1, 1000)
    assert path.name in str(error.value)
    if trouble != "unreadable":
        assert bench.journal.read("busy", 45, 1000), "what is elsewhere is read all the same"


def test_closed_store_finds_nothing(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    fill(bench, 50)
    before = len(list(Path("/proc/self/fd").iterdir()))
    bench.close()
    closed = len(list(Path("/proc/self/fd").iterdir()))
    assert closed < before
    assert bench.journal.read("busy", 1, 1000) == ()
    assert len(list(Path("/proc/self/fd").iterdir())) == closed


def test_reading_new_records_scans_no_earlier_batches(open_journal) -> None:
    """With small commits the index lists one batch in a hundred, but the newest records are found without a scan."""
    files = CountedFiles()
    bench = open_journal(files=files, caches=Caches(batches=1, ahead=0))  # only the newest batch is in memory
    files.forget()
    for seq in range(1, 200):
        bench.append(b"x", stream="other")
        bench.append(b"%d" % seq)
        assert [record.payload for record in bench.records(start=seq)] == [b"%d" % seq]
    assert len(files.reads_of(scan.SUFFIX)) < 2 * 200, "less than the header and the body of one batch for each record"


def test_positions_of_the_last_reads_are_remembered_up_to_a_limit(open_journal) -> None:
    """A read that continues at a remembered position scans less than one that begins at an entry of the index."""
    bench = open_journal()
    for _ in range(20):
        bench.append(b"x", stream="a")
        bench.append(b"x", stream="b")
    bench.close()
    scanned = []
    for places in (2, 1):
        files = CountedFiles()
        bench = open_journal(files=files, caches=Caches(places=places, batches=1, ahead=0))
        files.forget()
        for seq in range(1, 21):
            for stream in ("a", "b"):
                assert [run.first_seq for run in bench.journal.read(stream, seq, 1)] == [seq]
        scanned.append(len(files.reads_of(scan.SUFFIX)))
        bench.close()
    two, one = scanned
    assert two <= 2 * 40 < one, "the header and the body for each record, or a scan from the beginning"


def test_remembered_positions_do_not_change_results(open_journal) -> None:
    bench = open_journal(segment_size=16 << 10, caches=Caches(places=5))  # fewer than readers
    random = Random(7)
    expected: dict[str, list[bytes]] = {"a": [], "b": [], "c": []}
    readers = [(stream, []) for stream in expected for _ in range(4)]
    for turn in range(600):
        stream = random.choice("aaabc")
        payloads = [b"%d." % turn * random.randrange(60) for _ in range(random.choice((1, 1, 1, 20)))]
        bench.append(*payloads, stream=stream)
        expected[stream] += payloads
        stream, found = random.choice(readers)
        for run in bench.journal.read(stream, len(found) + 1, random.choice((1, 100, 1 << 20))):
            found += map(bytes, run.payloads())
        assert found == expected[stream][: len(found)]
    for stream, found in readers:
        while runs := bench.journal.read(stream, len(found) + 1, 1 << 20):
            found += [bytes(payload) for run in runs for payload in run.payloads()]
        assert found == expected[stream]


def test_a_journal_that_is_opened_again_has_empty_caches(open_journal, tmp_path: Path) -> None:
    """Its files may have been put back from a copy meanwhile."""
    bench = open_journal(segment_size=4096)
    fill(bench, 30, stream="old")
    bench.close()
    bench = open_journal(segment_size=4096, verify=0)
    bench.payloads("old")
    bench.append(b"x", stream="old")
    bench.close()
    assert bench.journal.store.cached == bench.journal.store.indexed == 0
    bench.directory.rename(tmp_path / "aside")
    other = open_journal(segment_size=4096)
    for i in range(30):
        other.append(b"%d" % i * 300, stream="old")
    other.close()
    bench.journal.open(bench.observer)
    assert bench.payloads("old") == [b"%d" % i * 300 for i in range(30)]
    store = bench.journal.store
    assert store.created(store.bases[0]) == 1_000_000


@pytest.mark.parametrize("reopened", [False, True])
def test_a_read_from_any_number_returns_what_fits_and_reads_no_other_batch(open_journal, reopened: bool) -> None:
    """A read returns at least one record, and records of one segment only."""
    bench = open_journal(segment_size=1024)
    batches = [(10, 20, 30), (5,), (50, 1, 1), (7, 7), (40,), (9, 30, 2, 2), (100,), (3, 3), (60, 5), (8,)]
    number_at = {}
    for number, sizes in enumerate(batches):
        number_at[bench.journal.writer.position] = number
        bench.append(*[b"%d" % (number % 10) * size for size in sizes], stream="busy")
        if number % 3 == 0:
            bench.append(b"other")
    if reopened:
        bench.close()
        bench = open_journal(segment_size=1024)
    store = bench.journal.store
    ends = [store.before(base, "busy") for base in store.bases[1:]]
    sizes = [size for batch in batches for size in batch]
    batch_of = [number for number, batch in enumerate(batches) for _ in batch]
    assert len({0, *ends}) >= 3
    for start in range(1, len(sizes) + 2):
        stop = min([end for end in ends if end >= start], default=len(sizes))
        for most in (*range(12), 20, 30, 31, 60, 61, 66, 1000):
            runs = bench.journal.read("busy", start, most)
            files = CountedFiles()
            fresh = Store(bench.directory, files, caches=Caches(ahead=0))
            fresh.open(store.sealed, store.active)
            assert [run.first_seq for run in fresh.read("busy", start, most)] == [run.first_seq for run in runs]
            fresh.close()
            count, left = 0, most
            for size in sizes[start - 1 : stop]:
                if count and size > left:
                    break
                count, left = count + 1, left - size
            records = [record for run in runs for record in run.records()]
            assert [(record.seq, len(record.payload)) for record in records] == [
                (seq, sizes[seq - 1]) for seq in range(start, start + count)
            ]
            if records:
                # The index has one batch in 64 KiB, so that it begins with the first of the segment.
                used = batch_of[records[-1].seq - 1]
                bodies = {int(Path(name).stem, 16) + at for name, at in files.reads_of(scan.SUFFIX)}
                looked = {at - fmt.BATCH_HEADER.size for at in bodies} & number_at.keys()
                later = [position for position in looked if number_at[position] > used]
                assert len(later) <= (left > 0), "at most the one that did not fit"


def test_read_that_ends_within_a_batch_is_continued_there(open_journal) -> None:
    bench = open_journal()
    runs = [Run.of("s", [b"%d" % i * 10 for i in range(start, start + 3)], source="t") for start in (1, 4)]
    append_runs(bench.journal, runs, [1, 4])
    found = []
    while read := bench.journal.read("s", len(found) + 1, 40):
        found += [record.seq for run in read for record in run.records()]
    assert found == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("deleted", [False, True])
def test_segments_that_were_read_are_closed(open_journal, deleted: bool) -> None:
    before = {path.name for path in Path("/proc/self/fd").iterdir()}
    bench = open_journal(segment_size=SMALL, keep_bytes=2 * SMALL if deleted else 0, caches=Caches(batches=1))
    opened = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        fill(bench, 10)
        assert len(bench.journal.read("busy", bench.journal.bounds("busy")[0], 1))
        assert not deleted or len(list(Path("/proc/self/fd").iterdir())) < opened + 10
    bench.close()
    assert {path.name for path in Path("/proc/self/fd").iterdir()} == before


def test_the_index_of_a_segment_that_ends_with_a_retirement_is_of_the_whole_segment(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    bench.append(b"x", stream="t")
    bench.append(bytes(1000))
    bench.journal.retire(["t"])
    bench.append(bytes(4000))
    bench.close()
    assert len(scan.segments(bench.directory)) == 2
    report = verify(bench.directory)
    assert (report.problems, report.notes) == ([], [])


@pytest.mark.parametrize("size", [0, 1, 900, 5_000, 40_000, 1 << 30])
@pytest.mark.parametrize("again", [False, True])
def test_end_of_the_log_is_read_backwards_over_several_segments(open_journal, size: int, again: bool) -> None:
    bench, random = open_journal(segment_size=SMALL), Random(size)
    written = [(random.choice("abc"), b"%06d" % n + b"." * random.randrange(600)) for n in range(200)]
    for stream, payload in written:
        bench.append(payload, stream=stream)
    if again:
        bench.close()
        bench = open_journal(segment_size=SMALL)
    found = [(run.stream, bytes(payload)) for run in bench.journal.latest(size) for payload in run.payloads()]
    assert found == written[::-1][: len(found)]
    total = sum(len(payload) for _, payload in written)
    assert len(found) == len(written) if size > 2 * total else sum(len(payload) for _, payload in found) <= size + SMALL


def test_end_of_the_log_is_read_while_it_grows_and_loses_segments(open_journal) -> None:
    bench = open_journal(segment_size=SMALL)
    fill(bench, 100)
    store, found = bench.journal.store, []
    for n, run in enumerate(bench.journal.latest(1 << 30)):
        found.append(run.last_seq)
        fill(bench, 1)
        if n == 40:
            oldest = store.bases[-8]
            while store.bases[0] < oldest:
                store.drop_oldest()
    assert found == list(range(100, 100 - len(found), -1))
    assert 40 < len(found) < 100
    assert not store.damage


def test_little_is_read_before_the_newest_run(open_journal) -> None:
    bench = open_journal(segment_size=64 << 20)
    fill(bench, 2000)
    bench.close()
    bench = open_journal(segment_size=64 << 20)
    store, runs = bench.journal.store, bench.journal.latest(1 << 30)
    batch = 506 + 100 + 2 * packing.RUN_COST  # the payload, the header and the strings, and two objects
    assert next(runs).last_seq == 2000
    assert store.cached < 150 * batch, "the batches behind the last entry of the index"
    assert len(list(runs)) == 1999
    assert store.cached <= 2001 * batch


@pytest.mark.parametrize("again", [False, True])
def test_search_for_a_source_passes_over_most_batches_of_others(open_journal, again: bool) -> None:
    bench, random = open_journal(segment_size=1 << 20), Random(1)
    wanted = {0, 1_999, *random.sample(range(2_000), 10)}
    for n in range(2_000):
        source = "searched" if n in wanted else "others"
        bench.append(b"%06d" % n + b"." * 1_000, stream=random.choice("abc"), source=source)
    if again:
        bench.close()
        bench = open_journal(segment_size=1 << 20)
    found = [(run.source, int(bytes(run.payload[:6]))) for run in bench.journal.latest(1 << 30, "searched")]
    numbers = [number for _, number in found]
    assert numbers == sorted(numbers, reverse=True)
    assert {number for source, number in found if source == "searched"} == wanted
    passed = [before - after for before, after in itertools.pairwise(numbers)]
    assert len(found) < 80
    assert max(passed) < 200, "the search yields a run in about 64 KiB"


def test_end_of_an_empty_log_has_no_runs(open_journal) -> None:
    assert list(open_journal().journal.latest(1 << 20)) == []


def test_damage_at_the_end_of_the_log_is_reported(open_journal) -> None:
    bench = open_journal(segment_size=SMALL)
    fill(bench, 100)
    bench.close()
    damaged = scan.segments(bench.directory)[-2].path
    bench = open_journal(segment_size=SMALL, verify=0)
    flip(damaged, damaged.stat().st_size // 2)
    with pytest.raises(JournalCorrupt):
        list(bench.journal.latest(1 << 30))
