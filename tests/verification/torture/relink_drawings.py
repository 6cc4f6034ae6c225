#!/usr/bin/env python3
"""Draw the state machines of docs/protocols/relink-wire.md from the code's own tables, as Mermaid and as tables.

relink_drawings.py        replaces the drawings on the page, between their marks
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fyrehose.protocols.relink.channels import RECEIVING, SENDING, Receiving, Sending
from fyrehose.protocols.relink.session import ConnectorSession, ListenerSession, Transitions

PAGE = Path(__file__).parents[3] / "docs" / "protocols" / "relink-wire.md"
_MARKED = re.compile(r"(<!-- drawn: (\w+) -->\n).*?(<!-- /drawn -->)", re.DOTALL)


#: The order in which the page draws the states of a connection.
ORDER = ("VERSION", "HELLO", "LOOKUP", "REPLY", "RESYNC", "OPEN", "REFUSED")


def _diagram(edges: Iterator[tuple[str, str, str]]) -> Iterator[str]:
    """Yield a diagram of *edges* (state, label, next state), which begins at the first state."""
    for at, (begin, label, end) in enumerate(edges):
        if not at:
            yield from ("```mermaid", "stateDiagram-v2", f"    [*] --> {begin}")
        yield f"    {begin} --> {end}: {label}"
    yield "```"


def _connection(transitions: Transitions) -> Iterator[str]:
    edges = [
        (old.name, step.value if handle is None else f"{step.value} / {handle.__name__}", new.name)
        for (old, step), (new, handle) in transitions.items()
    ]
    yield from _diagram(iter(sorted(edges, key=lambda edge: (ORDER.index(edge[0]), ORDER.index(edge[2])))))


def _channel(table: Mapping[tuple[Any, Any], Any], modes: Any) -> Iterator[str]:
    yield from _diagram((begin.name, event.value, end.name) for (begin, event), end in table.items())
    yield ""
    yield "| state | meaning |"
    yield "|---|---|"
    for mode in modes:
        yield f"| `{mode.name}` | {mode.value} |"


DRAWINGS: dict[str, Callable[[], Iterator[str]]] = {
    "connector": lambda: _connection(ConnectorSession.transitions),
    "listener": lambda: _connection(ListenerSession.transitions),
    "sending": lambda: _channel(SENDING, Sending),
    "receiving": lambda: _channel(RECEIVING, Receiving),
}


def redrawn(page: str) -> str:
    """Return ``page`` with drawings of the present tables."""
    return _MARKED.sub(lambda mark: mark[1] + "\n".join(DRAWINGS[mark[2]]()) + "\n" + mark[3], page)


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
