"""Plot the results: the CPU cost of a message for each server, its latency, and how the cost grows."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.growth import DIMENSIONS, growths
from benchmarks.results import Results
from fyrehose.errors import MissingExtra

#: Cases that are shown, and their labels.
WORK = {
    "figg/publish": "publish",
    "figg/live/1": "publish,\n1 subscriber",
    "figg/live/16": "publish,\n16 subscribers",
    "figg/catch-up": "catch up\nfrom disk",
}
LATENCY = "figg/latency/5k"
PROTOCOLS = {
    "figg/live/1": "Figg",
    "lumberjack/level-0": "Lumberjack",
    "relink/publish": "Relink",
    "backbone/live/1": "backbone",
    "eventbus/live/1": "event bus",
}
#: Colours: one for Fyrehose, lighter for weaker durability; greys and browns for other servers.
COLOURS = {
    "fyrehose": "#0b6e4f",
    "fyrehose-later": "#6bbf59",
    "redis-always": "#9c2c2c",
    "redis-everysec": "#d98880",
    "jetstream-always": "#1f4e79",
    "jetstream": "#7fb3d5",
    "figg-server": "#7d6608",
    "udp-loop": "#777777",
    "zmq-loop": "#777777",
    "twisted-loop": "#777777",
    "beats-server": "#b9770e",
}


def draw(results: Results, path: Path, told: str) -> None:
    """Write the plot to ``path``, whose suffix selects the format (svg, png).

    :param told: the machine, for the text below the plot
    :raises MissingExtra: matplotlib is not installed
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingExtra("a plot needs matplotlib: pip install 'fyrehose[bench]'") from None
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "fyrehose"
    from matplotlib import pyplot as plt

    panels = [(height, panel) for height, panel, there in PANELS if there(results)]
    heights = [height for height, _ in panels] or [1]
    figure, axes = plt.subplots(
        len(heights), 1, figsize=(10, 1 + 1.5 * sum(heights)), height_ratios=heights, squeeze=False
    )
    for (_, panel), place in zip(panels, axes[:, 0], strict=False):
        panel(place, results)
    foot = textwrap.wrap(told, 170)
    figure.text(0.01, 0.005, "\n".join(foot), fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.015 * (1 + len(foot)), 1, 1))
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def _there(results: Results, cases: Sequence[str], figure: str) -> list[str]:
    """Return the contestants that have ``figure`` in at least one of ``cases``, in the order of the colours."""
    return [name for name in COLOURS if any(results.median(case, figure, name) is not None for case in cases)]


def _costs(axes: Any, results: Results) -> None:
    names = _there(results, list(WORK), "micros")
    for number, name in enumerate(names):
        at = [place + 0.8 * ((number + 0.5) / len(names) - 0.5) for place in range(len(WORK))]
        there = [
            (x, value)
            for x, case in zip(at, WORK, strict=True)
            if (value := results.median(case, "micros", name)) is not None
        ]
        axes.plot(*zip(*there, strict=True), "o", color=COLOURS[name], label=name)
        for x, value in there:
            axes.annotate(f"{value:.3g}", (x, value), (0, 7), textcoords="offset points", ha="center", fontsize=7)
    axes.set_yscale("log")
    axes.set_xticks(range(len(WORK)), list(WORK.values()))
    axes.set_xlim(-0.5, len(WORK) - 0.5)
    for edge in range(1, len(WORK)):
        axes.axvline(edge - 0.5, color="#dddddd", linewidth=0.8)
    axes.margins(y=0.12)
    axes.set_ylabel("us of the server's CPU a message")
    axes.set_title("What a message of 128 bytes costs (each line up is ten times as much)", loc="left", fontsize=10)
    axes.grid(axis="y", color="#dddddd")
    axes.legend(fontsize=8, ncols=3, loc="upper left", bbox_to_anchor=(0, -0.14), frameon=False)


def _short(value: float) -> str:
    """Format a number with two significant digits, or without decimals if it is larger."""
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def _latency(axes: Any, results: Results) -> None:
    names = list(reversed(_there(results, [LATENCY], "acknowledged.50")))
    for place, name in enumerate(names):
        low, high = (results.median(LATENCY, f"acknowledged.{part}", name) for part in ("50", "99"))
        if low is not None and high is not None:
            axes.plot([low * 1e3, high * 1e3], [place, place], color=COLOURS[name], linewidth=3)
            axes.plot([low * 1e3], [place], "o", color=COLOURS[name])
            axes.annotate(_short(low * 1e3), (low * 1e3, place), (0, 7), textcoords="offset points", fontsize=7)
            axes.annotate(_short(high * 1e3), (high * 1e3, place), (0, 7), textcoords="offset points", fontsize=7)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.5, len(names) - 0.2)
    axes.set_xscale("log")
    axes.grid(axis="x", color="#dddddd")
    axes.set_title("Milliseconds to the acknowledgement, at 5,000 messages/s: p50 to p99", loc="left", fontsize=10)


def _protocols(axes: Any, results: Results) -> None:
    found = [(text, results.median(case, "micros")) for case, text in reversed(PROTOCOLS.items())]
    there = [(text, value) for text, value in found if value is not None]
    for place, (_, value) in enumerate(there):
        axes.plot([value], [place], "o", color=COLOURS["fyrehose"])
        axes.annotate(f"{value:.3g}", (value, place), (8, -3), textcoords="offset points", fontsize=8)
    axes.set_yticks(range(len(there)), [text for text, _ in there])
    axes.set_ylim(-0.5, len(there) - 0.5)
    axes.set_xscale("log")
    axes.margins(x=0.1)
    axes.grid(axis="x", color="#dddddd")
    axes.set_title("us of the server's CPU a message, by listener, on disk when acknowledged", loc="left", fontsize=10)


def _growth(name: str) -> Callable[[Any, Results], None]:
    """Return a function that draws how the cost grows with the dimension ``name``."""

    def panel(axes: Any, results: Results) -> None:
        growth = next(one for one in growths(results) if one.name == name)
        numbers = [number for number, _ in growth.points]
        medians = [cost.median for _, cost in growth.points]
        noise = [[cost.median - cost.least for _, cost in growth.points], [c.most - c.median for _, c in growth.points]]
        axes.errorbar(numbers, medians, yerr=noise, fmt="o-", color=COLOURS["fyrehose"], capsize=3)
        for number, median in zip(numbers, medians, strict=True):
            axes.annotate(f"{median:.3g}", (number, median), (4, 5), textcoords="offset points", fontsize=7)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.margins(x=0.08, y=0.2)
        axes.grid(color="#dddddd")
        axes.set_xlabel(growth.what, fontsize=8)
        title = f"{growth.unit}, by {growth.what}: slope {growth.slope:.2f}, {growth.last_slope:.2f} at the end"
        axes.set_title(title, loc="left", fontsize=10)

    return panel


def _measured_growth(name: str) -> Callable[[Results], bool]:
    return lambda results: any(growth.name == name for growth in growths(results))


#: The panels: their heights, the functions that draw them, and functions that say whether there are results for them.
PANELS: tuple[tuple[int, Callable[[Any, Results], None], Callable[[Results], bool]], ...] = (
    (3, _costs, lambda results: bool(_there(results, list(WORK), "micros"))),
    (2, _latency, lambda results: bool(_there(results, [LATENCY], "acknowledged.50"))),
    (2, _protocols, lambda results: any(results.median(case, "micros") is not None for case in PROTOCOLS)),
    *((2, _growth(name), _measured_growth(name)) for name in DIMENSIONS),
)
