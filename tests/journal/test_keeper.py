"""What an open journal deletes, and what reading says meanwhile."""

from __future__ import annotations

from fyrehose.journal import holds as readers
from fyrehose.journal import scan


def test_a_reader_goes_on_while_the_oldest_go(open_journal) -> None:
    """Whoever is behind is told by the numbers what was not kept; nothing raises, and no descriptor is left."""
    bench = open_journal(segment_size=4096, keep_bytes=30_000)
    seen: list[int] = []
    wrote = 0
    for i in range(300):
        bench.append(b"%03d" % i * 100)
        wrote += 1
        if i % 3 == 0 and (runs := bench.journal.read("s", seen[-1] + 1 if seen else 1, 400)):
            seen += range(runs[0].first_seq, runs[-1].last_seq + 1)
    assert seen == sorted(set(seen))
    oldest, last = bench.journal.bounds("s")
    assert last == wrote
    assert bench.payloads("s", 1) == [b"%03d" % i * 100 for i in range(oldest - 1, 300)]
    assert set(bench.journal._store._readers) <= {segment.base for segment in scan.segments(bench.directory)}


def test_its_index_goes_with_a_segment(open_journal) -> None:
    bench = open_journal(segment_size=4096, keep_bytes=10_000)
    for i in range(100):
        bench.append(b"%03d" % i * 100)
    indexes = {path.stem for path in bench.directory.glob("*.index")}
    assert indexes < {segment.path.stem for segment in scan.segments(bench.directory)}


def test_segments_wait_for_a_named_reader(open_journal, log_lines: list[str]) -> None:
    bench = open_journal(segment_size=4096, keep_bytes=10_000, reader_wait=100.0)
    readers.report(bench.directory, "lake", 0, now=1_000_000)
    for i in range(100):
        bench.append(b"%03d" % i * 100)
    assert bench.journal.bounds("s") == (1, 100)
    assert bench.journal.status().waited_for == "lake"
    third = scan.segments(bench.directory)[3].base
    readers.report(bench.directory, "lake", third, now=1_000_000)
    bench.clock.advance(1)
    assert scan.segments(bench.directory)[0].base == third
    assert bench.payloads("s", 1)[-1] == b"099" * 100
    readers.report(bench.directory, "lake", 1 << 60, now=1_000_000)
    bench.clock.advance(1)
    assert bench.journal.status().waited_for == ""
    assert bench.journal.status().overtaken == 0
    assert sum(segment.size for segment in scan.segments(bench.directory)) <= 10_000 + 2 * 4096
    assert len([line for line in log_lines if "until the reader lake" in line]) == 1


def test_a_reader_that_is_silent_is_not_waited_for(open_journal, log_lines: list[str]) -> None:
    now = [1_000_000]
    bench = open_journal(segment_size=4096, keep_bytes=10_000, reader_wait=100.0, now=lambda: now[0])
    readers.report(bench.directory, "dead", 0, now=1_000_000)
    for i in range(50):
        bench.append(b"%03d" % i * 100)
    assert bench.journal.bounds("s")[0] == 1
    now[0] += 101_000_000
    bench.clock.advance(1)
    assert bench.journal.bounds("s")[0] > 1
    assert bench.journal.status().overtaken == 1
    assert any("the reader dead has not read: it is at position 0" in line for line in log_lines)


def test_only_so_much_waits_for_a_reader(open_journal) -> None:
    bench = open_journal(segment_size=4096, keep_bytes=10_000, reader_bytes=20_000)
    readers.report(bench.directory, "slow", 0, now=1_000_000)
    for i in range(300):
        bench.append(b"%03d" % i * 100)
    assert sum(segment.size for segment in scan.segments(bench.directory)) <= 10_000 + 20_000 + 3 * 4096
    assert bench.journal.status().overtaken > 0
    assert bench.journal.status().waited_for == "slow"
