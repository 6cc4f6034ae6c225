"""The results as tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from benchmarks.comparing import Change
from benchmarks.growth import growths
from benchmarks.results import Measurement, Results
from benchmarks.targets import TARGETS
from fyrehose.bench.results import PERCENTILES, Spread
from fyrehose.bench.servers import OURS, Durable

_MIB = 1 << 20


def short(number: float) -> str:
    """Return a number with three digits, and with k or M if it is large."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.3g}"


def spread(values: Spread) -> str:
    """Return the median, and in parentheses the range of the rounds."""
    if values.least == values.most:
        return short(values.median)
    return f"{short(values.median)} ({short(values.least)}-{short(values.most)})"


def tables(results: Results, durable: dict[str, Durable]) -> Iterator[Table]:
    """Yield the tables for which there are results.

    :param durable: what an acknowledgement of each contestant means
    """
    for made in (_loads(results, durable), _latencies(results), _others(results), _growths(results), _targets(results)):
        if made.row_count:
            yield made


def markdown(table: Table) -> str:
    """Return a table as Markdown."""
    rows = [[str(column.header) for column in table.columns]]
    rows.append(["---:" if column.justify == "right" else "---" for column in table.columns])
    rows += [list(cells) for cells in zip(*(map(str, column.cells) for column in table.columns), strict=True)]
    return f"**{table.title}**\n\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def ours_like(contestant: str, durable: dict[str, Durable]) -> str:
    """Return the variant of Fyrehose that acknowledges as late as ``contestant``, or else the default variant."""
    promised = durable.get(contestant, Durable.NEVER)
    return next((name for name, one in OURS.items() if one.durable is promised), "fyrehose")


def _table(title: str, left: int, *heads: str) -> Table:
    found = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for number, head in enumerate(heads):
        found.add_column(head, justify="left" if number < left else "right", no_wrap=number < left)
    return found


def _rows(results: Results, figure: str) -> Iterator[tuple[str, Measurement]]:
    """Yield the measurements with ``figure``, each with its case; the case is empty if it is the previous one's."""
    before = ""
    for one in results.all:
        if figure in one.figures:
            yield ("" if one.case == before else one.case), one
            before = one.case


def _loads(results: Results, durable: dict[str, Durable]) -> Table:
    found = _table(
        "What a message costs: medians (least-most)", 2,
        "case", "server", "messages/s", "CPU us/message", "user+system", "of ours", "peak MiB", "maker us", "busy",
        "lost",
    )  # fmt: skip
    for name, one in _rows(results, "micros"):
        mine = ours_like(one.contestant, durable)
        times = None if one.contestant in OURS else results.times(one, mine)
        found.add_row(
            name,
            one.contestant,
            spread(one.spread("rate")),
            spread(one.spread("micros")),
            f"{one.median('user'):.2f}+{one.median('system'):.2f}",
            "" if times is None else f"{times:.2f}x" if times < 2 else f"{times:.1f}x",
            f"{one.median('peak') / _MIB:.0f}",
            f"{one.median('maker'):.2f}",
            f"{one.median('busy'):.0%}",
            short(one.median("lost")),
        )
    return found


def _latencies(results: Results) -> Table:
    heads = [f"{what} p{percentile:g}" for what in ("acknowledged", "arrived") for percentile in PERCENTILES]
    found = _table("How long a message takes: medians of each round's percentiles, in ms", 2, "case", "server", *heads)
    before = ""
    for one in results.all:
        figures = [f"{what}.{percentile:g}" for what in ("acknowledged", "arrived") for percentile in PERCENTILES]
        if not any(figure in one.figures for figure in figures):
            continue
        cells = [f"{one.median(figure) * 1e3:.3f}" if figure in one.figures else "" for figure in figures]
        found.add_row("" if one.case == before else one.case, one.contestant, *cells)
        before = one.case
    return found


def _others(results: Results) -> Table:
    found = _table("The rest", 1, "case", "what", "median (least-most)")
    for name, one in _rows(results, "seconds"):
        found.add_row(name, "s to the first accepted message", spread(one.spread("seconds")))
    for name, one in _rows(results, "rate"):
        if "micros" not in one.figures:
            found.add_row(name, f"messages a second, {one.contestant}", spread(one.spread("rate")))
    for name, one in _rows(results, "each"):
        values = one.spread("each")
        kib = Spread(values.median / 1024, values.least / 1024, values.most / 1024)
        found.add_row(name, "KiB for each connection", spread(kib))
    return found


def _growths(results: Results) -> Table:
    found = _table("How cost grows: slope 0 does not, 1 in proportion", 1, "with", "cost", "slope", "at the end")
    for growth in growths(results):
        costs = "  ".join(f"{short(number)}: {short(cost.median)}" for number, cost in growth.points)
        found.add_row(growth.what, f"{costs} {growth.unit}", f"{growth.slope:.2f}", f"{growth.last_slope:.2f}")
    return found


def changes(found: Sequence[Change]) -> Table:
    """Return a table of the figures that changed between two runs."""
    table = _table("", 2, "case", "server", "what", "before", "after", "times")
    for change in found:
        style = "green" if change.better else "red"
        cells = (change.figure, spread(change.before), spread(change.after), f"{change.times:.2f}")
        table.add_row(change.case, change.contestant, *cells, style=style)
    return table


def _targets(results: Results) -> Table:
    found = _table("Targets", 1, "what", "found", "target", "")
    for target in TARGETS:
        value = target.value(results)
        if value is not None:
            limit = f"{'<=' if target.at_most else '>='} {target.limit:g} {target.unit}"
            style = "green" if target.met(value) else "red"
            found.add_row(target.name, short(value), limit, "met" if target.met(value) else "missed", style=style)
    return found
