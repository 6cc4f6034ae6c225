"""``fyrehose cluster reseed``: what it refuses, and which entry a new shared log begins with."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result

from fyrehose.cli.cluster import reseed as cluster_reseed
from fyrehose.cli.cluster import survey as cluster
from fyrehose.cli.cluster.survey import Survey
from fyrehose.cli.command import main
from fyrehose.cluster.entries import EntryKind, LogEntry, Validity
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.journal import scan
from fyrehose.journal.exchange import Handover
from fyrehose.journal.files import Files, lock
from fyrehose.journal.follower import cut_at_mark
from fyrehose.journal.recovery import recover
from fyrehose.journal.writer import NoRoom, SyncFailed, Writer
from fyrehose.records import Run


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, LogEntry]]:
    """Record which shared logs are begun again, with their first entries, in a cluster without running servers."""
    found: list[tuple[str, LogEntry]] = []

    async def begin_again(settings: ReplicationSettings, first: LogEntry) -> None:
        found.append((settings.cluster, first))

    monkeypatch.setattr(cluster_reseed, "begin_again", begin_again)
    hear(monkeypatch, Survey([], {"first": 11, "last": 20}))
    return found


def hear(monkeypatch: pytest.MonkeyPatch, found: Survey) -> None:
    async def survey(*_: Any) -> Survey:
        return found

    monkeypatch.setattr(cluster, "survey", survey)


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """Return the writer of the journal of a server of a cluster, with three messages, of which two are released."""
    directory = tmp_path / "data"
    directory.mkdir()
    (directory / "REPLICA").write_text("a\n")
    made = Writer(directory, recover(directory, Files()), 1 << 14, handover=Handover())
    made.open(1)
    made.lead(1)
    for number in (1, 2):
        commit(made, number)
    made.released = made.position
    made.note()
    commit(made, 3)
    return made


def commit(of: Writer, number: int, size: int = 100) -> None:
    of.commit([[Run.of("s", [bytes(size)], source="t").numbered(number, number)]], number, number)


@pytest.fixture
def config(tmp_path: Path, writer: Writer) -> Path:
    """Return the configuration of the server whose journal *writer* has written."""
    writer.close(in_order=False)
    path = tmp_path / "fyrehose.toml"
    path.write_text('data-dir = "data"\n[replication]\nservers = ["nats://10.0.0.1:4222"]\nname = "a"\ncluster = "x"\n')
    return path


def run(config: Path, *words: str, answer: str = "") -> Result:
    return CliRunner().invoke(main, ["cluster", "reseed", "--config", str(config), *words], input=answer)


def records(directory: Path) -> int:
    """Return the last number of the stream in the journal, as a server finds it that starts there."""
    cut_at_mark(directory, Files())
    return recover(directory, Files()).streams.ends["s"]


def test_the_new_log_begins_behind_the_last_whole_batch_not_at_the_durable_mark(
    config: Path, writer: Writer, begun: list[tuple[str, LogEntry]]
) -> None:
    ended = run(config, "--yes")
    assert ended.exit_code == 0, ended.output
    assert "the shared log of cluster x has 10 entries, to be deleted" in ended.output
    assert (
        f"its durable mark is at position {writer.released}, whole batches reach to {writer.position}" in ended.output
    )
    ((name, first),) = begun
    assert (name, first.kind, first.position, first.writer.name) == ("x", EntryKind.TAKEOVER, writer.position, "a")
    assert (first.identity, first.chain, first.after) == (writer.identity, writer.chain, writer.chain)
    assert records(writer.directory) == 3


def test_segments_that_an_earlier_start_has_set_aside_are_brought_back_one_after_the_other(
    writer: Writer, begun: list[tuple[str, LogEntry]], request: pytest.FixtureRequest
) -> None:
    for number in range(4, 60):
        commit(writer, number, size=1000)
    config = request.getfixturevalue("config")
    assert len(cut_at_mark(writer.directory, Files())) > 2
    aside = sorted(writer.directory.glob("torn-*"))[-1]
    size = writer.position - int(aside.stem[5:], 16)
    aside.write_bytes(aside.read_bytes().ljust(size, b"\0") + b"FYB\x01 half a batch")
    ended = run(config, "--yes")
    assert f"whole batches reach to {writer.released}, torn-" in ended.output
    assert f", {aside.name} to {writer.position})" in ended.output
    assert begun[0][1].position == writer.position
    assert records(writer.directory) == 59
    assert not list(writer.directory.glob("torn-*"))


def test_bytes_set_aside_that_do_not_continue_the_journal_stay_aside(
    writer: Writer, begun: list[tuple[str, LogEntry]], request: pytest.FixtureRequest
) -> None:
    config = request.getfixturevalue("config")
    cut_at_mark(writer.directory, Files())
    again = Writer(writer.directory, recover(writer.directory, Files()), 1 << 14, handover=Handover())
    again.open(1)
    commit(again, 3, size=104)  # another batch in its place
    again.released = again.position
    again.note()
    again.close(in_order=False)
    run(config, "--yes")
    assert begun[0][1].position == again.position
    assert list(writer.directory.glob("torn-*"))


def test_entries_of_servers_of_the_old_log_are_ignored(config: Path, begun: list[tuple[str, LogEntry]]) -> None:
    run(config, "--yes")
    ((_, first),) = begun
    assert time.time() - 3600 < first.epoch <= time.time(), "no cluster has had so many take-overs"
    validity = Validity()
    validity.begin(first)
    assert validity.counts(first)
    late = attrs.evolve(first, kind=EntryKind.DATA, epoch=1, data=b"late")
    assert not validity.counts(late)
    assert not validity.counts(attrs.evolve(first, epoch=2))


@pytest.mark.parametrize(("answer", "count"), [("n\n", 0), ("y\n", 1)])
def test_reseed_asks_before_it_deletes_anything(
    config: Path, begun: list[tuple[str, LogEntry]], answer: str, count: int
) -> None:
    ended = run(config, answer=answer)
    assert "ends at position" in ended.output
    assert len(begun) == count


def test_reseed_refuses_while_a_server_is_running(
    config: Path, begun: list[tuple[str, LogEntry]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hear(monkeypatch, Survey([{"name": "b", "state": "follower"}], None))
    ended = run(config, "--yes")
    assert ended.exit_code == 1
    assert "stop all servers of the cluster first; running: b" in ended.output
    held = lock(config.parent / "data")
    assert "is in use by another process" in run(config, "--yes").output
    os.close(held)
    assert not begun


def test_reseed_refuses_a_journal_that_was_never_one_of_a_cluster(
    config: Path, begun: list[tuple[str, LogEntry]]
) -> None:
    (config.parent / "data" / "REPLICA").unlink()
    assert "has never been the journal of a server of a cluster" in run(config, "--yes").output
    assert "has never been" in run(config, "--yes", "--data-dir", str(config.parent / "other")).output
    config.write_text(config.read_text().replace('data-dir = "data"\n', ""))
    assert "has no data-dir; pass --data-dir DIR" in run(config, "--yes").output
    config.write_text('data-dir = "data"\n')
    assert "has no table [replication]" in run(config, "--yes").output
    assert not begun


def test_a_journal_whose_durable_mark_is_unknown_ends_at_its_last_whole_batch(
    config: Path, writer: Writer, begun: list[tuple[str, LogEntry]]
) -> None:
    (writer.directory / scan.MARK_NAME).write_bytes(b"")
    assert (
        f"its durable mark is at an unknown position, whole batches reach to {writer.position}"
        in run(config, "--yes").output
    )
    assert begun[0][1].position == writer.position
    assert records(writer.directory) == 3


@pytest.mark.parametrize(("error", "status"), [(NoRoom("no space left"), 6), (SyncFailed("I/O error"), 4)])
def test_reseed_reports_a_full_or_failed_disk_without_a_traceback(
    config: Path,
    begun: list[tuple[str, LogEntry]],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: int,
) -> None:
    def fail(self: Writer) -> int:
        raise error

    monkeypatch.setattr(Writer, "note", fail)
    ended = run(config, "--yes")
    assert ended.exit_code == status
    assert f"cannot be used for a new shared log: {error}; free some space, or check the disk" in ended.output
    assert begun == []
