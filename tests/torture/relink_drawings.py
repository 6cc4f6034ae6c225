#!/usr/bin/env python3
"""Draws the state machines of docs/protocols/relink.md from the code's own tables, as Mermaid and as tables.

relink_drawings.py        rewrites the drawings of the page, between their marks
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from fyrehose.protocols.relink.tables import (
    CONNECTOR,
    LISTENER,
    PACKETS,
    RECEIVING,
    SENDING,
    Happening,
    Phase,
    Receiving,
    Sending,
)

PAGE = Path(__file__).parents[2] / "docs" / "protocols" / "relink.md"
_MARKED = re.compile(r"(<!-- drawn: (\w+) -->\n).*?(<!-- /drawn -->)", re.DOTALL)


def _states(modes: Any, first: Enum, edges: Iterator[tuple[Enum, str, Enum]]) -> Iterator[str]:
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield f"    [*] --> {first.name}"
    for begin, label, end in edges:
        yield f"    {begin.name} --> {end.name}: {label}"
    yield "```"
    yield ""
    yield "| state | meaning |"
    yield "|---|---|"
    for mode in modes:
        yield f"| `{mode.name}` | {mode.value} |"


def _connection(table: Mapping[tuple[Phase, Happening], tuple[str, Phase]]) -> Iterator[str]:
    everywhere = (Happening.BROKEN, Happening.FENCED)
    edges = (
        (begin, f"{what.value} / {do}", end) for (begin, what), (do, end) in table.items() if what not in everywhere
    )
    known = {phase for phase, _ in table} | {Phase.ENDED}
    yield from _states([phase for phase in Phase if phase in known], Phase.VERSION, edges)
    yield ""
    for what in everywhere:
        do, end = table[Phase.VERSION, what]
        yield f"In every state: {what.value} / {do} leads to `{end.name}`."


def _channel(table: Mapping[tuple[Any, Any], Any], modes: Any) -> Iterator[str]:
    return _states(modes, modes.OPEN, ((begin, event.value, end) for (begin, event), end in table.items()))


def _packets() -> Iterator[str]:
    kinds = list(PACKETS[Phase.RESYNC])
    yield "| packet | " + " | ".join(f"`{phase.name}`" for phase in PACKETS) + " |"
    yield "|---" * (1 + len(PACKETS)) + "|"
    for kind in kinds:
        taken = (f"`{methods[kind]}`" if kind in methods else "error" for methods in PACKETS.values())
        yield f"| {kind} | " + " | ".join(taken) + " |"


DRAWINGS: dict[str, Callable[[], Iterator[str]]] = {
    "connector": lambda: _connection(CONNECTOR),
    "listener": lambda: _connection(LISTENER),
    "packets": _packets,
    "sending": lambda: _channel(SENDING, Sending),
    "receiving": lambda: _channel(RECEIVING, Receiving),
}


def redrawn(page: str) -> str:
    """``page`` with its drawings as the tables are now."""
    return _MARKED.sub(lambda mark: mark[1] + "\n".join(DRAWINGS[mark[2]]()) + "\n" + mark[3], page)


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
