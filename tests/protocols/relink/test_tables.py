"""The tables are complete, and the documentation shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fyrehose.protocols.relink.link import Link
from fyrehose.protocols.relink.session import ConnectorSession, ListenerSession
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

PAGE = Path(__file__).parents[3] / "docs" / "protocols" / "relink.md"


@pytest.mark.parametrize(("table", "session"), [(CONNECTOR, ConnectorSession), (LISTENER, ListenerSession)])
def test_every_step_is_a_method_of_the_session(table: Any, session: Any) -> None:
    assert all(callable(getattr(session, method)) for method, _ in table.values())
    phases = {phase for phase, _ in table} | {phase for _, phase in table.values()}
    assert phases - {Phase.ENDED} == {phase for phase, _ in table}, "only the last phase has no transitions"
    for phase in phases - {Phase.ENDED}:
        assert table[phase, Happening.BROKEN][1] is table[phase, Happening.FENCED][1] is Phase.ENDED


def test_every_packet_has_a_method_of_the_link() -> None:
    assert set(PACKETS) == {Phase.RESYNC, Phase.OPEN}
    for methods in PACKETS.values():
        assert all(callable(getattr(Link, method)) for method in methods.values())
    assert set(PACKETS[Phase.RESYNC]) - set(PACKETS[Phase.OPEN]) == {"resume"}


@pytest.mark.parametrize(("table", "modes"), [(SENDING, Sending), (RECEIVING, Receiving)])
def test_every_mode_can_be_reached_and_left(table: Any, modes: Any) -> None:
    assert {mode for mode, _ in table} | set(table.values()) == set(modes)
    assert {mode for mode, _ in table} == set(modes) - {modes.GONE}


def test_drawings_match_the_tables(torture: Any) -> None:
    draw = torture("relink_drawings")
    page = PAGE.read_text(encoding="utf-8")
    assert draw.redrawn(page) == page, "run tests/torture/relink_drawings.py"
