"""The tests that docs/reliability.md names exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 15
    tests = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not any(str(path).endswith(f"/{file}") and f"def {test}(" in text for path, text in tests.items())
    ]
    assert missing == []


def test_every_test_file_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
