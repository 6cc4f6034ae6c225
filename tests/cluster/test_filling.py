"""When a server of a cluster is filled, which server it copies, and when it must not begin a shared log."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.task import Clock

from fyrehose.cluster.entries import EntryKind, EntryWriter, LogEntry
from fyrehose.cluster.filling import ALONE, Filler, waits
from fyrehose.cluster.peers import Peers
from fyrehose.cluster.role import Role
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.errors import ConfigError, JournalCorrupt, JournalError
from fyrehose.journal.follower import REPLICA
from fyrehose.journal.format import SegmentHeader
from fyrehose.journal.scan import MARK_NAME, pack_mark
from tests.doubles.shared_log import Hub


def peers(journal: str = "") -> Peers:
    return Peers(ReplicationSettings(name="c", members=3, journal=journal), 1)


def said(name: str, position: int = 0, journal: str = "", state: str = "follower") -> bytes:
    words = {"name": name, "incarnation": 1, "epoch": 1, "state": state, "position": position, "journal": journal}
    return json.dumps(words).encode()


def fill(directory: Path, first: LogEntry, messages: list[bytes], journal: str = "") -> tuple[list[str], list[Any]]:
    """Start a server in *directory*; return which journals it copies, and how filling ends."""
    clock = Clock()
    hub = Hub(clock, Random(1), entries=[first])
    copied: list[str] = []

    def copy(url: str, *arguments: Any) -> int:
        copied.append(url)
        return first.position

    filler = Filler(clock, directory, hub.log("c"), peers(journal), copy, maybeDeferred)
    ended: list[Any] = []
    Deferred.fromCoroutine(filler.fill()).addBoth(ended.append)
    for _ in range(4000):
        clock.advance(0.1)
        if "c" in hub.hears:
            for message in messages:
                hub.hears["c"](message)
    return copied, ended


def checkpoint(position: int) -> LogEntry:
    return LogEntry(EntryKind.CHECKPOINT, 3, EntryWriter("a", 1), position)


def test_a_follower_is_copied_rather_than_the_leader(tmp_path: Path) -> None:
    messages = [said("a", 9, "http://a", "leader"), said("b", 9, "http://b"), said("d", 9)]
    assert fill(tmp_path, checkpoint(9), messages) == (["http://b"], [None])


def test_nothing_is_copied_if_the_shared_log_begins_where_the_journal_does(tmp_path: Path) -> None:
    assert fill(tmp_path, checkpoint(0), [said("b", 9, "http://b")]) == ([], [None])


def test_a_journal_that_was_never_in_a_cluster_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / f"{0:016x}.segment").write_bytes(bytes(64))
    assert fill(tmp_path, checkpoint(9), [said("b", 9, "http://b")]) == ([], [None])


def test_a_journal_whose_mark_is_damaged_is_not_filled(tmp_path: Path) -> None:
    (tmp_path / f"{0:016x}.segment").write_bytes(bytes(64))
    (tmp_path / REPLICA).write_text("c\n")
    (tmp_path / MARK_NAME).write_bytes(b"damaged")
    copied, (failure,) = fill(tmp_path, checkpoint(9), [said("b", 9, "http://b")], "http://c")
    assert not copied
    failure.trap(JournalCorrupt)
    assert "empty the directory" in failure.getErrorMessage()


@pytest.mark.parametrize("journal", ["", "http://c"])
def test_without_a_journal_to_copy_the_server_says_what_to_do(tmp_path: Path, journal: str) -> None:
    """It waits for the others if they serve their journals, too."""
    copied, (failure,) = fill(tmp_path, checkpoint(9), [said("b", 9)], journal)
    assert not copied
    failure.trap(ConfigError)
    assert "fyrehose journal restore --exact" in failure.getErrorMessage()


def test_a_server_starts_although_the_shared_log_answers_late(tmp_path: Path) -> None:
    """The start does not wait for the shared log; the open journal asks it again and again."""
    clock = Clock()
    log = Hub(clock, Random(1), away={"c"}).log("c")
    log.timeout = 60.0
    filler = Filler(clock, tmp_path, log, peers(), lambda *arguments: 0, maybeDeferred)
    ended: list[Any] = []
    Deferred.fromCoroutine(filler.fill()).addBoth(ended.append)
    clock.pump([0.1] * 100)
    assert ended == [None]


def test_a_download_stops_when_the_start_is_cancelled(tmp_path: Path) -> None:
    clock = Clock()
    hub = Hub(clock, Random(1), entries=[checkpoint(9)])
    stops: list[Event] = []

    def download(copy: Any, url: str, directory: Path, files: Any, identity: bytes, stopping: Event) -> Deferred[int]:
        stops.append(stopping)
        return Deferred()

    filler = Filler(clock, tmp_path, hub.log("c"), peers(), lambda *arguments: 0, download)
    ended: list[Any] = []
    filling = Deferred.fromCoroutine(filler.fill()).addBoth(ended.append)
    clock.pump([0.1] * 5)
    hub.hears["c"](said("b", 9, "http://b"))
    clock.pump([0.1] * 20)
    assert not stops[0].is_set()
    filling.cancel()
    assert stops[0].is_set()
    ended[0].trap(CancelledError)


@pytest.mark.parametrize("seconds", [0.0, 0.5, 3.0])
def test_waiting_for_a_journal_to_copy_can_be_cancelled(tmp_path: Path, seconds: float) -> None:
    clock = Clock()
    hub = Hub(clock, Random(1), entries=[checkpoint(9)])
    filler = Filler(clock, tmp_path, hub.log("c"), peers("http://c"), lambda *arguments: 0, maybeDeferred)
    ended: list[Any] = []
    filling = Deferred.fromCoroutine(filler.fill()).addBoth(ended.append)
    clock.pump([0.1] * round(10 * seconds))
    assert not ended
    filling.cancel()
    ended[0].trap(CancelledError)


def test_the_reason_why_a_journal_cannot_be_copied_is_logged_once(tmp_path: Path, log_lines: list[str]) -> None:
    clock = Clock()
    hub = Hub(clock, Random(1), entries=[attrs.evolve(checkpoint(9), identity=b"the one in NATS.")])
    asked: list[bytes] = []

    def refuse(url: str, directory: Path, files: Any, identity: bytes, stopping: Event) -> int:
        asked.append(identity)
        raise JournalError("it is another journal")

    filler = Filler(clock, tmp_path, hub.log("c"), peers(), refuse, maybeDeferred)
    filling = Deferred.fromCoroutine(filler.fill()).addErrback(lambda failure: failure.trap(CancelledError))
    clock.pump([0.1] * 5)
    hub.hears["c"](said("b", 9, "http://b"))
    clock.pump([0.1] * 300)
    filling.cancel()
    assert asked == [b"the one in NATS."] * len(asked)
    assert len(asked) > 3
    assert [line for line in log_lines if "it is another journal" in line] == [
        "replication: the journal of b cannot be copied: it is another journal"
    ]


def test_a_server_whose_own_journal_is_another_one_copies_nothing(tmp_path: Path) -> None:
    """The server ends with an error before it asks another server for anything."""
    header = SegmentHeader(0, 1, 0, b"another journal!")
    (tmp_path / f"{0:016x}.segment").write_bytes(header.pack())
    (tmp_path / REPLICA).write_text("c\n")
    (tmp_path / MARK_NAME).write_bytes(pack_mark(64))
    first = attrs.evolve(checkpoint(99), identity=b"the one in NATS.")
    copied, (failure,) = fill(tmp_path, first, [said("b", 9, "http://b")], "http://c")
    assert not copied
    failure.trap(ConfigError)
    assert first.identity.hex() in failure.getErrorMessage()
    assert header.identity.hex() in failure.getErrorMessage()


def test_only_a_server_with_the_longest_journal_begins_a_shared_log() -> None:
    others = peers()
    others.hear(said("a", 50), 1.0)
    assert "a has a longer journal" in waits(40, False, others, ALONE)
    assert waits(50, False, others, ALONE) == ""
    assert "fyrehose cluster reseed" in waits(50, True, others, ALONE)
    own, stray = (Role(EntryWriter(name, 2), 8, identity=name.encode() * 16) for name in "cd")
    others.hear(Peers(ReplicationSettings(name="d"), 2).pack(stray, False, now=0.0), 1.0, own)
    assert "d has another journal" in waits(50, False, others, ALONE)


def test_empty_server_begins_a_shared_log_when_it_is_alone_or_all_are_empty() -> None:
    others = peers()
    assert "waiting for them" in waits(0, True, others, ALONE - 1)
    assert waits(0, True, others, ALONE) == ""
    others.hear(said("a"), 1.0)
    assert waits(0, True, others, 1.0) != ""
    others.hear(said("b"), 1.0)
    assert waits(0, True, others, 1.0) == ""
