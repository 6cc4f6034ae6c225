"""The gate of a single server; and with any gate: nothing is acknowledged or delivered before its release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from fyrehose.errors import Closed, Following
from fyrehose.interfaces import JournalState
from fyrehose.journal import scan
from fyrehose.journal.commit import Commit, InlineWorker
from fyrehose.journal.gate import LocalGate
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.records import Run
from fyrehose.standing import ServerRole, Standing
from tests.doubles.appending import append_runs


@attrs.define(eq=False)
class HeldGate(LocalGate):
    """A gate that releases nothing by itself."""

    held: list[Commit] = attrs.field(factory=list)
    standing: Standing = attrs.field(factory=Standing)

    def attach(self, journal: Any) -> None:
        self.synced = self.held.append


@attrs.define(eq=False)
class SlowGate(LocalGate):
    """A gate whose preparation lasts until the test ends it."""

    preparing: Deferred[None] = attrs.field(init=False)

    def prepare(self) -> Deferred[None]:
        self.preparing = Deferred()
        return self.preparing


@attrs.define(eq=False)
class Observer:
    ends: list[dict[str, int]] = attrs.field(factory=list)
    let_go: list[str] = attrs.field(factory=list)

    def durable(self, ends: dict[str, int]) -> None:
        self.ends.append(dict(ends))

    def state_changed(self, state: JournalState, reason: str) -> None:
        pass

    def stuck(self, reason: str) -> None:
        self.let_go.append(reason)


def opened(directory: Path, gate: LocalGate) -> tuple[FileJournal, Observer]:
    journal = FileJournal(Clock(), directory, JournalSettings(min_free=0), worker=InlineWorker(), gate=gate)
    observer = Observer()
    results: list[Any] = []
    journal.open(observer).addBoth(results.append)
    assert results == [{}]
    return journal, observer


def append(journal: FileJournal, payload: bytes, seq: int) -> list[Any]:
    results: list[Any] = []
    append_runs(journal, [Run.of("s", [payload], source="t")], [seq]).addBoth(results.append)
    return results


def test_a_synced_commit_is_served_and_acknowledged_only_when_the_gate_releases_it(tmp_path: Path) -> None:
    gate = HeldGate()
    journal, observer = opened(tmp_path, gate)
    results = append(journal, b"one", 1)
    (commit,) = gate.held
    assert (results, observer.ends, journal.ends(), journal.read("s", 1, 100)) == ([], [], {}, ())
    journal.release(commit)
    assert (results, observer.ends, dict(journal.ends())) == ([None], [{"s": 1}], {"s": 1})
    assert scan.read_mark(tmp_path) == journal.status().durable == journal.writer.position


def test_a_retirement_takes_effect_only_when_the_gate_releases_it(tmp_path: Path) -> None:
    gate = HeldGate()
    journal, _ = opened(tmp_path, gate)
    append(journal, b"one", 1)
    journal.release(gate.held.pop())
    results: list[Any] = []
    journal.retire(["s"]).addBoth(results.append)
    assert (results, dict(journal.ends()), dict(journal.retired())) == ([], {"s": 1}, {})
    journal.release(gate.held.pop())
    assert (results, dict(journal.ends()), dict(journal.retired())) == ([None], {}, {"s": 1})


def test_the_gate_of_a_single_server_releases_at_once(tmp_path: Path) -> None:
    journal, observer = opened(tmp_path, LocalGate())
    assert append(journal, b"one", 1) == [None]
    assert observer.ends == [{"s": 1}]


def test_a_journal_that_ends_writes_and_releases_nothing_and_can_be_closed(tmp_path: Path) -> None:
    gate = HeldGate()
    journal, observer = opened(tmp_path, gate)
    held = append(journal, b"one", 1)
    journal.end("another server leads")
    assert (observer.let_go, journal.state) == (["another server leads"], JournalState.READ_ONLY)
    assert journal.close().called
    assert (held, observer.ends) == ([], [])


def test_nothing_is_released_after_the_journal_has_failed(tmp_path: Path, logged_errors: Any) -> None:
    gate = HeldGate()
    journal, observer = opened(tmp_path, gate)
    held = append(journal, b"one", 1)
    journal.break_off("the test says so")
    journal.release(gate.held.pop())
    assert (journal.state, held, observer.ends) == (JournalState.FAILED, [], [])
    assert len(logged_errors.take()) == 1


def test_a_journal_whose_gate_accepts_nothing_says_why(tmp_path: Path) -> None:
    refusal = Following("another server leads")
    journal, _ = opened(tmp_path, HeldGate(standing=Standing(ServerRole.FOLLOWER, refusal=refusal)))
    assert (journal.state, journal.standing.refusal) == (JournalState.READ_ONLY, refusal)
    failures: list[Any] = []
    journal.retire(["s"]).addErrback(failures.append)
    assert failures[0].value is refusal


def test_opening_fails_when_the_preparation_of_the_gate_is_cancelled(tmp_path: Path) -> None:
    """A recovery that has begun is finished first; then the journal can be closed."""
    gate = SlowGate()
    journal = FileJournal(Clock(), tmp_path, JournalSettings(min_free=0), worker=InlineWorker(), gate=gate)
    results: list[Any] = []
    journal.open(Observer()).addBoth(results.append)
    assert not results
    journal.cancel_open()
    results.pop().trap(Closed)
    assert not scan.segments(tmp_path)
    journal.open(Observer()).addBoth(results.append)
    gate.preparing.callback(None)
    journal.cancel_open()
    assert results == [{}]
    journal.close()
