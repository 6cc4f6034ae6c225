"""Parse the configuration of typed tables; errors name the line of the mistake."""

from __future__ import annotations

import pickle
import re
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from fyrehose.errors import ConfigError
from fyrehose.spark.typed.config import (
    Aggregate,
    Measure,
    TablesConfig,
    TypedColumn,
    parsed_path,
    read_config,
)

WHOLE = """\
journal = "data"
output = "s3://bucket/tables"
lake = "/srv/lake"
subscription = "tables"
gaps = "skip"

[tables.requests]
streams = ["web.*", "proxy"]
time = "ts"
new_fields = "rescue"

[tables.requests.columns]
host = { path = "host.name", type = "string", default = "unknown" }
status = "long"
ts = { type = "timestamp", unit = "ms", default = 2026-01-01 00:00:00 }
first = { path = "$.items[0].id", type = "long" }

[tables.requests.expectations]
known = { check = "100 <= status < 600", action = "drop" }
"named host" = { check = "host != 'unknown'" }
odd = { check = "status != 999", action = "quarantine" }

[tables.requests.deduplicate]
key = ["host", "ts"]
within = "10m"

[tables.rest]
streams = "*"

[aggregates.errors]
table = "requests"
window = "1m"
by = ["host"]
where = "status >= 500"
columns = { errors = "count", highest = "max(status)" }
"""


def read(tmp_path: Path, text: str) -> TablesConfig:
    path = tmp_path / "tables.toml"
    path.write_text(text)
    return read_config(path)


def test_every_key_of_a_file_is_parsed(tmp_path: Path) -> None:
    found = pickle.loads(pickle.dumps(read(tmp_path, WHOLE)))
    assert (found.journal, found.output, found.lake) == (f"{tmp_path}/data", "s3://bucket/tables", "/srv/lake")
    assert (found.subscription, found.skip_gaps) == ("tables", True)
    requests, rest = found.tables
    assert [pattern.text for pattern in requests.streams] == ["web.*", "proxy"]
    assert requests.columns == (
        TypedColumn(name="host", path="host.name", type="string", default="unknown"),
        TypedColumn(name="status", path="status", type="long"),
        TypedColumn(name="ts", path="ts", type="timestamp", unit=1000, default=datetime(2026, 1, 1, tzinfo=UTC)),
        TypedColumn(name="first", path="items", steps=(0, "id"), type="long"),
    )
    assert requests.time == TypedColumn(name="event_time", path="ts", type="timestamp", unit=1000)
    assert [(each.name, each.action) for each in requests.expectations] == [
        ("known", "drop"),
        ("named host", "expect"),
        ("odd", "quarantine"),
    ]
    assert (requests.key, requests.within, requests.quarantines) == (("host", "ts"), 600_000_000, True)
    assert requests.schema.names == [
        *("_stream", "_seq", "_time", "event_time", "host", "status", "ts", "first", "rescued", "date")
    ]
    assert (rest.columns, rest.new_fields, rest.time, rest.quarantines) == ((), "columns", None, False)
    measures = (
        Measure(name="errors", function="count", column=None),
        Measure(name="highest", function="max", column="status"),
    )
    (errors,) = found.aggregates
    assert errors == Aggregate(
        name="errors", table="requests", window=60_000_000, by=("host",), measures=measures, where=errors.where
    )
    assert errors.where is not None
    assert errors.where.text == "status >= 500"


def test_file_with_required_keys_only_gets_defaults(tmp_path: Path) -> None:
    found = read(tmp_path, 'journal = "http://h:1"\noutput = "t"\n[tables.all]\nstreams = "*"\n')
    assert (found.journal, found.output) == ("http://h:1", str(tmp_path / "t"))
    assert (found.lake, found.subscription, found.skip_gaps, found.aggregates) == (None, None, False, ())


