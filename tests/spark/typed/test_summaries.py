"""Aggregates follow the versions of their table's log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from fyrehose.errors import ConfigError
from fyrehose.records import Run
from fyrehose.spark.jobs.tables import fill_tables, opened
from fyrehose.spark.typed.config import TablesConfig, read_config
from fyrehose.spark.typed.summaries import Summary

Opener = Callable[..., Any]
CONFIG = """
journal = "{journal}"
output = "tables"

[tables.requests]
streams = ["web"]

[tables.requests.columns]
ms = "long"

[aggregates.slow]
table = "requests"
window = "1m"
columns = {{ all = "count", slowest = "max(ms)" }}
"""


def config_of(journal: Any) -> TablesConfig:
    path: Path = journal.directory.parent / "tables.toml"
    path.write_text(CONFIG.format(journal=journal.directory))
    return read_config(path)


def summary_of(config: TablesConfig) -> Summary:
    with opened(None, config) as run:
        return run.summaries[0]


def test_summary_counts_again_only_when_its_table_has_another_version(written: Opener) -> None:
    journal = written()
    journal.append(Run.of("web", [b'{"ms": 1}', b'{"ms": 7}'], source="test"))
    config = config_of(journal)
    fill_tables(None, config)
    summary, place = summary_of(config), f"{config.output}/slow"
    assert summary.lake.table is not None
    assert summary.source.table is not None
    assert summary.version == summary.source.table.version()
    before = DeltaTable(place).version()
    summary.update()
    assert DeltaTable(place).version() == before
    summary.source.table.delete("ms = 7")
    summary.update()
    assert [(row["all"], row["slowest"]) for row in DeltaTable(place).to_pyarrow_table().to_pylist()] == [(1, 1)]
    assert summary_of(config).version == summary.version


def test_summary_of_another_definition_is_refused(written: Opener) -> None:
    journal = written()
    config = config_of(journal)
    summary = summary_of(config)
    summary.lake.set_properties({"fyrehose.definition": "another"})
    with pytest.raises(ConfigError, match="was made by another definition; choose another name, or delete its dir"):
        summary.load()
