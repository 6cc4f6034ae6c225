"""Opening the log for writing: one process has its lock, and the writer is the one at the end of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fyrehose.errors import JournalLocked
from fyrehose.journal import scan
from fyrehose.journal.clock import RecordClock
from fyrehose.journal.exchange import Handover
from fyrehose.journal.files import Files
from fyrehose.journal.gate import LocalGate
from fyrehose.journal.opening import OpenLog
from fyrehose.journal.settings import JournalSettings
from fyrehose.observe.meters import SECONDS, Histogram
from fyrehose.records import Run

Make = Callable[..., OpenLog]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Return a function that makes another log of the same directory, as a server of a cluster if it has a handover."""
    made: list[OpenLog] = []

    def another(handover: Handover | None = None) -> OpenLog:
        gate, clock = LocalGate(handover=handover), RecordClock(lambda: 1_000_000, lambda: 0)
        settings = JournalSettings(min_free=0)
        made.append(OpenLog(tmp_path, settings, Files(), gate, clock, Histogram(SECONDS)))
        return made[-1]

    yield another
    for each in made:
        each.unlock()


def write(log: OpenLog, seq: int, payload: bytes) -> int:
    """Commit a record; return the position behind it."""
    log.writer.commit([[Run.of("s", [payload], source="t", first_seq=seq)]], 1_000_000, 1_000_000)
    return log.writer.position


def test_the_lock_excludes_others_until_it_is_released(make: Make) -> None:
    log, other = make(), make()
    log.open()
    with pytest.raises(JournalLocked):
        other.open()
    log.writer.close(in_order=True)
    log.unlock()
    assert other.open().streams.ends == {}
    assert other.report.closed
    other.writer.close(in_order=True)


def test_bytes_of_the_log_are_compared_as_far_as_the_log_has_them(make: Make, tmp_path: Path) -> None:
    log = make()
    log.open()
    begin = log.writer.position
    end = write(log, 1, b"record")
    (segment,) = scan.segments(tmp_path)
    data = segment.path.read_bytes()[begin - segment.base : end - segment.base]
    assert not log.differs(begin, data)
    assert not log.differs(begin, data + b"more than the log has")
    assert log.differs(begin, data[:-1] + bytes([data[-1] ^ 1]))
    log.writer.close(in_order=True)
