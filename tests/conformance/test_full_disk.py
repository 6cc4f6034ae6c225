"""A server that is alone and has too little disk: what it refuses, what it says, and that it recovers by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import Following, ReadOnly, Unreplicated
from fyrehose.journal.commit import InlineWorker
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.records import Run
from fyrehose.subscriptions.progress import SubscriptionOptions
from fyrehose.testing import RecordingSink
from tests.doubles.files import FaultyFiles

MIB = 1 << 20


class Alone:
    """A server that is in no cluster, with 256 MiB of ``min-free`` on a disk whose free space the test chooses."""

    def __init__(self, directory: Path, free: int) -> None:
        self.clock, self.files = Clock(), FaultyFiles(room=free)
        settings = JournalSettings(min_free=256 * MIB)
        journal = FileJournal(self.clock, directory / "journal", settings, files=self.files, worker=InlineWorker())
        self.broker = Broker(self.clock, journal, Sequencer())
        self.broker.open()

    def publish(self) -> Deferred[Any]:
        return self.broker.publish([Run.of("s", [b"x"], source="test")])

    def free(self, room: int) -> None:
        self.files.room = room
        self.clock.advance(1)


def error_of(called: Deferred[Any]) -> BaseException | None:
    failures: list[Failure] = []
    called.addErrback(failures.append)
    return failures[0].value if failures else None


#: Requests that need a journal that can be written.
REQUESTS: dict[str, Callable[[Alone], Deferred[Any]]] = {
    "publish": Alone.publish,
    "publish once": lambda alone: alone.broker.publish([Run.of("s", [b"x"], source="test")], key="key"),
    "retire": lambda alone: alone.broker.retire(["s"]),
    "named": lambda alone: alone.broker.named.open("n", "s", 0),
    "shared": lambda alone: alone.broker.table.create("w", SubscriptionOptions(stream="s")),
}


@pytest.mark.parametrize("began_full", [True, False])
@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS)
def test_a_request_is_refused_with_the_free_space_and_accepted_when_there_is_room(
    tmp_path: Path, request_of: Callable[[Alone], Deferred[Any]], began_full: bool
) -> None:
    alone = Alone(tmp_path, 1024 * MIB)
    alone.publish()
    if began_full:
        alone.broker.close()
        alone = Alone(tmp_path, 235 * MIB)
    else:
        alone.free(235 * MIB)
    error = error_of(request_of(alone))
    assert isinstance(error, ReadOnly)
    assert not isinstance(error, Following | Unreplicated), "there is no other server"
    assert "has 235.0 MiB free, less than journal.min-free (256.0 MiB)" in str(error)
    assert "`fyrehose doctor`" in str(error)
    alone.free(300 * MIB)
    accepted: list[Any] = []
    request_of(alone).addCallback(accepted.append)
    assert len(accepted) == 1
    alone.broker.close()


def test_space_that_is_just_enough_again_does_not_count_as_too_little(tmp_path: Path) -> None:
    """Publishing resumes a tenth above min-free, so that it does not stop again at once."""
    alone = Alone(tmp_path, 235 * MIB)
    alone.free(270 * MIB)
    said = str(error_of(alone.publish()))
    assert "has 270.0 MiB free, which is not enough yet" in said
    assert "when more than 281.6 MiB are free" in said
    alone.broker.close()


def test_subscription_beyond_the_end_of_a_server_that_began_with_a_full_disk_begins_at_the_start(
    tmp_path: Path,
) -> None:
    """Only a follower may lack records that a subscriber has seen."""
    alone = Alone(tmp_path, 1024 * MIB)
    alone.publish()
    alone.broker.close()
    alone = Alone(tmp_path, 235 * MIB)
    assert alone.broker.subscribe("s", 100, RecordingSink()).position == 0
    assert alone.broker.when_leading().called, "listeners of publishers open, and say why they refuse"
    alone.broker.close()


def test_the_refusal_of_a_failed_write_says_why_the_disk_cannot_be_written(tmp_path: Path) -> None:
    alone = Alone(tmp_path, 1024 * MIB)
    alone.files.name, alone.files.nth, alone.files.error, alone.files.times = "write", 1, 28, 1 << 30
    alone.files.calls.clear()
    waits = alone.publish()
    said = str(error_of(alone.publish()))
    assert "the server's disk cannot be written: No space left on device" in said
    alone.files.times = 0
    for _ in range(2):
        alone.clock.advance(1)
    assert waits.called
    assert error_of(alone.publish()) is None
    alone.broker.close()
