"""Metrics of an archive, as Prometheus reads them."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from fyrehose.cli import spark as command
from fyrehose.errors import ConfigError, FyrehoseError
from fyrehose.records import Run
from fyrehose.spark.counting import Behind
from fyrehose.spark.jobs.archive import Archived, ArchiveState, archive
from fyrehose.spark.jobs.tables import TablesState, TableState
from fyrehose.spark.lake import Lake
from fyrehose.spark.metrics import ArchiveMetrics, TablesMetrics
from fyrehose.spark.repeating import Done

Opener = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("kept_signals")


def values(text: str) -> dict[str, float]:
    """Return the value of each metric, without the prefix that all have."""
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation for family in families)
    return {sample.name.removeprefix("fyrehose_"): sample.value for family in families for sample in family.samples}


def state(**changes: Any) -> ArchiveState:
    behind = Behind(records=7, size=700, since=None)
    return ArchiveState(server="one", lake='l"ake', done=Archived(5), behind=behind, files=2, size=99, **changes)


def run(*words: object) -> Any:
    return CliRunner().invoke(command.main, [str(word) for word in words])


def test_archive_reports_lag_rounds_and_files(written: Opener, tmp_path: Path) -> None:
    journal, lake, seen = written(), tmp_path / "lake", []
    journal.fill(100)

    def progress(done: Archived, view: Any) -> None:
        if done.rounds == 1:
            journal.fill(20)

    def monitor(now: ArchiveState) -> None:
        seen.append((now.behind.records, now.done.rows, now.behind.size, now.behind.age() > 0, now.files))

    done = archive(
        None, str(journal.directory), lake, server="one", round_bytes=200_000, progress=progress, monitor=monitor
    )
    assert [lag + rows for lag, rows, *_ in seen[:2]] == [250, 250], "before and after the first round"
    assert {lag + rows for lag, rows, *_ in seen[2:]} == {len(journal.records)}
    assert (seen[0][1], seen[0][3], seen[0][4]) == (0, True, 0)
    assert seen[-1] == (0, len(journal.records), 0, False, len(Lake.at(lake).files()))
    assert done.seconds >= done.last_seconds > 0


def test_file_has_the_metrics_and_the_exit_status(written: Opener, tmp_path: Path) -> None:
    journal, lake, file = written(), tmp_path / "lake", tmp_path / "archive.prom"
    journal.fill(100)
    words = ["archive", journal.directory, lake, "--engine", "local", "--server", "one", "--metrics", file]
    assert run(*words).exit_code == 0
    found = values(file.read_text())
    count, files = len(journal.records), Lake.at(lake).files()
    assert (found["archive_records_total"], found["archive_rounds_total"]) == (count, 1)
    assert (found["archive_lag_records"], found["archive_lag_bytes"], found["archive_lag_seconds"]) == (0, 0, 0)
    assert (found["lake_files"], found["lake_bytes"]) == (len(files), sum(file.size for file in files))
    assert found["archive_last_round_seconds"] == found["archive_round_seconds_total"] > 0
    assert (found["archive_running"], found["archive_exit_status"]) == (0, 0)
    journal.fill(20)
    journal.flip(journal.place.view().mark - 50)
    said = run(*words)
    found = values(file.read_text())
    assert (said.exit_code, found["archive_exit_status"], found["archive_running"]) == (3, 3, 0)


def test_metrics_are_served_over_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(FyrehoseError, match=f"cannot listen on 127.0.0.1:{port} for --metrics: Address already"):
            ArchiveMetrics(f"127.0.0.1:{port}").start()
    metrics = ArchiveMetrics(f"127.0.0.1:{port}")
    metrics.start()
    metrics.update(state())
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    assert 'fyrehose_archive_lag_records{lake="l\\"ake",server="one"} 7.0' in text
    found = values(text)
    assert (found["archive_lag_bytes"], found["lake_files"], found["archive_running"]) == (700, 2, 1)
    assert "archive_exit_status" not in found
    metrics.stop()


def test_file_that_cannot_be_written_ends_the_archive_only_at_its_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError, match=r"invalid --metrics 'archive.txt': expected FILE.prom or HOST:PORT"):
        ArchiveMetrics("archive.txt").start()
    metrics = ArchiveMetrics(str(tmp_path / "not" / "a.prom"))
    metrics.start()
    with pytest.raises(OSError, match="No such file"):
        metrics.update(state())
    metrics.update(state())
    assert [line.partition(" to ")[0] for line in caplog.messages] == ["metrics were not written"]


CONFIG = """
journal = "data"
output = "tables"

