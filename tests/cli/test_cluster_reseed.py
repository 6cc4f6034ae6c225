"""``fyrehose cluster reseed``: what it refuses, and which entry a new shared log begins with."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fyrehose.cli import cluster, cluster_reseed
from fyrehose.cli.cluster import Survey
from fyrehose.cli.command import main
from fyrehose.journal import scan
from fyrehose.journal.files import Files, lock
from fyrehose.replication.entries import EntryKind, LogEntry, Validity
from fyrehose.replication.settings import ReplicationSettings

END = 4096


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, LogEntry]]:
    """Return the clusters whose shared logs were begun again, and their first entries; no server is running."""
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
def config(tmp_path: Path) -> Path:
    """Return the configuration of a server whose journal is durable up to END."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "REPLICA").write_text("a\n")
    files = Files()
    fd = files.open(data / scan.MARK_NAME, os.O_RDWR | os.O_CREAT)
    files.write(fd, scan.pack_mark(END, 0, files.identity(fd)), 0)
    files.close(fd)
    path = tmp_path / "fyrehose.toml"
    path.write_text('data-dir = "data"\n[replication]\nservers = ["nats://10.0.0.1:4222"]\nname = "a"\ncluster = "x"\n')
    return path


def run(config: Path, *words: str, answer: str = "") -> Result:
    return CliRunner().invoke(main, ["cluster", "reseed", "--config", str(config), *words], input=answer)


def test_the_new_log_begins_where_the_journal_is_durable(config: Path, begun: list[tuple[str, LogEntry]]) -> None:
    ended = run(config, "--yes")
    assert ended.exit_code == 0, ended.output
    assert "the shared log of cluster x has 10 entries, to be deleted" in ended.output
    ((name, first),) = begun
    assert (name, first.kind, first.position, first.writer.name) == ("x", EntryKind.TAKEOVER, END, "a")


def test_entries_of_a_server_of_the_old_log_do_not_count(config: Path, begun: list[tuple[str, LogEntry]]) -> None:
    run(config, "--yes")
    ((_, first),) = begun
    assert time.time() - 3600 < first.epoch <= time.time(), "no cluster has had so many take-overs"
    validity = Validity()
    validity.begin(first)
    assert validity.counts(first)
    assert not validity.counts(LogEntry(EntryKind.DATA, 1, first.writer, END, b"late"))
    assert not validity.counts(LogEntry(EntryKind.TAKEOVER, 2, first.writer, END))


@pytest.mark.parametrize(("answer", "count"), [("n\n", 0), ("y\n", 1)])
def test_reseed_asks_before_it_deletes_anything(
    config: Path, begun: list[tuple[str, LogEntry]], answer: str, count: int
) -> None:
    ended = run(config, answer=answer)
    assert f"ends at position {END}" in ended.output
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


def test_reseed_refuses_a_journal_whose_durable_mark_is_unknown(
    config: Path, begun: list[tuple[str, LogEntry]]
) -> None:
    (config.parent / "data" / scan.MARK_NAME).write_bytes(b"")
    assert "the durable mark of" in run(config, "--yes").output
    assert not begun
