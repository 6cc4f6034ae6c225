"""When a leader refuses messages because of the shared log, and which warnings are logged."""

from __future__ import annotations

import attrs
import pytest

from fyrehose.cluster.entries import EntryWriter
from fyrehose.cluster.log_answers import QUIET, LogAnswers
from fyrehose.cluster.role import Append, Role
from tests.doubles.shared_log import whole

IDLE = Role(EntryWriter("a", 1), 0)


@attrs.define
class Gate:
    """A gate that accepts messages while ``reason`` is empty."""

    reason: str = ""

    def suspend(self, reason: str) -> bool:
        was, self.reason = self.reason, self.reason or reason
        return not was

    def resume(self) -> bool:
        was, self.reason = self.reason, ""
        return bool(was)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def answers(gate: Gate) -> LogAnswers:
    made = LogAnswers(gate)
    made.begin(100.0)
    return made


def waiting() -> Role:
    """Return the role of a leader that waits for the answer to an append."""
    role = Role(EntryWriter("a", 1), 0)
    role.take_over(0)
    role.accepted(next(each.entry for each in role.take() if isinstance(each, Append)), 1)
    role.append(0, whole(b"x"))
    assert role.pending
    return role


def test_messages_are_refused_while_the_shared_log_does_not_answer(answers: LogAnswers, gate: Gate) -> None:
    answers.refuse_when_silent(100 + QUIET)
    assert gate.reason == ""
    answers.refuse_when_silent(100.1 + QUIET)
    assert gate.reason == "the shared log does not answer"
    answers.answered(200.0)
    assert gate.reason == ""
    answers.refuse_when_silent(200 + QUIET)
    assert gate.reason == ""


def test_refusals_name_the_reason_for_which_the_shared_log_is_unavailable(answers: LogAnswers, gate: Gate) -> None:
    answers.unavailable("no responders")
    answers.refuse_when_silent(101 + QUIET)
    assert gate.reason == "no responders"


def test_an_idle_leader_counts_no_silence_unless_a_request_has_failed(answers: LogAnswers, gate: Gate) -> None:
    answers.note_idle(IDLE, 200.0)
    answers.refuse_when_silent(201.0)
    assert gate.reason == ""
    answers.note_idle(waiting(), 210.0)
    answers.refuse_when_silent(210.0)
    assert gate.reason, "the answer to an append is missing since 200"
    answers.answered(210.0)
    answers.unavailable("no answer")
    answers.note_idle(IDLE, 300.0)
    answers.refuse_when_silent(300.0)
    assert gate.reason == "no answer"


def test_answers_do_not_end_the_refusal_while_the_shared_log_is_too_large(answers: LogAnswers, gate: Gate) -> None:
    answers.measured("too large", IDLE, 101.0)
    answers.answered(102.0)
    assert gate.reason == "too large"
    answers.measured("", waiting(), 103.0)
    assert gate.reason == ""


def test_a_leader_that_has_just_taken_over_has_not_measured_the_shared_log(answers: LogAnswers, gate: Gate) -> None:
    answers.measured("too large", IDLE, 101.0)
    answers.lead()
    answers.answered(102.0)
    assert gate.reason == ""


def test_each_warning_is_logged_once_until_the_shared_log_answers(answers: LogAnswers, log_lines: list[str]) -> None:
    for _ in range(2):
        answers.unavailable("no answer")
        answers.warn("purged")
    assert [line.rpartition(": ")[2] for line in log_lines] == ["no answer", "purged"]
    answers.answered(101.0)
    answers.warn("purged")
    answers.read()
    answers.warn("purged")
    assert len(log_lines) == 4
