"""Publish records of a table again to a running server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fyrehose.records import Run
from fyrehose.spark.jobs.replay import replay
from fyrehose.spark.tables import table

Opener = Callable[..., Any]


@pytest.mark.slow
@pytest.mark.live
def test_selected_records_are_published_in_their_order(spark: Any, server: tuple[str, Path], written: Opener) -> None:
    to, target = server
    journal = written()
    journal.fill(60, size=20)
    journal.append(Run.of(".relink/1", [b"the server's own"], source="relink"))
    records = table(spark, None, str(journal.directory))
    assert replay(records.where("stream = 's1' and seq > 5"), to, "again") == len(
        journal.rows(lambda r: r.stream == "s1" and r.seq > 5)
    )
    assert replay(records.where("seq <= 3"), to) == 9
    found = spark.read.format("fyrehose").load(str(target)).sort("stream", "seq").collect()
    again = [bytes(row.payload) for row in found if row.stream == "again"]
    assert again == [payload for _, _, payload in journal.rows(lambda r: r.stream == "s1" and r.seq > 5)]
    own = [(row.stream, row.seq, bytes(row.payload)) for row in found if row.stream != "again"]
    assert own == journal.rows(lambda r: r.seq <= 3 and r.stream != ".relink/1")
