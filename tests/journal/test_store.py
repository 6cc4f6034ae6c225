"""The store: reads scan little, caches are bounded, and unreadable files are reported."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import packing, scan
from fyrehose.journal import store as stores
from fyrehose.journal.index import PackedIndex
from fyrehose.journal.journal import FileJournal
from fyrehose.offline.verify import verify
from fyrehose.records import Run
from tests.doubles.appending import append_runs
from tests.doubles.files import FaultyFiles

SMALL = 8192


def fill(bench, count: int, size: int = 500, stream: str = "busy") -> None:  # type: ignore[no-untyped-def]
    for i in range(count):
        bench.append(b"%06d" % i + b"." * size, stream=stream)


def test_a_rare_stream_is_found_without_a_walk_through_all_segments(open_journal, monkeypatch) -> None:
    bench = open_journal(segment_size=SMALL)
    bench.append(b"first", stream="rare")
    fill(bench, 1500)
    bench.append(b"second", stream="rare")
    fill(bench, 100)
    bench.close()
    bench = open_journal(segment_size=SMALL, verify=0)
    segments = len(scan.segments(bench.directory))
    assert segments > 100
    loaded = []
    load = stores.Store._load_index
    monkeypatch.setattr(stores.Store, "_load_index", lambda self, base: loaded.append(base) or load(self, base))
    assert bench.payloads("rare") == [b"first", b"second"]
    assert len(loaded) < 25


def test_records_behind_a_gap_are_found_without_a_walk(open_journal, monkeypatch) -> None:
    bench = open_journal(segment_size=SMALL)
    bench.append(b"before", stream="rare")
    fill(bench, 10)
    bench.next["rare"] = 50  # numbers that are in no batch, as a quarantine leaves them
    bench.append(b"after", stream="rare")
    fill(bench, 1000)
    bench.append(b"last", stream="rare")
    bench.close()
    bench = open_journal(segment_size=SMALL, verify=0)
    loaded = []
    load = stores.Store._load_index
    monkeypatch.setattr(stores.Store, "_load_index", lambda self, base: loaded.append(base) or load(self, base))
    assert [r.seq for r in bench.records("rare", 7)] == [50, 51]
    assert len(loaded) < 25


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
    store = bench.journal._store
    assert store._cached >= 100 * 2 * packing.RUN_COST
    assert store._cached == sum(batch.size for batch in store._cache.values())


def test_caches_are_bounded(open_journal, monkeypatch) -> None:
    monkeypatch.setattr(stores, "CACHE", 50_000)
    monkeypatch.setattr(stores, "INDEXES", 5000)
    monkeypatch.setattr(stores, "OPEN", 3)
    bench = open_journal(segment_size=4096)
    fill(bench, 400)
    store = bench.journal._store
    assert len(bench.payloads("busy")) == 400
    assert store._cached <= 50_000
    assert store._indexed <= 5000
    assert store._indexed == sum(len(index.data) for index in store._indexes.values())
    assert len(store._readers) == 3
    assert not store._fresh


def test_recently_used_entries_stay_in_the_caches(open_journal, monkeypatch) -> None:
    """Every cache drops its least recently used entry first."""
    bench = open_journal(segment_size=4096)
    fill(bench, 40)
    bench.close()
    bench = open_journal(segment_size=4096, verify=0)
    firsts = [1 + bench.journal._store.before(base, "busy") for base in bench.journal._store.bases[:5]]
    bench.close()
    bench = open_journal(segment_size=4096, verify=0)
    batch = 500 + 100 + 2 * packing.RUN_COST
    sizes = [path.stat().st_size for path in sorted(bench.directory.glob("*.index"))]
    monkeypatch.setattr(stores, "OPEN", 2)
    monkeypatch.setattr(stores, "CACHE", 2 * batch)
    monkeypatch.setattr(stores, "INDEXES", 2 * max(sizes))
    store, made = bench.journal._store, []
    open_reader, read, load = scan.SegmentReader.__init__, scan.SegmentReader.batch, stores.Store._load_index

    def opening(self, path, base, *files) -> None:  # type: ignore[no-untyped-def]
        made.append(("opened", base))
        open_reader(self, path, base, *files)

    monkeypatch.setattr(scan.SegmentReader, "__init__", opening)
    monkeypatch.setattr(scan.SegmentReader, "batch", lambda self, at: made.append(("read", at)) or read(self, at))
    monkeypatch.setattr(
        stores.Store, "_load_index", lambda self, base: made.append(("loaded", base)) or load(self, base)
    )
    for which in (0, 1, 0, 2, 0, 3, 0, 3):
        next(store.batches(store.bases[which], "busy", firsts[which]))
    for what in ("opened", "read", "loaded"):
        places = [place for did, place in made if did == what]
        assert len(places) == 4 == len(set(places)), what


def test_entry_larger_than_its_cache_is_kept_until_another_is_used(open_journal, monkeypatch) -> None:
    """A reader needs the entry in many small steps; without the cache each step would build it again."""
    monkeypatch.setattr(stores, "CACHE", 10)
    monkeypatch.setattr(stores, "INDEXES", 10)
    bench = open_journal(segment_size=4096)
    bench.append(*[b"%d" % i * 100 for i in range(10)], stream="busy")
    fill(bench, 20)
    bench.close()
    bench = open_journal(segment_size=4096, verify=0)
    made = []
    read, load = scan.SegmentReader.batch, stores.Store._load_index
    monkeypatch.setattr(scan.SegmentReader, "batch", lambda self, at: made.append("read") or read(self, at))
    monkeypatch.setattr(stores.Store, "_load_index", lambda self, base: made.append("load") or load(self, base))
    first = bench.journal._store.bases[0]
    for _ in range(3):
        assert next(bench.journal._store.batches(first, "busy", 1))
    assert sorted(made) == ["load", "read"]
    bench.journal._store.index(bench.journal._store.bases[1])
    assert len(bench.journal._store._indexes) == 1


def test_a_segment_that_was_just_sealed_is_read_before_its_index_is_packed(open_journal, monkeypatch) -> None:
    monkeypatch.setattr(FileJournal, "_packed", lambda self, *packed: None)
    bench = open_journal(segment_size=4096)
    fill(bench, 20)
    assert len(bench.journal._store._fresh) > 1
    assert len(bench.payloads("busy")) == 20


def test_reading_the_end_of_a_stream_scans_nothing_behind_it(open_journal, monkeypatch) -> None:
    bench = open_journal()
    bench.append(b"only", stream="rare")
    fill(bench, 50, 10)
    looked = []
    batch = stores.Store._batch
    monkeypatch.setattr(stores.Store, "_batch", lambda self, *at: looked.append(at) or batch(self, *at))
    assert [bytes(payload) for run in bench.journal.read("rare", 1, 1000) for payload in run.payloads()] == [b"only"]
    assert len(looked) == 1


def test_read_returns_what_it_found_after_a_limited_scan(open_journal, monkeypatch) -> None:
    """More records may follow far behind those of other streams; the next read finds them."""
    monkeypatch.setattr(stores, "ENOUGH", 10_000)
    bench = open_journal()
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
    store = bench.journal._store
    base, after = store.bases[1:3]
    assert store.created(base) < store.created_after(base) == store.created(after)
    assert store.created(base) == store.time_at(base, base + 64)


def test_time_of_a_damaged_batch_raises_with_its_position(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    fill(bench, 30)
    bench.close()
    bench = open_journal(segment_size=4096, verify=0)
    base = bench.journal._store.bases[1]
    path = scan.path_of(bench.directory, base)
    data = bytearray(path.read_bytes())
    data[64 + 30] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalCorrupt, match=rf"{path.name} is damaged at byte 64 \(position {base + 64}\)"):
        bench.journal._store.time_at(base, base + 64)


def test_an_index_that_was_missing_is_written_again(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    fill(bench, 50)
    bench.close()
    indexes = sorted(bench.directory.glob("*.index"))
    before = [path.read_bytes() for path in indexes]
    for path in indexes:
        path.unlink()
    bench = open_journal(segment_size=4096)
    assert len(bench.payloads("busy")) == 50
    assert [path.read_bytes() for path in indexes] == before
    assert PackedIndex.unpack(before[0], 0, scan.segments(bench.directory)[0].end)


@pytest.mark.parametrize("trouble", ["gone", "unreadable", "cut"])
def test_unreadable_segment_is_reported_with_its_path(
    open_journal, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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

        def refuse(fd: int, size: int, offset: int) -> bytes:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(files, "read", refuse)
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


def test_a_read_ends_at_the_end_of_a_segment_and_the_next_one_continues(open_journal) -> None:
    bench = open_journal(segment_size=4096)
    fill(bench, 20)
    first: tuple[Run, ...] = bench.journal.read("busy", 1, 1 << 20)
    assert 1 < first[-1].last_seq < 20
    assert bench.payloads("busy") == [b"%06d" % i + b"." * 500 for i in range(20)]


def test_reading_new_records_scans_no_earlier_batches(open_journal, monkeypatch) -> None:
    """With small commits the index lists one batch in a hundred, but the newest records are found without a scan."""
    bench = open_journal()
    looked = []
    batch = stores.Store._batch
    monkeypatch.setattr(stores.Store, "_batch", lambda self, *at: looked.append(at) or batch(self, *at))
    for seq in range(1, 200):
        bench.append(b"x", stream="other")
        bench.append(b"%d" % seq)
        assert [record.payload for record in bench.records(start=seq)] == [b"%d" % seq]
    assert len(looked) < 450


def test_remembered_positions_are_bounded_and_do_not_change_results(open_journal, monkeypatch) -> None:
    monkeypatch.setattr(stores, "PLACES", 5)
    bench = open_journal(segment_size=16 << 10)
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
        assert len(bench.journal._store._places) <= 5
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
    bench.directory.rename(tmp_path / "aside")
    other = open_journal(segment_size=4096)
    for i in range(30):
        other.append(b"%d" % i * 300, stream="old")
    other.close()
    bench.journal.open(bench.observer)
    assert bench.payloads("old") == [b"%d" % i * 300 for i in range(30)]
    store = bench.journal._store
    assert store._cached == sum(batch.size for batch in store._cache.values())
    assert store._indexed == sum(len(index.data) for index in store._indexes.values())
    assert store.created(store.bases[0]) == 1_000_000


@pytest.mark.parametrize("reopened", [False, True])
def test_a_read_from_any_number_returns_what_fits_and_reads_no_other_batch(
    open_journal, monkeypatch, reopened: bool
) -> None:
    """A read returns at least one record, and records of one segment only."""
    bench = open_journal(segment_size=1024)
    batches = [(10, 20, 30), (5,), (50, 1, 1), (7, 7), (40,), (9, 30, 2, 2), (100,), (3, 3), (60, 5), (8,)]
    for number, sizes in enumerate(batches):
        bench.append(*[b"%d" % (number % 10) * size for size in sizes], stream="busy")
        if number % 3 == 0:
            bench.append(b"other")
    if reopened:
        bench.close()
        bench = open_journal(segment_size=1024)
    store = bench.journal._store
    ends = [store.before(base, "busy") for base in store.bases[1:]]
    sizes = [size for batch in batches for size in batch]
    batch_of = [number for number, batch in enumerate(batches) for _ in batch]
    looked: list[int] = []
    batch_at = stores.Store._batch

    def look(self, base: int, position: int):  # type: ignore[no-untyped-def]
        batch = batch_at(self, base, position)
        if "busy" in batch.streams:
            looked.append(batch.streams["busy"][0].first_seq)
        return batch

    monkeypatch.setattr(stores.Store, "_batch", look)
    assert len({0, *ends}) >= 3
    for start in range(1, len(sizes) + 2):
        stop = min([end for end in ends if end >= start], default=len(sizes))
        for most in (*range(12), 20, 30, 31, 60, 61, 66, 1000):
            looked.clear()
            store._places.clear()
            runs = bench.journal.read("busy", start, most)
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
                later = [first for first in looked if batch_of[first - 1] > used]
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
def test_segments_that_were_read_are_closed(open_journal, monkeypatch, deleted: bool) -> None:
    monkeypatch.setattr(stores, "CACHE", 1)
    before = {path.name for path in Path("/proc/self/fd").iterdir()}
    bench = open_journal(segment_size=SMALL, keep_bytes=2 * SMALL if deleted else 0)
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
    store, found = bench.journal._store, []
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


def test_little_is_read_before_the_newest_run(open_journal, monkeypatch) -> None:
    bench = open_journal(segment_size=64 << 20)
    fill(bench, 2000)
    bench.close()
    bench = open_journal(segment_size=64 << 20)
    read, batch = [], stores.Store._batch
    monkeypatch.setattr(stores.Store, "_batch", lambda self, base, at: read.append(at) or batch(self, base, at))
    runs = bench.journal.latest(1 << 30)
    assert next(runs).last_seq == 2000
    assert len(read) < 150
    assert len(list(runs)) == 1999
    assert len(read) <= 2001


def test_end_of_an_empty_log_has_no_runs(open_journal) -> None:
    assert list(open_journal().journal.latest(1 << 20)) == []


def test_damage_at_the_end_of_the_log_is_reported(open_journal) -> None:
    bench = open_journal(segment_size=SMALL)
    fill(bench, 100)
    bench.close()
    damaged = scan.segments(bench.directory)[-2].path
    bench = open_journal(segment_size=SMALL, verify=0)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(JournalCorrupt):
        list(bench.journal.latest(1 << 30))