@pytest.mark.parametrize(
    ("old", "new", "line", "error"),
    [
        ('journal = "data"', "", None, "journal is missing; expected a directory, or http://HOST:PORT"),
        ('output = "s3', 'ouput = "s3', 2, "unknown key 'ouput'; did you mean output?"),
        ('"skip"', '"skp"', 5, "gaps is 'skp'; expected one of error, skip; did you mean skip?"),
        ('"skip"', "1", 5, "gaps is 1; expected one of error, skip"),
        ("streams = [", "stream = [", 8, "in [tables.requests]: unknown key 'stream'; did you mean streams?"),
        ('streams = ["web.*", "proxy"]', "streams = [1]", 8, "streams is a list; expected a pattern"),
        ('journal = "data"', 'journal = ""', 1, "journal is ''; expected a directory"),
        ('streams = ["web.*", "proxy"]', "", 7, "in [tables.requests]: streams is missing; expected a pattern"),
        ('"rescue"', '"rescued"', 10, "expected one of columns, rescue, ignore, json; did you mean rescue?"),
        ('path = "host', 'pth = "host', 13, "in [tables.requests.columns.host]: unknown key 'pth'; did you mean path?"),
        ('"long"\nts', '"lnog"\nts', 14, "in [tables.requests.columns.status]: type is 'lnog'; expected one of"),
        ('"long"\nts', "5\nts", 14, "in [tables.requests.columns]: status is 5; expected a table"),
        ('"unknown"', "7", 13, "in [tables.requests.columns.host]: default: 7 is no string"),
        ('unit = "ms"', 'unit = "min"', 15, "unit is 'min'; expected one of s, ms, us"),
        ('type = "string", default', 'unit = "s", type = "string", default', 13, "unit is for columns of the ty"),
        ('unit = "ms"', 'format = "%H:%M"', 15, "format is '%H:%M'; expected a format with a day, such as"),
        (
            'type = "string", default',
            'format = "%Y-%m-%d", type = "string", default',
            13,
            "format is for columns of times and dates",
        ),
        ('"$.items[0].id"', '"$"', 16, "the path '$' is that of the whole event, which is a string"),
        ("$.items[0].id", "items[x]", 16, "in [tables.requests.columns.first]: path is 'items[x]'; expected a path"),
        ("\nstatus =", "\nHost =", 14, "the column 'Host' has the name of the column 'host'"),
        ("\nstatus =", "\n_SEQ =", 14, "the column '_SEQ' has the name of the column '_seq'"),
        ("\nstatus =", '\n"a b" =', 14, "'a b' is no name of a column"),
        ("100 <= status", "100 <= sttus", 19, "check: there is no column 'sttus'; did you mean status?"),
        ('"drop"', '"dorp"', 19, "expected one of expect, drop, fail, quarantine; did you mean drop?"),
        (
            "host != 'unknown'",
            "host > 5",
            20,
            "in [tables.requests.expectations.'named host']: check: 'host > 5' cannot",
        ),
        ('"ts"]', '"tz"]', 24, "in [tables.requests.deduplicate]: there is no column 'tz'"),
        ('"10m"', '"10 parsecs"', 25, "within is '10 parsecs'; expected a duration"),
        ('"10m"', '"0s"', 25, "within is '0s'; expected a duration longer than 0"),
        ('table = "requests"', 'table = "reqests"', 31, "table is 'reqests'; did you mean requests?"),
        ('by = ["host"]', 'by = ["hots"]', 33, "in [aggregates.errors]: there is no column 'hots'; did you mean host?"),
        ("max(status)", "max(ttatus)", 35, "there is no column 'ttatus'; did you mean status"),
        ("max(status)", "median(status)", 35, "expected count, or sum, min, max or mean of a column"),
        ("max(status)", "sum(host)", 35, "sum needs a column of numbers, and 'host' is string"),
        ("highest =", "host =", 35, "there are two columns 'host'"),
        ("[aggregates.errors]", "[aggregates.rest]", 30, "there is a table 'rest' already"),
        (
            "[aggregates.errors]",
            "[aggregates.requests_quarantine]",
            30,
            "there is a table 'requests_quarantine' already",
        ),
        ("[tables.rest]", '[tables."a/b"]', 27, "'a/b' is no name of a table"),
        ('within = "10m"', "within", 25, "not TOML"),
    ],
)
def test_error_says_where_the_mistake_is(tmp_path: Path, old: str, new: str, line: int | None, error: str) -> None:
    assert WHOLE.count(old) == 1
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, WHOLE.replace(old, new))
    said = str(raised.value)
    assert error in said
    assert "\n" not in said
    assert f"{tmp_path}/tables.toml" in said
    if line is None:
        assert "line" not in said
    else:
        assert re.search(rf"line {line}\b", said), said


def test_file_without_tables_or_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no table"):
        read(tmp_path, 'journal = "data"\noutput = "t"\n')
    with pytest.raises(ConfigError, match="tables is 5; expected a table"):
        read(tmp_path, "tables = 5\n")
    with pytest.raises(ConfigError, match="No such file"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not TOML"):
        read_config(tmp_path / "bytes.toml")


def test_paths_are_parsed() -> None:
    assert parsed_path("host.name") == ("host.name", ())
    assert parsed_path("@timestamp") == ("@timestamp", ())
    assert parsed_path("a.b[10][2].c.d") == ("a.b", (10, 2, "c", "d"))
    for wrong in ("", "[0]", "a[", "a[-1]", "a[b]"):
        with pytest.raises(ValueError, match="is not a path"):
            parsed_path(wrong)


def test_types_are_those_of_the_documentation() -> None:
    from fyrehose.spark.typed.config import TYPES

    assert list(TYPES) == ["string", "long", "double", "boolean", "timestamp", "date"]
    assert TYPES["long"] == pa.int64()


def test_example_of_the_documentation_is_valid_and_a_mistake_in_it_is_found(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    (example,) = re.findall(r"```toml\n(journal = .*?)```", page, re.DOTALL)
    assert [table.name for table in read(tmp_path, example).tables] == ["requests"]
    said = r"line 11, in \[tables\.requests\.columns\.host\]: unknown key 'pth'; did you mean path\?$"
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, example.replace("host = { path", "host = { pth"))