[tables.requests]
streams = ["*"]

[tables.requests.columns]
status = "long"

[tables.requests.expectations]
known = { check = "status < 600" }
"""


def test_file_has_the_metrics_of_typed_tables(written: Opener, tmp_path: Path) -> None:
    journal, file, config = written(), tmp_path / "tables.prom", tmp_path / "tables.toml"
    config.write_text(CONFIG.replace("data", str(journal.directory)))
    events = [b'{"status": 200}', b'{"status": 700}', b"no JSON"]
    journal.append(Run.of("web", events, source="test"))
    words = ["tables", config, "--engine", "local", "--metrics", file]
    assert run(*words).exit_code == 0
    families = list(text_string_to_metric_families(file.read_text()))
    samples = [sample for family in families for sample in family.samples]
    assert all(family.documentation for family in families)
    assert {sample.labels["output"] for sample in samples} == {str(tmp_path / "tables")}
    found = {sample.name.removeprefix("fyrehose_tables_"): sample.value for sample in samples}
    assert (found["lag_records"], found["lag_bytes"], found["lag_seconds"]) == (0, 0, 0)
    assert (found["position"], found["rounds_total"]) == (journal.place.view().mark, 1)
    assert found["last_round_seconds"] == found["round_seconds_total"] > 0
    assert (found["rows_total"], found["running"], found["exit_status"]) == (3, 0, 0)
    outcomes = {s.labels["outcome"]: s.value for s in samples if s.name == "fyrehose_tables_outcomes"}
    assert (outcomes["rows"], outcomes["rescued"]) == (3, 1)
    assert outcomes["failed/known"] == 2, "a missing status is not below 600"
    journal.append(Run.of("web", events, source="test"))
    journal.flip(journal.place.view().mark - 10)
    said = run(*words)
    found = values(file.read_text())
    assert (said.exit_code, found["tables_exit_status"], found["tables_lag_records"]) == (3, 3, 3)


def test_metrics_of_tables_are_refused_for_a_backfill(tmp_path: Path) -> None:
    config = tmp_path / "tables.toml"
    config.write_text(CONFIG)
    range_ = ["--backfill", "requests", "--start", "2026-01-01", "--end", "2026-01-02"]
    said = run("tables", config, *range_, "--metrics", tmp_path / "a.prom")
    assert said.exit_code == 2
    assert "leave it out with --backfill" in said.stderr


def listed(command: str) -> set[str]:
    """Return the metrics of a command that its table in the documentation lists."""
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    names = set()
    for row in re.findall(rf"^\| (`fyrehose_(?:{command})_.*?) \|", page, re.MULTILINE):
        first, *others = re.findall(r"`(\w+)`", row)
        prefix = "_".join(first.split("_")[:2])
        names |= {first, *(other if other.startswith("fyrehose") else prefix + other for other in others)}
    return names


def test_documentation_lists_every_metric() -> None:
    metrics = ArchiveMetrics("not.used:1")
    metrics.update(state())
    metrics.ended(0)
    assert listed("archive|lake") == {sample.name for family in metrics.collect() for sample in family.samples}
    tables = TablesMetrics("not.used:1")
    behind = Behind(records=7, size=700, since=None)
    table = TableState(name="requests", rows=1, counts={"rows": 1})
    tables.update(TablesState(output="tables", done=Done(1), behind=behind, tables=[table]))
    tables.ended(0)
    assert listed("tables") == {sample.name for family in tables.collect() for sample in family.samples}
