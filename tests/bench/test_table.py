"""Tables as people read them."""

from __future__ import annotations

import pytest
from rich.console import Console

from fyrehose.bench.results import Measured, Sample, Spread
from fyrehose.bench.table import short, spread, table


@pytest.mark.parametrize(
    ("number", "text"), [(0.5678, "0.568"), (12.34, "12.3"), (999.0, "999"), (12_345.0, "12.3k"), (2.5e6, "2.5M")]
)
def test_numbers_are_short(number: float, text: str) -> None:
    assert short(number) == text


def test_a_spread_is_shown_with_both_ends() -> None:
    assert spread(Spread(1.0, 0.5, 2_000.0)) == "1 (0.5-2k)"


@pytest.mark.parametrize(("cpu", "says"), [(0.5, "met"), (1.2, "missed: x2.0")])
def test_a_line_says_whether_the_target_was_met(cpu: float, says: str) -> None:
    sample = Sample(
        messages=1_000_000, seconds=1.0, cpu=cpu, user=cpu, system=0.0, maker_cpu=0.1, received=0, lost=7, peak=1 << 20
    )
    console = Console(width=200, record=True, quiet=False, file=None)
    with console.capture() as shown:
        console.print(table([Measured(case="figg/live/1", contestant="fyrehose", samples=(sample,))]))
    line = shown.get().splitlines()[1]
    assert line.split()[:2] == ["figg/live/1", "fyrehose"]
    assert says in line
    assert line.split()[-1] == "7"
