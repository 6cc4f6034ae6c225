"""The results as a picture: what a message costs each server, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fyrehose.bench.results import Results
from fyrehose.errors import MissingExtra

#: Which cases are shown, and what they are called there.
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
#: Ours in one colour, lighter where less is promised; others in greys and browns.
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
    "beats-server": "#b9770e",
}


def draw(results: Results, path: Path, told: str) -> None:
    """Write the picture to ``path``; its ending says which kind (svg, png).

    :param told: the machine, for the foot of it
    :raises MissingExtra: there is no matplotlib
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingExtra("a plot needs matplotlib: pip install 'fyrehose[bench]'") from None
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "fyrehose"
    from matplotlib import pyplot as plt

    figure, (above, middle, below) = plt.subplots(3, 1, figsize=(10, 12), height_ratios=(3, 2, 2))
    _costs(above, results)
    _latency(middle, results)
    _protocols(below, results)
    figure.text(0.01, 0.005, told, fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def _there(results: Results, cases: Sequence[str], figure: str) -> list[str]:
    """Contestants that have ``figure`` at one of ``cases``, in the order of the colours."""
    return [name for name in COLOURS if any(results.median(case, figure, name) is not None for case in cases)]


def _costs(axes: Any, results: Results) -> None:
    names = _there(results, list(WORK), "micros")
    width = 0.8 / max(1, len(names))
    for number, name in enumerate(names):
        label: str | None = name
        for place, case in enumerate(WORK):
            value = results.median(case, "micros", name)
            if value is not None:
                at = place - 0.4 + (number + 0.5) * width
                axes.bar(at, value, width * 0.92, color=COLOURS[name], label=label)
                label = None
                axes.text(at, value, f"{value:.2g}", ha="center", va="bottom", fontsize=7)
    axes.set_yscale("log")
    axes.set_xticks(range(len(WORK)), list(WORK.values()))
    axes.set_ylabel("us of the server's CPU a message")
    axes.set_title("What a message of 128 bytes costs", loc="left")
    if names:
        axes.legend(fontsize=8, ncols=2)


def _latency(axes: Any, results: Results) -> None:
    names = _there(results, [LATENCY], "acknowledged.50")
    for place, name in enumerate(reversed(names)):
        low, high = (results.median(LATENCY, f"acknowledged.{part}", name) for part in ("50", "99"))
        if low is not None and high is not None:
            axes.plot([low * 1e3, high * 1e3], [place, place], color=COLOURS[name], linewidth=3)
            axes.plot([low * 1e3], [place], "o", color=COLOURS[name])
            axes.plot([high * 1e3], [place], "|", color=COLOURS[name], markersize=12)
    axes.set_yticks(range(len(names)), list(reversed(names)))
    axes.set_xscale("log")
    axes.set_xlabel("ms to the acknowledgement at 5,000 messages/s: p50 (dot) to p99")


def _protocols(axes: Any, results: Results) -> None:
    found = [(text, results.median(case, "micros")) for case, text in PROTOCOLS.items()]
    there = [(text, value) for text, value in found if value is not None]
    for place, (_, value) in enumerate(reversed(there)):
        axes.barh(place, value, color=COLOURS["fyrehose"])
        axes.text(value, place, f" {value:.2g}", va="center", fontsize=8)
    axes.set_yticks(range(len(there)), [text for text, _ in reversed(there)])
    axes.set_xscale("log")
    axes.set_xlabel("us of the server's CPU a message, each door")
