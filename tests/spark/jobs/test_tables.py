"""Typed tables: each event once, in the columns that the configuration declares, whatever is interrupted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import attrs
import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from fyrehose.errors import ConfigError, ExpectationFailed, JournalCorrupt, JournalLocked, JournalUnreachable
from fyrehose.protocols.lumberjack.columns import LAST_PART
from fyrehose.protocols.lumberjack.columns import PART as PART_OF_EVENT
from fyrehose.records import MAX_PAYLOAD, Record, Run
from fyrehose.spark.jobs import tables as job
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.optimize import delete, optimize
from fyrehose.spark.jobs.tables import TableState, fill_tables, opened
from fyrehose.spark.lake import Lake
from fyrehose.spark.typed import extraction, writing
from fyrehose.spark.typed.config import TablesConfig, read_config
from fyrehose.spark.typed.writing import PART
from tests.doubles.commits import fault
from tests.doubles.deltavectors import delete_rows

Opener = Callable[..., Any]
#: The time of the first batch of a journal that a test writes; each batch is a second later.
NOON = datetime.fromtimestamp(1_700_000_001, UTC)


def event(seconds: float = 0, **fields: Any) -> bytes:
    at = (NOON + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"@timestamp": at} | fields).encode()


def request(seconds: float, status: Any, **fields: Any) -> bytes:
    return event(seconds, **{"host": {"name": "a"}, "status": status} | fields)


def beats(*events: bytes, stream: str = "web") -> Run:
    return Run.of(stream, list(events), source="lumberjack", producer="10.0.0.1:1", producer_seq=1)


TABLE = """
[tables.requests]
streams = ["web", "web.*"]
time = "@timestamp"
{more}
[tables.requests.columns]
host = {{ path = "host.name", type = "string", default = "unknown" }}
status = "long"
{columns}
"""


def config_of(journal: Any, text: str = "", more: str = "", columns: str = "", head: str = "") -> TablesConfig:
    folder = journal.directory.parent
    path = folder / "tables.toml"
    whole = f'journal = "{journal.directory}"\noutput = "tables"\n{head}\n'
    path.write_text(whole + TABLE.format(more=more, columns=columns) + text)
    return read_config(path)


def rows(config: TablesConfig, name: str = "requests") -> list[dict[str, Any]]:
    """Return the rows of a table, read by DuckDB, in their order."""
    found = DeltaTable(f"{config.output}/{name}")
    order = "_stream, _seq" if "_seq" in {field.name for field in found.schema().fields} else "all"
    data = duckdb.from_arrow(found.to_pyarrow_dataset()).order(order)
    return [dict(zip(data.columns, row, strict=True)) for row in data.fetchall()]


def column(config: TablesConfig, name: str, table: str = "requests") -> list[Any]:
    return [row[name] for row in rows(config, table)]


def run(config: TablesConfig, **more: Any) -> dict[str, TableState]:
    return {state.name: state for state in fill_tables(None, config, **more)}


def run_with(config: TablesConfig, spark: Any = None, **attributes: Any) -> dict[str, TableState]:
    """Fill the tables once, by a run with *attributes*, see :class:`.TablesRun`."""
    with opened(spark, config, **attributes) as it:
        it.run(False, 10.0, lambda done, view: None, lambda: False)
        return {state.name: state for state in it.states()}


EXPECTATIONS = """
[tables.requests.expectations]
known = { check = "100 <= status < 600", action = "drop" }
odd = { check = "status != 999", action = "quarantine" }
named = { check = "host != 'unknown'" }
"""
AGGREGATES = """
[aggregates.minutes]
table = "requests"
window = "1m"
by = ["status"]
columns = { requests = "count", hosts = "count", slowest = "max(ms)", total = "sum(ms)", middle = "mean(ms)" }

