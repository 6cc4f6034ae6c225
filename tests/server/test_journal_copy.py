"""The journal of another server is copied as far as it is durable, and the log says how far it is."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import JournalError
from fyrehose.journal import scan
from fyrehose.journal.commit import InlineWorker
from fyrehose.journal.files import Files
from fyrehose.journal.format import UNKNOWN
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.offline.verify import verify
from fyrehose.records import Run
from fyrehose.server.journal_copy import CopyLog, copy_journal


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return the directory of a journal with a few messages."""
    clock, directory = Clock(), tmp_path / "source"
    journal = FileJournal(clock, directory, JournalSettings(min_free=0), worker=InlineWorker())
    broker = Broker(clock, journal, Sequencer())
    broker.open()
    for number in range(5):
        broker.publish([Run.of("s", [b"message %d" % number], source="t")])
        clock.advance(1)
    broker.close()
    return directory


def test_the_copy_ends_at_the_durable_mark_of_the_other_journal(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    end = copy_journal("", str(source), target, Files(), UNKNOWN, Event())
    assert end == scan.read_mark(source) == scan.read_mark(target) > 0
    assert not verify(target).problems
    assert verify(target).records == verify(source).records


def test_copying_a_journal_that_does_not_exist_raises_a_journal_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError):
        copy_journal("", str(tmp_path / "nothing"), tmp_path / "target", Files(), UNKNOWN, Event())


def test_journal_of_another_cluster_is_refused_before_anything_is_copied(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with pytest.raises(JournalError, match="another journal") as refused:
        copy_journal("", str(source), target, Files(), b"of this cluster.", Event())
    identity = scan.identity_of(scan.segments(source))
    assert identity.hex() in str(refused.value)
    assert b"of this cluster.".hex() in str(refused.value)
    assert not scan.segments(target)


def test_copying_that_was_stopped_is_completed_by_the_next_start(source: Path, tmp_path: Path) -> None:
    stopping, target = Event(), tmp_path / "target"
    stopping.set()
    with pytest.raises(JournalError, match="stopped"):
        copy_journal("", str(source), target, Files(), UNKNOWN, stopping)
    assert not scan.segments(target)
    copy_journal("", str(source), target, Files(), UNKNOWN, Event())
    assert verify(target).records == verify(source).records


def test_progress_is_logged_once_in_a_while(log_lines: list[str]) -> None:
    now = [100.0]
    progress = CopyLog(Event(), lambda: now[0])
    for seconds in (1, 3, 2, 1, 6):
        now[0] += seconds
        progress(int(now[0] - 100) << 20, 20 << 20)
    assert [line for line in log_lines if "copied" in line] == [
        "replication: copied 6.0 MiB of 20.0 MiB",
        "replication: copied 13.0 MiB of 20.0 MiB",
    ]
