"""Dumping the batches and records of a journal, and its statistics."""

from __future__ import annotations

import pytest

from fyrehose.errors import JournalCorrupt, JournalError
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.settings import durability
from fyrehose.offline import dump
from fyrehose.records import Run
from tests.offline.conftest import flip


@pytest.fixture
def bench(open_journal):  # type: ignore[no-untyped-def]
    times = iter(range(1_000_000, 1 << 62, 1_000_000))
    made = open_journal(segment_size=4096, now=lambda: next(times))
    for i in range(0, 60, 3):
        made.append(*(b"%04d" % j * 20 for j in range(i, i + 3)))
        made.append(b"other %d" % i, stream="o")
    return made


def numbers(runs) -> list[tuple[str, int]]:  # type: ignore[no-untyped-def]
    return [(record.stream, record.seq) for run in runs for record in run.records()]


def test_all_records_in_the_order_in_which_they_were_accepted(bench) -> None:
    found = [record for run in dump.runs(bench.directory) for record in run.records()]
    assert len(found) == 80
    assert [r.time for r in found] == sorted(r.time for r in found)
    assert [r.payload for r in found if r.stream == "s"] == bench.payloads("s")
    assert [r.payload for r in found if r.stream == "o"] == bench.payloads("o")


@pytest.mark.parametrize("first", [1, 2, 3, 31, 60, 61])
@pytest.mark.parametrize("limit", [None, 0, 1, 4, 1000])
def test_runs_select_records_of_a_stream(bench, first: int, limit: int | None) -> None:
    wanted = [("s", seq) for seq in range(first, 61)][:limit]
    found = list(dump.runs(bench.directory, "s", first, limit))
    assert numbers(found) == wanted
    assert all(len(run) for run in found), "nothing follows the limit"
    assert list(dump.runs(bench.directory, "nobody", first, limit)) == []


def test_a_limit_counts_across_streams(bench) -> None:
    assert numbers(dump.runs(bench.directory, limit=5)) == [("s", 1), ("s", 2), ("s", 3), ("o", 1), ("s", 4)]


def test_batches_are_yielded_in_order(bench) -> None:
    found = list(dump.batches(bench.directory))
    assert found[0].header.kind is fmt.Kind.ENDS
    assert sum(batch.header.records for batch in found) == 80
    assert {len(batch.entries()) > 0 for batch in found if batch.header.kind is fmt.Kind.ENDS} == {True}
    assert {len(batch.runs()) for batch in found if batch.header.kind is fmt.Kind.ENDS} == {0}


def _seqs(run: Run) -> range:
    return range(run.first_seq, run.last_seq + 1)


def test_records_before_damage_are_yielded(bench) -> None:
    bench.close()
    path = scan.segments(bench.directory)[1].path
    flip(path, 1000)
    told: list[tuple[str, int]] = []
    with pytest.raises(JournalCorrupt, match=path.name):
        told.extend((run.stream, seq) for run in dump.runs(bench.directory, "s") for seq in _seqs(run))
    assert told == [("s", seq) for seq in range(1, len(told) + 1)]
    assert told
    counted = dump.stats(bench.directory)
    assert len(counted.damaged) == 1
    assert 0 < counted.records < 80
    assert counted.streams["s"].missing > 0


def test_stats_count_records_by_stream(bench, open_journal) -> None:
    told: list[tuple[int, int]] = []
    stats = dump.stats(bench.directory, lambda done, total: told.append((done, total)))
    of = stats.streams["s"]
    assert (of.records, of.first, of.last, of.size, of.missing) == (60, 1, 60, 60 * 80, 0)
    assert (of.began, of.ended) == (bench.records("s")[0].time, bench.records("s")[-1].time)
    assert stats.records == 80
    assert stats.segments == len(scan.segments(bench.directory))
    assert stats.end == stats.mark == scan.read_mark(bench.directory)
    assert not stats.closed
    ends = [batch.header.end for batch in dump.batches(bench.directory)]
    assert stats.size == sum(segment.size for segment in scan.segments(bench.directory))
    assert told == [(end, stats.size) for end in (*ends, stats.size)]
    assert stats.batches == len(ends)
    bench.close()
    assert dump.stats(bench.directory).closed
    open_journal(segment_size=4096).append(b"x")
    assert not dump.stats(bench.directory).closed, "it is open again"


def test_missing_numbers_are_counted(open_journal) -> None:
    for _ in range(2):
        bench = open_journal(durability=durability("never"))
        bench.append(b"x")
        bench.crash()
    of = dump.stats(bench.directory, everything=True).streams["s"]
    assert (of.records, of.first) == (2, 1)
    assert of.missing == of.last - 2 == 1 << 20


@pytest.mark.parametrize("retires", [False, True])
def test_streams_whose_records_retention_has_deleted_are_listed(open_journal, retires: bool) -> None:
    bench = open_journal(segment_size=4096, keep_bytes=8000)
    bench.append(b"once", b"twice", stream="rare")
    if retires:
        bench.journal.retire(["rare"])
    for i in range(100):
        bench.append(b"%03d" % i * 100)
    of = dump.stats(bench.directory).streams["rare"]
    assert of == dump.StreamStats(0, 0, 2, 0, 0, 0)
    assert of.missing == 0
    told: list[int] = []
    dump.stats(bench.directory, lambda done, total: told.append(done))
    begin = scan.segments(bench.directory)[0].base
    assert told[:-1] == [batch.header.end - begin for batch in dump.batches(bench.directory)]


def test_data_beyond_the_durable_mark_is_shown_only_on_request(bench) -> None:
    mark = scan.read_mark(bench.directory)
    bench.append(b"a moment ago", stream="new")
    (bench.directory / "MARK").write_bytes(scan.pack_mark(mark))
    for told in (dump.runs(bench.directory), (run for b in dump.batches(bench.directory) for run in b.runs())):
        assert {run.stream for run in told} == {"s", "o"}
    assert set(dump.stats(bench.directory).streams) == {"s", "o"}
    everything = dump.stats(bench.directory, everything=True)
    assert set(everything.streams) == {"s", "o", "new"}
    assert (everything.mark, everything.end) == (mark, bench.journal.writer.position)
    assert [run.stream for run in dump.runs(bench.directory, everything=True)][-1] == "new"


def test_missing_journal_is_reported(tmp_path) -> None:
    with pytest.raises(JournalError, match="is no journal"):
        dump.stats(tmp_path)


def test_statistics_of_a_log_without_a_readable_batch_end_at_its_beginning(open_journal) -> None:
    bench = open_journal()
    bench.append(b"x")
    bench.crash()
    path = scan.segments(bench.directory)[0].path
    path.write_bytes(path.read_bytes()[: fmt.SEGMENT_HEADER.size] + b"damage" * 100)
    stats = dump.stats(bench.directory)
    assert (stats.batches, stats.records, stats.end) == (0, 0, 0)
    assert len(stats.damaged) == 1
