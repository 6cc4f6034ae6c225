"""The examples: the configuration for Filebeat, its events and the plot, the notebook; and the recipe for Superset."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import duckdb
import duckdb_extension_delta
import nbformat
import pytest
from deltalake import DeltaTable
from sqlalchemy import create_engine, inspect, text

from fyrehose.records import Run
from fyrehose.spark.jobs.tables import fill_tables
from fyrehose.spark.statements import statements_of_tables
from fyrehose.spark.typed.config import TablesConfig, read_config

Opener = Callable[..., Any]
EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def config(written: Opener, tmp_path: Path) -> tuple[TablesConfig, Any]:
    journal = written()
    found = read_config(EXAMPLE / "filebeat.toml")
    return attrs.evolve(found, journal=str(journal.directory), output=str(tmp_path / "tables")), journal


def beats(events: list[dict[str, Any]], port: int = 1) -> Run:
    payloads = [json.dumps(event).encode() for event in events]
    return Run.of("lumberjack", payloads, source="lumberjack", producer=f"10.0.0.1:{port}", producer_seq=1)


def query(config: TablesConfig, name: str, text: str) -> list[tuple[Any, ...]]:
    found = duckdb.from_arrow(DeltaTable(f"{config.output}/{name}").to_pyarrow_dataset()).query(name, text)
    assert found is not None
    return list(found.fetchall())


def test_events_of_the_example_become_tables_and_a_plot(
    config: tuple[TablesConfig, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from events import event
    from plot import draw

    chosen, journal = config
    dice = random.Random(1)
    made = [event(dice, NOON + timedelta(seconds=number), number) for number in range(300)]
    journal.append(beats(made[:200]))
    fill_tables(None, chosen)
    journal.append(beats(made[150:], port=2))  # 50 of them were sent before
    states = {state.name: state for state in fill_tables(None, chosen)}
    known = [one["http"]["response"]["status_code"] for one in made]  # type: ignore[index]
    odd = sum(status == "unknown" for status in known)
    assert odd
    assert states["filebeat"].counts == {"rows": 300, "duplicates": 50, "rescued": odd}
    first = query(
        chosen, "filebeat", 'select message, host, file, "offset", event_time, method from filebeat order by 4 limit 1'
    )
    assert first == [("request", made[0]["host"]["name"], "/var/log/nginx/access.log", 0, NOON, "GET")]  # type: ignore[index]
    by_status = dict(query(chosen, "requests", "select status, sum(requests) from requests group by 1"))
    assert by_status == {status: known.count(status) for status in set(known) - {"unknown"}}
    ((errors,),) = query(chosen, "errors", "select sum(errors) from errors")
    assert errors == known.count(500) + known.count(503)
    draw(tmp_path / "tables", tmp_path / "gold.png")
    assert (tmp_path / "gold.png").read_bytes().startswith(b"\x89PNG")


def test_other_events_of_filebeat_become_rows(
    config: tuple[TablesConfig, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from plot import draw

    chosen, journal = config
    plain = {"@timestamp": "2026-01-31T12:00:00Z", "agent": {"type": "filebeat"}}
    wrong = plain | {"message": "m", "http": {"response": {"status_code": 700}}}
    severe = plain | {"message": "m", "log": {"level": "ERROR"}}
    journal.append(beats([plain, plain, wrong, severe]))
    states = {state.name: state for state in fill_tables(None, chosen)}
    counts = {"rows": 3, "quarantined": 1, "failed/has_message": 2, "failed/valid_status": 1}
    assert states["filebeat"].counts == counts, "without file and offset an event is no repetition"
    assert query(chosen, "filebeat", 'select host, "agent.type" from filebeat') == [("unknown", "filebeat")] * 3
    assert query(chosen, "errors", "select host, errors from errors") == [("unknown", 1)]
    assert query(chosen, "requests", "select * from requests") == []
    draw(tmp_path / "tables", tmp_path / "gold.png")


def test_superset_charts_the_tables_through_duckdb(config: tuple[TablesConfig, Any], tmp_path: Path) -> None:
    """The recipe of docs/pipelines.md: views in a database of DuckDB, which SQLAlchemy reads as Superset does."""
    chosen, journal = config
    status = {"http": {"response": {"status_code": 200}}}
    made = [
        {"@timestamp": f"2026-01-31T12:0{n}:00Z", "message": str(n), "host": {"name": "a"}, **status} for n in range(4)
    ]
    journal.append(beats([*made, made[0] | {"http": {"response": {"status_code": 999}}}]))
    fill_tables(None, chosen)
    folder = Path(duckdb_extension_delta.__file__).parent / "extensions" / f"v{duckdb.__version__}"
    extension = f"'{folder / 'delta.duckdb_extension'}'"
    with duckdb.connect(str(tmp_path / "events.duckdb")) as connection:
        connection.execute(f"load {extension}")
        connection.execute("\n".join(statements_of_tables("duckdb", chosen.places())))
    engine = create_engine(
        f"duckdb:///{tmp_path / 'events.duckdb'}?access_mode=read_only",
        connect_args={"preload_extensions": [extension]},
    )
    found = inspect(engine)
    assert {"requests", "errors", "filebeat", "filebeat_expectations"} <= {*found.get_view_names("fyrehose_tables")}
    columns = {column["name"]: str(column["type"]) for column in found.get_columns("requests", "fyrehose_tables")}
    assert columns["window"].startswith("TIMESTAMP")
    chart = (
        "select date_trunc('hour', \"window\") as at, status, sum(requests) as n "
        "from fyrehose_tables.requests group by 1, 2 order by n desc limit 1000"
    )
    quality = "select rule, sum(failed) from fyrehose_tables.filebeat_expectations group by 1 order by 1"
    with engine.connect() as reading:
        assert [tuple(row)[1:] for row in reading.execute(text(chart))] == [(200, 4)]
        assert [tuple(row) for row in reading.execute(text(quality))] == [("has_message", 0), ("valid_status", 1)]
    engine.dispose()


def filed(number: int) -> bytes:
    minute, status = number // 10, 999 if number == 7 else 200
    fields = {"host": {"name": f"web-{number % 2}"}, "http": {"response": {"status_code": status}}, "extra": number}
    return json.dumps({"@timestamp": f"2026-01-31T12:{minute:02}:00Z", **fields}).encode()


@pytest.mark.slow
def test_notebook_runs_and_shows_every_event(written: Opener, tmp_path: Path) -> None:
    journal = written()
    journal.append(Run.of("web", [filed(number) for number in range(50)], source="test"))
    (tmp_path / "out").mkdir()
    path = tmp_path / "streams.ipynb"
    path.write_bytes((EXAMPLE.parent / "notebook" / "streams.ipynb").read_bytes())
    places = {"FYREHOSE_JOURNAL": str(journal.directory), "FYREHOSE_OUTPUT": str(tmp_path / "out")}
    # A process of its own: a notebook leaves an event loop open in the one that runs it.
    execute = [str(Path(sys.executable).with_name("jupyter-execute")), "--inplace", "--timeout=300", str(path)]
    subprocess.run(execute, env={**os.environ, **places}, check=True, timeout=300)
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    texts = "\n".join(output.data.get("text/plain", "") for output in outputs if "data" in output)
    assert "('events', 49)" in texts
    assert "('events_quarantine', 1)" in texts
    assert "│ web    ┆ 50" in texts
    assert "valid_status ┆ 50   ┆ 1" in texts
    assert any("image/png" in output.data for output in outputs if "data" in output)
