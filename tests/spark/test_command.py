"""Run fyrehose-spark with the Spark session of the tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fyrehose.cli import spark as command
from fyrehose.records import Run
from fyrehose.spark.lake import Lake

Opener = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("kept_signals")


def run(*words: object) -> Result:
    # The commands set the zone of their process; with another zone than before, programs of later tests are no forks.
    return CliRunner(env={"TZ": "UTC"}).invoke(command.main, [str(word) for word in words])


@pytest.mark.slow
def test_journal_is_archived_and_queried_by_commands(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(60)
    journal.append(*(Run.of("web", [b'{"ms": 5}'] * 2, source="test", producer="p:1", producer_seq=n) for n in (1, 5)))
    place, count = journal.directory, len(journal.records)
    said = run("archive", place, lake, "--subscription", "lake")
    assert (said.exit_code, f"{count}" in said.output) == (0, True), said.output
    journal.append(Run.of("web", [b'{"ms": 5}'], source="test", producer="p:2", producer_seq=5))
    both = ("--lake", lake, "--journal", place)
    said = run("table", *both)
    assert next(line.split()[:4] for line in said.output.splitlines() if "web" in line) == ["web", "5", "1", "5"]
    said = run("table", *both, "--stream", "web", "--sql", "select count(*) as rows from records")
    assert said.output.split()[-1] == "5"
    said = run("dedup", *both, "--where", "stream = 'web'", "--output", tmp_path / "doubles")
    assert "web" in said.output
    assert spark.read.parquet(str(tmp_path / "doubles")).count() == 1
    said = run("gaps", *both)
    assert (said.exit_code, "no gaps" in said.output) == (0, True), said.output
    said = run("gaps", *both, "--producers", "--stream", "web")
    assert (said.exit_code, "3 " in said.output) == (3, True), said.output
    said = run("rates", *both, "--plot", tmp_path / "rates.png", "--output", tmp_path / "rates")
    assert (tmp_path / "rates.png").stat().st_size > 1000
    said = run("parse", *both, "--stream", "web", "--output", tmp_path / "parsed")
    assert said.output.split()[-2:] == ["5", "0"]
    said = run("optimize", lake, "--keep", "36500d")
    assert (said.exit_code, said.output.split()[-3:]) == (0, ["1", "1", "0"]), said.output
    said = run("verify", place, lake)
    assert (said.exit_code, f"{count} records compared and the same" in said.output) == (0, True), said.output


def test_archive_and_maintenance_without_spark(
    written: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_open", lambda *args: 1 / 0)
    journal, lake = written(), tmp_path / "lake"
    journal.fill(60)
    for _ in range(2):
        said = run("archive", journal.directory, lake, "--engine", "local", "--server", "one")
        assert said.exit_code == 0, said.output
        journal.fill(1)
    said = run("delete", lake, "--where", "stream = 's1'")
    assert said.output.split()[-1] == str(len(journal.rows(lambda r: r.stream == "s1")))
    said = run("optimize", lake)
    assert (said.exit_code, said.output.split()[-3:]) == (0, ["1", "1", "0"]), said.output
    said = run("archive", journal.directory, lake, "--engine", "local", "--server", "two")
    assert (said.exit_code, len(said.output.splitlines())) == (2, 1), said.output
    assert "has this journal under the name 'one'" in said.output
    said = run("delete", lake, "--where", "nonsense")
    assert (said.exit_code, len(said.output.splitlines())) == (2, 1), said.output


def test_only_archive_starts_the_jvm_with_limited_compilation(
    spark: Any, written: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, asked = written(), list[bool]()
    journal.fill(3)

    def session(*words: object, quick: bool, **options: object) -> Any:
        asked.append(quick)
        return spark

    monkeypatch.setattr("fyrehose.spark.spark_session.session", session)
    assert run("archive", journal.directory, tmp_path / "lake").exit_code == 0
    assert run("table", "--lake", tmp_path / "lake").exit_code == 0
    assert asked == [True, False]


def test_archive_that_cannot_begin_is_refused_before_spark_starts(
    written: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_open", lambda *args: 1 / 0)
    journal, lake = written(), tmp_path / "lake"
    journal.fill(5)
    assert run("archive", journal.directory, lake, "--engine", "local", "--server", "one").exit_code == 0
    with Lake.at(lake).locked(journal.place.view().identity):
        said = run("archive", journal.directory, lake)
    assert (said.exit_code, len(said.output.splitlines())) == (5, 1), said.output
    assert f"another archive of this journal writes to the lake {lake}" in said.output
    for words, status, text in (
        (("archive", journal.directory, lake, "--server", "two"), 2, "has this journal under the name 'one'"),
        (("archive", tmp_path / "not", lake), 1, "no such directory"),
        (("archive", journal.directory, "gs://bucket/lake"), 2, "expected a directory or s3://BUCKET/PATH"),
        (("archive", journal.directory, lake, "--metrics", "x"), 2, "expected FILE.prom or HOST:PORT"),
        (("archive", journal.directory), 2, "Missing argument 'LAKE'"),
    ):
        said = run(*words)
        assert (said.exit_code, text in said.output) == (status, True), said.output


@pytest.mark.slow
def test_errors_are_printed_in_one_line(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal = written()
    journal.fill(60)
    path = journal.flip(20_000)
    said = run("table", "--journal", journal.directory)
    assert said.exit_code == 3
    assert said.output.startswith(f"fyrehose-spark: {path} is damaged")
    assert len(said.output.strip().splitlines()) == 1
    said = run("table", "--journal", tmp_path / "not")
    assert (said.exit_code, "no such directory" in said.output) == (1, True)
    assert run("table").exit_code == 2
    said = run("table", "--journal", journal.directory, "--sql", "nonsense")
    assert (said.exit_code, len(said.output.strip().splitlines())) == (2, 1), said.output


def test_tables_are_filled_from_a_configuration(written: Opener, tmp_path: Path) -> None:
    journal = written()
    journal.append(Run.of("web", [b'{"ms": 5}', b'{"ms": 500}', b"odd"], source="test"))
    config = tmp_path / "tables.toml"
    config.write_text(f"""
        journal = "{journal.directory}"
        output = "tables"
        [tables.web]
        streams = "web"
        columns = {{ ms = "long" }}
        expectations.fast = {{ check = "ms < 100" }}
    """)
    said = run("tables", config, "--check")
    assert (said.exit_code, "is valid" in said.output) == (0, True), said.output
    assert not (tmp_path / "tables").exists()
    said = run("tables", config, "--engine", "local")
    assert said.exit_code == 0, said.output
    assert said.output.splitlines()[-1].split() == ["web", "3", "3", "1", "-", "-", "-", "fast", "2"]
    said = run(
        "tables", config, "--engine", "local", "--backfill", "web", "--start", "2023-11-14", "--end", "2023-11-15"
    )
    assert said.exit_code == 0, said.output
    assert said.output.splitlines()[-1].split()[:2] == ["web", "3"]
    said = run("tables", config, "--engine", "local", "--backfill", "web")
    assert said.exit_code == 2
    assert "belong together" in said.output
    config.write_text(config.read_text().replace("streams", "streems"))
    said = run("tables", config)
    assert said.exit_code == 2
    assert "line 5, in [tables.web]: unknown key 'streems'; did you mean streams?" in said.output
