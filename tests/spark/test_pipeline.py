"""The example: the configuration for Filebeat, its events, and the plot."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import duckdb
import pytest
from deltalake import DeltaTable

from fyrehose.records import Run
from fyrehose.spark.jobs.tables import fill_tables
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