[aggregates.errors]
table = "requests"
window = "1h"
where = "status >= 500"
columns = { errors = "count", first = "min(host)" }
"""


def expected_minutes(config: TablesConfig) -> list[tuple[Any, ...]]:
    data = duckdb.from_arrow(DeltaTable(f"{config.output}/requests").to_pyarrow_dataset())
    found = data.query(
        "data",
        "select date_trunc('minute', event_time) as w, status, count(*), count(*), max(ms), sum(ms), avg(ms), "
        "cast(date_trunc('minute', event_time) at time zone 'UTC' as date) "
        "from data group by all order by all",
    )
    assert found is not None
    return list(found.fetchall())


def minutes(config: TablesConfig) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows(config, "minutes")]


class Model:
    """The tables ``requests`` and ``all`` as their configuration describes them, in plain Python."""

    WITHIN = timedelta(seconds=5)
    CONFIG = EXPECTATIONS + AGGREGATES + '[tables.all]\nstreams = "*"\n'
    CONFIG += f'[tables.requests.deduplicate]\nkey = ["host", "id", "event_time"]\nwithin = "{WITHIN.seconds}s"\n'

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.quarantine: list[tuple[Any, ...]] = []
        self.counts: Counter[str] = Counter()

    def fill(self, records: Sequence[Record], sized: bool) -> None:
        """Take new records; *sized*: whether the column ``size`` is declared."""
        for record in records:
            if not record.stream.startswith("web"):
                continue
            row = self.row(record, sized)
            failed = self.failed(row)
            self.counts.update(f"failed/{name}" for name in failed)
            if "odd" in failed:
                self.counts["quarantined"] += 1
                self.quarantine.append((record.stream, record.seq, "odd", record.payload))
            elif "known" in failed:
                self.counts["dropped"] += 1
            elif row["id"] is not None and any(
                all(row[name] == each[name] for name in ("host", "id", "event_time"))
                and each["_time"] >= row["_time"] - self.WITHIN
                for each in self.rows
            ):
                self.counts["duplicates"] += 1
            else:
                self.rows.append(row)
                self.counts["rows"] += 1
                self.counts["rescued"] += row["rescued"] is not None

    def row(self, record: Record, sized: bool) -> dict[str, Any]:
        """Return the row of a record, before it is judged."""
        accepted = datetime.fromtimestamp(record.time / 1_000_000, UTC)
        fields = json.loads(record.payload) if record.payload.startswith(b"{") else {}
        at = datetime.fromisoformat(fields["@timestamp"]) if fields else accepted
        own = {name: fields.get(name) for name in ("status", "id", "ms")}
        misfits = [name for name, value in own.items() if type(value) not in (int, type(None))]
        return {
            "_stream": record.stream,
            "_seq": record.seq,
            "_time": accepted,
            "event_time": at,
            "host": fields.get("host", {}).get("name", "unknown"),
            **{name: None if name in misfits else value for name, value in own.items()},
            "rescued": record.payload if misfits or not fields else None,
            "date": accepted.date(),
            "size": fields.get("size") if sized else None,
        }

    @staticmethod
    def failed(row: dict[str, Any]) -> list[str]:
        """Return the expectations that a row does not meet; null meets none."""
        status = row["status"]
        met = {
            "known": status is not None and 100 <= status < 600,
            "odd": status not in (None, 999),
            "named": row["host"] != "unknown",
        }
        return [name for name, does in met.items() if not does]

    def backfill(self, records: Sequence[Record], start: datetime, end: datetime) -> int:
        """Extract the column ``size`` of rows that were accepted in a range; return their number."""
        sizes = {(each.stream, each.seq): self.row(each, True)["size"] for each in records}
        chosen = [row for row in self.rows if start <= row["_time"] < end]
        for row in chosen:
            row["size"] = sizes[row["_stream"], row["_seq"]]
        return len(chosen)


def random_event(dice: Random, stream: str) -> bytes:
    """Return an event of a client that sends some of them again, some late, and some that are none."""
    if dice.random() < 0.1:
        return b"no JSON"
    fields: dict[str, Any] = {"ms": dice.choice((1, 2, 3, 2.5)), "size": dice.randrange(99)}
    if dice.random() < 0.9:
        fields |= {"status": dice.choice((200, 200, 200, 500, 700, 999, "odd"))}
    if dice.random() < 0.9:
        fields |= {"id": dice.randrange(2) + 100 * len(stream), "host": {"name": dice.choice("ab")}}
    return event(dice.choice((0, 0, 0, 0, 0, 40, -7200)), **fields)


def test_tables_equal_a_model_whatever_interrupts_their_runs(written: Opener) -> None:
    """Rounds of any size are killed before and after commits, files are merged, and ranges are filled again."""
    journal, dice, model, taken, happened = written(), Random(8), Model(), 0, Counter[str]()
    head, more = 'subscription = "tables"\n', 'new_fields = "ignore"'
    config = config_of(journal, Model.CONFIG, columns='id = "long"\nms = "long"', more=more, head=head)
    for turn in range(24):
        if turn == 10:
            columns = 'id = "long"\nms = "long"\nsize = "long"'
            config = config_of(journal, Model.CONFIG, columns=columns, more=more, head=head)
        for _ in range(dice.randint(0, 3)):
            streams = dice.sample(("web", "web.two", "other"), dice.randint(1, 3))
            journal.append(
                *(beats(*(random_event(dice, s) for _ in range(dice.randint(1, 3))), stream=s) for s in streams)
            )
        limits = {"round_bytes": dice.choice((1, 700, 1 << 30)), "part": dice.choice((500, PART))}
        if dice.random() < 0.5:
            try:
                with fault(dice.randint(1, 9), dice.random() < 0.5, KeyboardInterrupt()):
                    run_with(config, **limits)
            except KeyboardInterrupt:
                happened["killed"] += 1
        with opened(None, config, merge_from=2, **limits) as it:
            it.run(False, 10.0, lambda done, view: None, lambda: False)
            model.fill(journal.records[taken:], turn >= 10)
            taken = len(journal.records)
            if dice.random() < 0.2:
                it.optimize()
                files = {str(lake): lake.totals()[0] for lake in it.lakes()}
                assert max(files.values()) == 1, f"{files} were not merged"
                happened["merged"] += 1
            if turn >= 10 and dice.random() < 0.4:
                start, end = (NOON + timedelta(seconds=dice.randint(-1, 40)) for _ in range(2))
                filled = it.backfill("requests", start, max(start, end))
                assert filled.rows == model.backfill(journal.records, start, max(start, end))
                happened["backfilled"] += filled.rows > 0
        expected = sorted(model.rows, key=lambda row: (row["_stream"], row["_seq"]))
        if turn < 10:
            expected = [{name: value for name, value in row.items() if name != "size"} for row in expected]
        assert rows(config) == expected, f"other rows in turn {turn}"
        counts = {state.name: state.counts for state in it.states()}
        assert counts["requests"] == +model.counts
        (found,) = journal.place.subscriptions()
        assert (found.name, found.position) == ("tables", journal.place.view().mark)
        names = ("_stream", "_seq", "expectations", "rescued")
        assert [tuple(row[name] for name in names) for row in rows(config, "requests_quarantine")] == sorted(
            model.quarantine
        )
        everything = sorted((row["_stream"], row["_seq"]) for row in rows(config, "all"))
        assert everything == sorted((record.stream, record.seq) for record in journal.records)
        assert minutes(config) == expected_minutes(config)
        errors = rows(config, "errors")
        assert sum(row["errors"] for row in errors) == sum((row["status"] or 0) >= 500 for row in model.rows)
    versions = {name: DeltaTable(f"{config.output}/{name}").version() for name in counts}
    assert {name: state.rows for name, state in run(config).items()} == dict.fromkeys(versions, 0), "nothing is new"
    assert versions == {name: DeltaTable(f"{config.output}/{name}").version() for name in counts}, "nothing changes"
    happened.update(+model.counts)
    assert not {"killed", "merged", "backfilled", "duplicates", "rescued", "dropped", "quarantined"} - happened.keys()


def test_streams_without_rows_leave_their_tables_alone_until_the_end(written: Opener) -> None:
    journal = written()
    config = config_of(journal, '[tables.rest]\nstreams = "none"\n')
    for number in range(5):
        journal.append(beats(request(number, 200)))
    run(config, round_bytes=1)
    assert rows(config, "rest") == []
    identity = Lake.at(f"{config.output}/requests").servers()
    assert len(identity) == 1
    positions = {
        name: DeltaTable(f"{config.output}/{name}").transaction_version(next(iter(identity)))
        for name in ("requests", "rest")
    }
    assert len(set(positions.values())) == 1
    assert DeltaTable(f"{config.output}/rest").version() == 2  # created, named, and the position at the end


def test_new_field_becomes_a_column_of_a_later_round(written: Opener) -> None:
    journal = written()
    journal.append(beats(request(0, 200)))
    config = config_of(journal)
    run(config)
    journal.append(beats(request(1, 201, user={"id": 7}, tags=["x"])))
    run(config)
    assert column(config, "user.id") == [None, 7]
    assert column(config, "tags") == [None, '["x"]']


LARGE = (1 << 53) + 1


@pytest.mark.parametrize(
    ("first", "then", "limit", "expected"),
    [
        ([1, 2], [2.5, "slow"], {}, [1.0, 2.0, 2.5, None]),
        ([LARGE], [2.5, 3], {}, [LARGE, None, 3]),  # the wider type would lose digits
        ([1], [2.5, 3], {"widen_below": 1}, [1, None, 3]),  # the table is too large
    ],
)
def test_type_of_an_inferred_column_is_widened_unless_that_loses_digits_or_takes_long(
    written: Opener, first: list[Any], then: list[Any], limit: dict[str, Any], expected: list[Any]
) -> None:
    journal = written()
    config = config_of(journal)
    events = [request(number, 200, ms=ms) for number, ms in enumerate(first + then)]
    for some in (events[: len(first)], events[len(first) :]):
        journal.append(beats(*some))
        done = run_with(config, **limit)
    assert done["requests"].counts == {"rows": len(events), "rescued": 1}
    assert [(row["ms"], row["rescued"], row["status"]) for row in rows(config)] == [
        (value, event if value is None else None, 200) for value, event in zip(expected, events, strict=True)
    ]
    kind = _type(DeltaTable(f"{config.output}/requests"), "ms")
    assert kind == ("double" if type(expected[0]) is float else "long")
    assert run(config)["requests"].rows == 0


def test_tasks_of_a_round_agree_on_types(written: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = written()
    for number, value in enumerate([1, 2.5, "text", "text", 3, "more"]):
        journal.append(beats(request(number, 200, a=value, **({"B": 1} if number == 4 else {"b": 1}), pad="x" * 2000)))
    config = config_of(journal)
    parts = []

    def counted(task: writing.FillTask) -> list[writing.Filled]:
        parts.append(task)
        return writing.fill(task)

    monkeypatch.setattr(job, "fill", counted)
    run_with(config, part=1000)
    assert len(parts) > 6, "some tasks ran again"
    assert column(config, "a") in ([1.0, 2.5, None, None, 3.0, None], ["1", "2.5", "text", "text", "3", "more"])
    assert column(config, "b") == [1, 1, 1, 1, None, 1]
    assert [rescued is None for rescued in column(config, "rescued")][4] is False


def test_number_of_columns_is_limited(written: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (job, extraction):
        monkeypatch.setattr(module, "MOST", 3)
    journal = written()
    for number in range(6):
        journal.append(beats(request(number, 200, pad="x" * 2000, **{f"f{number}": number})))
    config = config_of(journal)
    run_with(config, part=1000)
    found = rows(config)
    own = set(found[0]) - {"_stream", "_seq", "_time", "event_time", "host", "status", "rescued", "date"}
    assert own == {"pad", "f0", "f1"}
    assert [row["rescued"] is None for row in found] == [True, True, False, False, False, False]


def test_expectation_that_must_be_met_stops_the_run_before_its_round(written: Opener) -> None:
    journal = written()
    config = config_of(journal, '[tables.requests.expectations]\nok = { check = "status < 600", action = "fail" }\n')
    journal.append(beats(request(0, 200)))
    run(config)
    journal.append(beats(request(1, 201), request(2, 700)))
    with pytest.raises(
        ExpectationFailed, match=r"record 3 of the stream 'web' .*'ok' of the table 'requests': status < 600"
    ):
        run(config)
    assert column(config, "_seq") == [1]


def test_aggregate_of_another_definition_is_refused(written: Opener) -> None:
    journal = written()
    journal.append(beats(request(0, 200)))
    run(config_of(journal, AGGREGATES, columns='ms = "long"'))
    with pytest.raises(ConfigError, match="minutes was made by another definition"):
        run(config_of(journal, AGGREGATES.replace('"1m"', '"2m"'), columns='ms = "long"'))


def test_run_with_follow_retries_after_failures_and_stores_each_event_once(
    written: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = written()
    text = '[tables.requests.deduplicate]\nkey = "id"\nwithin = "1h"\n'
    config = config_of(journal, text, columns='id = "long"')
    journal.append(beats(*(event(0, id=number) for number in range(5))))
    commit, failures, rounds = Lake.commit, [0], []

    def unsure(self: Lake, *words: Any, **more: Any) -> None:
        failures[0] += 1
        if failures[0] == 1:
            raise JournalUnreachable("the store is away")
        commit(self, *words, **more)
        if failures[0] == 2:
            raise JournalUnreachable("the answer was lost")

    monkeypatch.setattr(Lake, "commit", unsure)

    def stop() -> bool:
        rounds.append(1)
        return failures[0] > 2 and len(rounds) > 8

    run(config, follow=True, every=0.01, stop=lambda: len(rounds) > 8 or stop())
    assert column(config, "id") == list(range(5))


def test_table_of_another_journal_or_with_another_type_is_refused(written: Opener) -> None:
    journal, other = written(), written("other")
    journal.append(beats(request(0, 200)))
    other.append(beats(request(0, 200)))
    config = config_of(journal)
    run(config)
    with pytest.raises(ConfigError, match="has the events of another journal"):
        run(config_of(other))
    changed = config_of(journal, columns='size = "double"')
    run(changed)
    with pytest.raises(
        ConfigError, match=r"the column 'size' of the table .* is double, and long in the configuration"
    ):
        run(config_of(journal, columns='size = "long"'))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("double", [7.0, None, -3.0, 2.5]),
        ("decimal(10,2)", [Decimal(7), None, Decimal(-3), Decimal("2.5")]),
        ("string", ["7", None, "-3", "2.5"]),
    ],
)
def test_column_is_widened_by_declaration_in_one_commit(written: Opener, kind: str, expected: list[Any]) -> None:
    journal = written()
    journal.append(beats(request(0, 200, ms=7), request(1, 200), request(2, 200, ms=-3)))
    aggregates = '[aggregates.slowest]\ntable = "requests"\nwindow = "1m"\ncolumns = { most = "max(ms)" }'
    config = config_of(journal, aggregates, columns='ms = "long"')
    run(config)
    version = DeltaTable(f"{config.output}/requests").version()
    config = config_of(journal, aggregates, columns=f'ms = "{kind}"')
    run(config)
    table = DeltaTable(f"{config.output}/requests")
    assert (table.version(), _type(table, "ms")) == (version + 1, kind)
    assert _type(DeltaTable(f"{config.output}/slowest"), "most") == kind
    assert column(config, "most", "slowest") == [max(each for each in expected[:3] if each is not None)]
    journal.append(beats(request(3, 200, ms=2.5)))
    assert run(config)["requests"].counts == {"rows": 4}
    assert column(config, "ms") == expected
    assert column(config, "status") == [200] * 4


def _type(table: DeltaTable, name: str) -> str:
    return str(next(field.type.type for field in table.schema().fields if field.name == name))


def test_declared_type_that_has_no_room_for_a_value_is_refused(written: Opener) -> None:
    journal = written()
    large = (1 << 53) + 1
    journal.append(beats(request(0, 200, ms=large)))
    config = config_of(journal)
    run(config)
    version = DeltaTable(f"{config.output}/requests").version()
    for kind in ("double", "decimal(17,2)"):
        with pytest.raises(ConfigError, match=r"the columns ms of the table .* have values that do not fit"):
            run(config_of(journal, columns=f'ms = "{kind}"'))
    assert DeltaTable(f"{config.output}/requests").version() == version
    run(config_of(journal, columns='ms = "decimal(18,2)"'))
    assert column(config, "ms") == [large]


def test_rows_of_a_deletion_vector_stay_deleted_if_a_column_is_widened(written: Opener) -> None:
    journal = written()
    journal.append(beats(request(0, 200, ms=1), request(1, 200, ms=2)))
    config = config_of(journal)
    run(config)
    table = Path(config.output) / "requests"
    delete_rows(table, Lake.at(table).files()[0].path, [0])
    run(config_of(journal, columns='ms = "string"'))
    assert polars.scan_delta(str(table)).select("ms").collect().to_series().to_list() == ["2"]


def test_second_run_is_refused(written: Opener) -> None:
    journal = written()
    journal.append(beats(request(0, 200)))
    config = config_of(journal)
    with opened(None, config), pytest.raises(JournalLocked):
        run(config)


def test_parts_of_a_large_event_are_rows_whose_payload_is_rescued(written: Opener, tmp_path: Path) -> None:
    journal = written()
    config = config_of(journal)
    whole = request(0, 200).removesuffix(b"}") + b', "pad": "' + bytes(b"x" * MAX_PAYLOAD) + b'"}'
    labels: dict[str, Any] = {"source": "lumberjack", "producer": "a:1", "producer_seq": 3}
    for payload, kind in ((whole[:MAX_PAYLOAD], PART_OF_EVENT), (whole[MAX_PAYLOAD:], LAST_PART)):
        journal.append(Run.of("web", [payload], content_type=kind, **labels))
    assert run(config)["requests"].counts == {"rows": 2, "rescued": 2}
    assert [row["_seq"] for row in rows(config)] == [1, 2]
    assert b"".join(row["rescued"] for row in rows(config)) == whole


def backfilled(config: TablesConfig, start: datetime, end: datetime, table: str = "requests") -> TableState:
    with opened(None, config) as it:
        return it.backfill(table, start, end)


def test_backfill_replaces_the_rows_of_its_range_only(written: Opener) -> None:
    journal = written()
    for number in range(6):
        journal.append(beats(request(number, 200, size=number), request(number, 700, size=number)))
    run(config_of(journal, AGGREGATES.replace("ms", "status"), more='new_fields = "ignore"'))
    config = config_of(
        journal,
        EXPECTATIONS + AGGREGATES.replace("ms", "status"),
        columns='size = "long"',
        more='new_fields = "ignore"',
    )
    run(config)
    assert column(config, "size") == [None] * 12
    done = backfilled(config, NOON + timedelta(seconds=1), NOON + timedelta(seconds=3))
    assert done.rows == 2
    assert column(config, "size") == [None, None, 1, 2, *[None] * 6]
    assert column(config, "_seq") == [1, 2, 3, 5, *range(7, 13)]
    assert sum(row["requests"] for row in rows(config, "minutes")) == 10
    backfilled(config, NOON - timedelta(days=1), NOON + timedelta(days=1))
    assert column(config, "size") == list(range(6))
    assert sum(row["requests"] for row in rows(config, "minutes")) == 6
    journal.append(beats(request(9, 200, size=9)))
    run(config)
    assert column(config, "size") == [*range(6), 9]
    with pytest.raises(ConfigError, match="there is no table 'request'"):
        backfilled(config, NOON, NOON, "request")


@pytest.mark.parametrize(
    ("took", "kind"), [([3, 1.5], "double"), (["fast", "slow"], "string"), ([True, None], "boolean")]
)
def test_backfill_gives_a_table_columns_and_types_as_a_run_does(written: Opener, took: list[Any], kind: str) -> None:
    journal = written()
    journal.append(beats(request(0, 200, took=took[0])), beats(request(0, 200, took=took[1]), stream="old"))
    config_of(journal)
    text = (journal.directory.parent / "tables.toml").read_text()
    path = journal.directory.parent / "narrow.toml"
    path.write_text(text.replace('"web.*"', '"none"'))
    run(read_config(path))
    path.write_text(text.replace('"web.*"', '"old"'))
    config = read_config(path)
    backfilled(config, NOON, NOON + timedelta(hours=1))
    assert _type(DeltaTable(f"{config.output}/requests"), "took") == kind
    assert column(config, "took") == [took[1], took[0]]
    journal.append(beats(request(1, 200, took=took[0])))
    assert run(config)["requests"].rows == 1


def test_backfill_reads_deleted_records_of_the_journal_from_the_lake(written: Opener, tmp_path: Path) -> None:
    journal = written(segment_size=4096)
    config = config_of(journal, head='lake = "lake"\n')
    for number in range(40):
        journal.append(beats(request(number, 200, size=number, pad="x" * 500)))
        if number == 30:
            archive(None, str(journal.directory), tmp_path / "lake")
    run(config)
    before = rows(config)
    for segment in journal.segments[:2]:
        segment.path.unlink()
    without = config_of(journal)
    with pytest.raises(JournalUnreachable, match="the lake has these any more"):
        backfilled(without, NOON, NOON + timedelta(days=1))
    assert rows(config) == before
    state = backfilled(config_of(journal, head='lake = "lake"\n'), NOON, NOON + timedelta(days=1))
    assert state.rows == 40
    assert rows(config) == before


def test_records_deleted_before_a_round_are_an_error_or_skipped_by_option(written: Opener) -> None:
    journal = written(segment_size=4096)
    for number in range(40):
        journal.append(beats(request(number, number, pad="x" * 500)))
        if number == 2:
            run(config_of(journal))
    for segment in journal.segments[:3]:
        segment.path.unlink()
    with pytest.raises(JournalCorrupt):
        run(config_of(journal))
    config = config_of(journal, head='gaps = "skip"\n')
    run(config)
    found = column(config, "_seq")
    assert found[:3] == [1, 2, 3]
    assert found[3] > 4
    assert found[3:] == list(range(found[3], 41))


def test_deleted_rows_leave_the_aggregates_and_optimize_refuses_typed_tables(written: Opener) -> None:
    journal = written()
    config = config_of(journal, AGGREGATES, columns='ms = "long"')
    journal.append(beats(request(0, 200, ms=1), request(1, 404, ms=2), request(70, 200, ms=3)))
    run(config)
    assert delete(f"{config.output}/requests", "status = 404") == 1
    with pytest.raises(ConfigError, match="is no archive of a journal"):
        optimize(f"{config.output}/requests")
    run(config)
    assert column(config, "status") == [200, 200]
    assert [tuple(row.values()) for row in rows(config, "minutes")] == expected_minutes(config)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tasks_of_spark_give_the_same_tables(spark: Any, written: Opener) -> None:
    journal = written()
    for number in range(20):
        journal.append(beats(*(request(number, (200, 999, 700)[each], ms=number, pad="x" * 300) for each in range(3))))
    text = EXPECTATIONS + AGGREGATES + '[tables.requests.deduplicate]\nkey = ["ms", "status"]\nwithin = "1h"\n'
    config = config_of(journal, text, columns='ms = "long"')
    states = run_with(config, spark, round_bytes=20_000, part=3000)
    assert states["requests"].counts["rows"] == 20
    found = {name: rows(config, name) for name in ("requests", "requests_quarantine", "minutes", "errors")}
    local = attrs.evolve(config, output=f"{config.output}2")
    run(local)
    assert found == {name: rows(local, name) for name in found}
    bad = config_of(journal, '[tables.requests.expectations]\nok = { check = "status < 600", action = "fail" }\n')
    with pytest.raises(ExpectationFailed, match=r"record \d+ of the stream 'web'"):
        fill_tables(spark, attrs.evolve(bad, output=f"{config.output}3"))


def test_tables_can_be_filled_in_an_object_store(written: Opener, bucket: str) -> None:
    journal = written()
    config = attrs.evolve(
        config_of(journal, EXPECTATIONS + AGGREGATES, columns='ms = "long"'), output=f"{bucket}/tables"
    )
    journal.append(beats(request(0, 200, ms=1), request(0, 999)))
    run(config)
    journal.append(beats(request(0, 200, ms=2)))
    run(config)
    options = {"aws_conditional_put": "etag"}
    found = {
        name: DeltaTable(f"{config.output}/{name}", storage_options=options).to_pyarrow_table().num_rows
        for name in ("requests", "requests_quarantine", "minutes")
    }
    assert found == {"requests": 2, "requests_quarantine": 1, "minutes": 1}


KNOWN = """
[tables.requests.expectations]
known = { check = "status < 600", action = "quarantine" }
named = { check = "host != 'unknown'" }
"""


def test_each_round_says_how_its_rows_met_the_expectations(written: Opener) -> None:
    journal = written()
    journal.append(beats(request(0, 200), request(1, 999), event(2, status=201)))
    config = config_of(journal, KNOWN)
    run(config)
    journal.append(beats(request(3, 202)), beats(b"of another table", stream="other"))
    run(config)
    run(config)
    found = [{**row, "time": None, "date": None} for row in rows(config, "requests_expectations")]
    assert [(row["table"], row["rule"], row["rows"], row["failed"], row["sample"]) for row in found] == [
        ("requests", "known", 3, 1, request(1, 999)),
        ("requests", "known", 1, 0, None),
        ("requests", "named", 3, 1, event(2, status=201)),
        ("requests", "named", 1, 0, None),
    ]
    assert found[0]["run"] == found[2]["run"] < found[1]["run"] == found[3]["run"]
    with opened(None, config) as it:
        assert it.backfill("requests", NOON, NOON + timedelta(hours=1)).rows == 3
    assert sum(row["rows"] for row in rows(config, "requests_expectations") if row["rule"] == "known") == 8


def test_expectations_of_a_filled_table_begin_where_its_rows_end(written: Opener) -> None:
    journal = written()
    journal.append(beats(request(0, 200)))
    run(config_of(journal))
    config = config_of(journal, KNOWN)
    run(config)
    assert rows(config, "requests_expectations") == []
    journal.append(beats(request(1, 700), request(2, 200)))
    run(config)
    assert column(config, "failed", "requests_expectations") == [1, 0]
    assert column(config, "expectations", "requests_quarantine") == ["known"]


def test_change_data_feed_has_each_row_once(written: Opener) -> None:
    journal = written()
    config = config_of(journal, more="change_feed = true")
    for number in range(3):
        journal.append(beats(request(number, 200 + number)))
        run(config)
    with opened(None, config, merge_from=2) as it:
        it.optimize()
        assert it.backfill("requests", NOON + timedelta(seconds=1), NOON + timedelta(seconds=2)).rows == 1
    table = DeltaTable(f"{config.output}/requests")
    assert table.protocol().min_writer_version >= 4
    changes = pa.table(table.load_cdf(starting_version=0))
    found = Counter(zip(changes["_change_type"].to_pylist(), changes["status"].to_pylist(), strict=True))
    inserted = {status: found["insert", status] - found["delete", status] for status in (200, 201, 202)}
    assert inserted == {200: 1, 201: 1, 202: 1}
    assert found["insert", 201] == 2
    run(config_of(journal))
    assert DeltaTable(f"{config.output}/requests").metadata().configuration["delta.enableChangeDataFeed"] == "false"


def test_table_by_hours_is_widened_merged_and_filled_again(written: Opener) -> None:
    journal = written()
    config = config_of(journal, more="by_hour = true")
    for size in (1, 2, 2.5):
        journal.append(beats(request(1, 200, size=size), request(2, 201, size=size)))
        run(config)
        journal.now[0] += 1_750_000_000
    with opened(None, config, merge_from=2) as it:
        it.optimize()
        moments = [row["_time"] for row in rows(config)]
        assert it.backfill("requests", min(moments), max(moments)).rows == 4
    found = rows(config)
    assert [row["size"] for row in found] == [1, 1, 2, 2, 2.5, 2.5]
    assert [row["hour"] for row in found] == [row["_time"].hour for row in found]
    assert len({row["hour"] for row in found}) > 1
    for path in DeltaTable(f"{config.output}/requests").file_uris():
        assert "/hour=" in path
    with pytest.raises(ConfigError, match="has a partition for each hour, as it was created"):
        run(config_of(journal))


def test_partition_of_an_hour_reserves_its_name(written: Opener) -> None:
    with pytest.raises(ConfigError, match="the column 'Hour' has the name of the column 'hour'"):
        config_of(written(), more="by_hour = true", columns='Hour = "long"')
