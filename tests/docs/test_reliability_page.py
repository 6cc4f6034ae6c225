"""Check that the tests and rows in tests/verification/README.md that belong to docs/reliability.md exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
README = (ROOT / "tests" / "verification" / "README.md").read_text()


def first_cells(text: str, heading: str) -> list[str]:
    """Return the first cell of each row of the table in the section *heading*, without the table's header."""
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return [line.split(" | ")[0].lstrip("| ") for line in section.splitlines() if line.startswith("| ")][1:]


def test_every_test_that_the_table_of_bugs_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(?:\w+::)?(\w+)`", README)
    assert len(named) > 15
    tests = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not any(str(path).endswith(f"/{file}") and f"def {test}(" in text for path, text in tests.items())
    ]
    assert missing == []


def test_every_test_file_that_the_tables_name_exists() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", README))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_every_harness_of_the_table_exists() -> None:
    harnesses = {path.name for path in (ROOT / "tests").rglob("*.py")}
    named = set(re.findall(r"`([a-z0-9_]+\.py)`", README))
    assert len(named) > 10
    assert named <= harnesses


def test_every_failure_of_the_page_names_its_tests() -> None:
    failures = first_cells(PAGE, "Failures and their consequences")
    assert len(failures) > 10
    assert first_cells(README, "The tests of each failure") == failures
