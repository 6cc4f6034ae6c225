"""The tables are complete, and the documentation shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fyrehose.protocols.relink.channels import RECEIVING, SENDING, Receiving, Sending

PAGE = Path(__file__).parents[3] / "docs" / "protocols" / "relink-wire.md"


@pytest.mark.parametrize(("table", "modes"), [(SENDING, Sending), (RECEIVING, Receiving)])
def test_every_state_can_be_reached_and_left(table: Any, modes: Any) -> None:
    assert {mode for mode, _ in table} | set(table.values()) == set(modes)
    assert {mode for mode, _ in table} == set(modes) - {modes.GONE}


def test_drawings_match_the_tables(torture: Any) -> None:
    draw = torture("relink_drawings")
    page = PAGE.read_text(encoding="utf-8")
    assert draw.redrawn(page) == page, "run tests/verification/torture/relink_drawings.py"
