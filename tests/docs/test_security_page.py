"""Check that every threat of docs/security.md has existing tests in tests/verification/threats.md."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
TABLE = (ROOT / "tests" / "verification" / "threats.md").read_text()


def rows(text: str) -> list[tuple[str, str]]:
    """Return the first and the second cell of every row, without the headers of the tables."""
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [(first, second) for first, second in cells if first != "threat"]


def test_every_test_that_the_table_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TABLE)
    assert len(named) > 100
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not re.search(rf"^ *(async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE)
    ]
    assert not missing


def test_every_threat_of_the_page_names_a_test() -> None:
    tested = rows(TABLE)
    assert [threat for threat, _ in rows(PAGE)] == [threat for threat, _ in tested]
    assert [threat for threat, tests in tested if "::test_" not in tests] == []
