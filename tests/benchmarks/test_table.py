"""Tables as people read them."""

from __future__ import annotations

import pytest
from rich.console import Console

from benchmarks.peers import PEERS
from benchmarks.results import Measurement, Results
from benchmarks.table import markdown, ours_like, short, spread, tables
from fyrehose.bench.results import Spread
from fyrehose.bench.servers import OURS

DURABLE = {name: one.durable for name, one in {**OURS, **PEERS}.items()}


def load(contestant: str, micros: float, **more: float) -> Measurement:
    sample = {
        "rate": 250_000.0, "micros": micros, "user": micros / 2, "system": micros / 2, "maker": 0.1, "busy": 0.5,
        "lost": 7.0, "peak": 50 * 2**20,
    }  # fmt: skip
    return Measurement(case="figg/live/1", contestant=contestant, samples=[sample | more])


def lines(*measured: Measurement) -> list[str]:
    console = Console(width=200)
    with console.capture() as shown:
        for table in tables(Results(measured), DURABLE):
            console.print(table)
    return [line.rstrip() for line in shown.get().splitlines()]


@pytest.mark.parametrize(
    ("number", "text"), [(0.5678, "0.568"), (12.34, "12.3"), (999.0, "999"), (12_345.0, "12.3k"), (2.5e6, "2.5M")]
)
def test_numbers_have_three_digits_and_a_unit_prefix(number: float, text: str) -> None:
    assert short(number) == text


def test_range_is_shown_if_it_is_not_empty() -> None:
    assert spread(Spread(1.0, 0.5, 2_000.0)) == "1 (0.5-2k)"
    assert spread(Spread(1.0, 1.0, 1.0)) == "1"


def test_servers_are_compared_with_ours_that_promises_the_same() -> None:
    assert ours_like("redis-always", DURABLE) == "fyrehose"
    assert ours_like("redis-everysec", DURABLE) == "fyrehose-later"
    assert ours_like("figg-server", DURABLE) == "fyrehose"


def test_table_has_a_line_for_each_server_and_names_the_case_once() -> None:
    found = lines(load("fyrehose", 1.0), load("redis-always", 5.5))
    assert found[2].split() == ["figg/live/1", "fyrehose", "250k", "1", "0.50+0.50", "50", "0.10", "50%", "7"]
    assert found[3].split()[:5] == ["redis-always", "250k", "5.5", "2.75+2.75", "5.5x"]


def test_cost_of_metrics_is_shown_in_percent_and_judged() -> None:
    found = lines(load("fyrehose", 1.0), load("fyrehose-metrics", 1.042))
    assert found[3].split()[:5] == ["fyrehose-metrics", "250k", "1.04", "0.52+0.52", "1.04x"]
    judged = [line for line in found if "CPU with metrics against without" in line]
    assert [line.split()[-5:] for line in judged] == [["1.04", "<=", "1.05", "times", "met"]]


@pytest.mark.parametrize(("cpu", "says"), [(0.5, "met"), (1.2, "missed")])
def test_targets_are_met_or_missed(cpu: float, says: str) -> None:
    found = [line for line in lines(load("fyrehose", cpu)) if line.startswith("figg/live/1, CPU a message")]
    assert [line.split()[-1] for line in found] == [says]


def test_latencies_have_a_table_of_their_own() -> None:
    found = lines(load("fyrehose", 1.0, **{"acknowledged.50": 0.001, "acknowledged.99": 0.0125}))
    (line,) = [line for line in found if "12.500" in line]
    assert line.split() == ["figg/live/1", "fyrehose", "1.000", "12.500"]


def test_each_kind_of_case_shows_its_own_figure() -> None:
    start = Measurement(case="start/empty", contestant="fyrehose", samples=[{"seconds": 0.5}, {"seconds": 0.7}])
    idle = Measurement(case="figg/idle", contestant="fyrehose", samples=[{"each": 2048.0}])
    found = lines(start, idle)
    assert any(line.startswith("start/empty") and line.endswith("0.6 (0.5-0.7)") for line in found)
    assert any(line.startswith("figg/idle") and line.endswith(" 2") for line in found)


def test_tables_are_also_made_as_markdown() -> None:
    start = Measurement(case="start/empty", contestant="fyrehose", samples=[{"seconds": 0.5}])
    (table,) = tables(Results([start]), DURABLE)
    assert markdown(table).splitlines() == [
        "**The rest**",
        "",
        "| case | what | median (least-most) |",
        "| --- | ---: | ---: |",
        "| start/empty | s to the first accepted message | 0.5 |",
    ]
