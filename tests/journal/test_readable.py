"""What readers find: only what was released, and nothing that was retired or is too old."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from fyrehose.journal.clock import RecordClock
from fyrehose.journal.files import Files
from fyrehose.journal.gate import LocalGate
from fyrehose.journal.opening import OpenLog
from fyrehose.journal.readable import Readable
from fyrehose.journal.settings import JournalSettings
from fyrehose.journal.store import Store
from fyrehose.journal.writer import Committed
from fyrehose.observe.meters import SECONDS, Histogram
from fyrehose.records import Run

SECOND = 1_000_000


@attrs.define(eq=False)
class Bench:
    """A log, and what readers find of it.

    :ivar now: when records are written, in microseconds
    """

    log: OpenLog
    readable: Readable
    now: int = SECOND

    def write(self, seq: int, *payloads: bytes, stream: str = "s") -> Committed:
        run = Run.of(stream, payloads, source="t", first_seq=seq)
        run.time = self.now
        return self.log.writer.commit([[run]], self.now, self.now)

    def payloads(self, stream: str = "s", start: int = 1) -> list[bytes]:
        return [bytes(each) for run in self.readable.read(stream, start, 1 << 20) for each in run.payloads()]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    clock, settings = RecordClock(lambda: SECOND, lambda: 0), JournalSettings(min_free=0)
    log = OpenLog(tmp_path, settings, Files(), LocalGate(), clock, Histogram(SECONDS))
    writer = log.open()
    made = Bench(log, Readable(Store(tmp_path, Files())))
    assert made.readable.open(writer, log.report, SECOND) is None
    yield made
    writer.close(in_order=True)
    log.unlock()


def test_a_commit_is_found_when_it_is_released(bench: Bench) -> None:
    committed = bench.write(1, b"a", b"b")
    assert (bench.payloads(), bench.readable.bounds("s"), dict(bench.readable.ends())) == ([], (1, 0), {})
    assert bench.readable.released(committed) == {"s": 2}
    assert (bench.payloads(), bench.readable.bounds("s")) == ([b"a", b"b"], (1, 2))
    assert bench.payloads(start=3) == []


def test_a_retired_stream_begins_again_behind_its_last_number(bench: Bench) -> None:
    bench.readable.released(bench.write(1, b"old"))
    retired = bench.log.writer.retire(["s"])
    position = bench.log.writer.position
    bench.readable.released(Committed([], position, position, None, retired=retired))
    assert (bench.readable.bounds("s"), dict(bench.readable.retired()), bench.payloads()) == ((2, 1), {"s": 1}, [])
    bench.readable.released(bench.write(2, b"new"))
    assert (bench.readable.bounds("s"), bench.payloads()) == ((2, 2), [b"new"])


def test_records_that_are_too_old_are_not_found(bench: Bench) -> None:
    bench.readable.released(bench.write(1, b"old"))
    bench.now = 100 * SECOND
    bench.readable.released(bench.write(2, b"young"))
    bench.readable.limit_ages(lambda stream: 10.0)
    assert bench.payloads() == [b"old", b"young"], "the time is not known yet"
    bench.readable.judge_ages(105 * SECOND)
    assert (bench.payloads(), bench.readable.bounds("s")) == ([b"young"], (2, 2))
    assert [bench.readable.expired("s", time * SECOND) for time in (1, 100)] == [True, False]
    bench.readable.limit_ages(lambda stream: 6.0)
    assert bench.payloads() == [b"young"], "new limits keep the time"
    bench.readable.judge_ages(200 * SECOND)
    assert (bench.payloads(), bench.readable.bounds("s")) == ([], (3, 2))
    bench.readable.limit_ages(None)
    assert bench.payloads() == [b"old", b"young"]


def test_records_are_found_from_the_end_of_the_log_backwards(bench: Bench) -> None:
    for seq, payload in enumerate((b"1", b"2", b"3"), 1):
        bench.readable.released(bench.write(seq, payload))
    found: list[Any] = [bytes(payload) for run in bench.readable.latest(1 << 20) for payload in run.payloads()]
    assert found == [b"3", b"2", b"1"]
