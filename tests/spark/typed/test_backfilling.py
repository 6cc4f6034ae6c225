"""What a backfill reads and replaces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from fyrehose.errors import ConfigError, JournalUnreachable
from fyrehose.records import Run
from fyrehose.spark.engines import locally
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.tables import fill_tables, opened
from fyrehose.spark.typed.backfilling import check_rows, sources_of, without
from fyrehose.spark.typed.config import TablesConfig, read_config
from fyrehose.spark.typed.writing import JournalPart, LakePart

Opener = Callable[..., Any]
#: The time of the first batch of a journal that a test writes; each batch is a second later.
FIRST = 1_700_000_001_000_000
SECOND = 1_000_000
CONFIG = """
journal = "{journal}"
output = "tables"

[tables.requests]
streams = ["web"]

[tables.requests.columns]
ms = "long"
"""


def config_of(journal: Any) -> TablesConfig:
    path: Path = journal.directory.parent / "tables.toml"
    path.write_text(CONFIG.format(journal=journal.directory))
    return read_config(path)


def test_backfill_reads_the_lake_up_to_its_end_and_then_the_journal(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    config = config_of(journal)
    journal.append(Run.of("web", [b'{"ms": 1}'], source="test"))
    archive(None, str(journal.directory), lake)
    journal.append(Run.of("web", [b'{"ms": 2}'], source="test"))
    view = journal.place.view()
    more = (journal.place, view.identity, config.tables[0], FIRST, FIRST + 60 * SECOND)
    sources, oldest = sources_of(config, *more, view.mark)
    assert ([type(source) for source in sources], oldest) == ([JournalPart], FIRST)
    with_lake = attrs.evolve(config, lake=str(lake))
    sources, oldest = sources_of(with_lake, *more, view.mark)
    assert ([type(source) for source in sources], oldest) == ([LakePart, JournalPart], FIRST)
    rows = [value for each in sources for batch in each.batches() for value in batch["payload"].to_pylist()]
    assert rows == [b'{"ms": 1}', b'{"ms": 2}']
    with pytest.raises(JournalUnreachable, match="fill the tables before the backfill"):
        sources_of(with_lake, *more, view.start)
    other = written("other")
    other.append(Run.of("web", [b"x"], source="test"))
    with pytest.raises(ConfigError, match="has nothing of the journal"):
        sources_of(with_lake, journal.place, other.place.view().identity, *more[2:], view.mark)


def test_only_files_with_rows_of_the_range_are_replaced(written: Opener) -> None:
    journal = written()
    config = config_of(journal)
    for number in range(3):
        journal.append(Run.of("web", [b'{"ms": %d}' % number], source="test"))
    fill_tables(None, config)
    with opened(None, config) as run:
        lake = run.outputs[0].lake
        (file,) = lake.files()
        rest, removed = without(lake, locally, FIRST + SECOND, FIRST + 2 * SECOND)
        assert (len(rest), removed) == (1, [file])
        assert without(lake, locally, FIRST + 60 * SECOND, FIRST + 61 * SECOND) == ([], [])
        assert without(lake, locally, FIRST, FIRST + 60 * SECOND) == ([], [file])
        check_rows([lake], FIRST - SECOND, FIRST)
        with pytest.raises(JournalUnreachable, match="nor the lake has these any more: begin there"):
            check_rows([lake], FIRST, FIRST + 1)
