"""Statistics of files, as other programs may have shortened them."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import Schema
from deltalake.transaction import AddAction
from pyarrow import parquet

from fyrehose.errors import JournalError
from fyrehose.spark.footers import CUT, bounds, check_files
from fyrehose.spark.selection import time_of
from fyrehose.spark.stores import LakeStore

TIMES = pa.timestamp("us", "UTC")


def test_upper_bound_of_a_whole_millisecond_may_have_been_cut() -> None:
    stated = pa.array([123_000, 123_456, 0, None], pa.int64())
    files = pa.table({"min.time": stated.cast(TIMES), "max.time": stated.cast(TIMES), "max.seq": stated})
    least, most = bounds(files, "time")
    assert least is not None
    assert most is not None
    assert least.cast(pa.int64()).to_pylist() == stated.to_pylist()
    assert most.cast(pa.int64()).to_pylist() == [123_000 + CUT, 123_456, CUT, None]
    assert bounds(files, "seq")[1] == pa.chunked_array([stated])
    assert bounds(files, "other") == (None, None)


def test_file_is_refused_if_its_statistics_would_make_readers_skip_a_row(tmp_path: Path) -> None:
    """Every value is compared with the bounds by which readers choose files; times are in microseconds."""
    dice, happened, store = Random(2), Counter[bool](), LakeStore.at(tmp_path)
    schema = pa.schema([("seq", pa.int64()), ("time", TIMES)])
    for _ in range(30):
        whole = 1_700_000_000_000_000
        values = {
            name: sorted(whole + dice.choice((0, 1, 500, 999, 1_000, 7_777)) for _ in range(3)) for name in schema.names
        }
        columns = [pa.array(values[name], pa.int64()).cast(schema.field(name).type) for name in schema.names]
        parquet.write_table(pa.table(columns, schema=schema), tmp_path / "file.parquet", row_group_size=2)
        for _ in range(20):
            least, most = (
                {
                    name: value[end] + dice.choice((0, 0, 0, 0, 0, -1, 1, -value[end] % -1_000))
                    for name, value in values.items()
                }
                for end in (0, -1)
            )
            rows = dice.choice((3, 3, 3, 3, 3, 3, 2, 4))
            stats = {"numRecords": rows, "minValues": shown(least), "maxValues": shown(most)}
            action = AddAction("file.parquet", 1, {}, 0, True, json.dumps(stats))
            cut = CUT if most["time"] % 1_000 == 0 else 0
            skipped = [name for name in schema.names if least[name] > values[name][0]]
            skipped += [name for name in schema.names if most[name] + cut * (name == "time") < values[name][-1]]
            happened[wrong := bool(skipped) or rows != 3] += 1
            with pytest.raises(JournalError, match="was not committed") if wrong else nullcontext():
                check_files(store, [action], Schema.from_arrow(schema))
                assert not wrong, f"{stats} of {values} are accepted, though readers skip by {skipped}"
    assert min(happened.values()) > 50


def shown(values: dict[str, int]) -> dict[str, int | str]:
    """Return values as statistics of the log have them."""
    return {"seq": values["seq"], "time": f"{time_of(values['time']):%Y-%m-%dT%H:%M:%S.%f}Z"}
