"""The tests that docs/security.md names exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "security.md").read_text())
    assert len(named) > 100
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not re.search(rf"^ *(async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE)
    ]
    assert not missing


def test_every_row_names_a_test() -> None:
    rows = [line for line in (ROOT / "docs" / "security.md").read_text().splitlines() if line.startswith("| ")]
    bare = [row for row in rows if "::test_" not in row and not row.startswith("| threat |")]
    assert not bare
