"""When a server of a cluster is filled, which server it copies, and when it must not begin a shared log."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock

from fyrehose.errors import ConfigError, JournalCorrupt
from fyrehose.journal.format import SegmentHeader
from fyrehose.journal.replica import REPLICA
from fyrehose.journal.scan import MARK_NAME, pack_mark
from fyrehose.replication.entries import EntryKind, EntryWriter, LogEntry
from fyrehose.replication.filling import ALONE, Filler, waits
from fyrehose.replication.peers import Peers
from fyrehose.replication.settings import ReplicationSettings
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


def test_nothing_is_copied_if_the_shared_log_begins_with_the_journal(tmp_path: Path) -> None:
    assert fill(tmp_path, checkpoint(0), [said("b", 9, "http://b")]) == ([], [None])


def test_a_journal_that_was_never_one_of_a_cluster_is_not_touched(tmp_path: Path) -> None:
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
    assert "fyrehose journal backup" in failure.getErrorMessage()


def test_a_server_starts_although_the_shared_log_answers_late(tmp_path: Path) -> None:
    """Following asks it again and again; the start does not wait for it."""
    clock = Clock()
    log = Hub(clock, Random(1), away={"c"}).log("c")
    log.timeout = 60.0
    filler = Filler(clock, tmp_path, log, peers(), lambda *arguments: 0, maybeDeferred)
    ended: list[Any] = []
    Deferred.fromCoroutine(filler.fill()).addBoth(ended.append)
    clock.pump([0.1] * 100)
    assert ended == [None]


def test_a_server_whose_own_journal_is_another_one_copies_nothing(tmp_path: Path) -> None:
    """It says so before it asks another server for anything."""
    header = SegmentHeader(0, 1, 0, bytes(16), b"another journal!")
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


def test_empty_server_begins_a_shared_log_when_it_is_alone_or_all_are_empty() -> None:
    others = peers()
    assert "waiting for them" in waits(0, True, others, ALONE - 1)
    assert waits(0, True, others, ALONE) == ""
    others.hear(said("a"), 1.0)
    assert waits(0, True, others, 1.0) != ""
    others.hear(said("b"), 1.0)
    assert waits(0, True, others, 1.0) == ""
