"""Test the search of the built documentation: Sphinx offers a section only if the query is half of its title."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def found(query: str) -> set[tuple[str, str]]:
    """Return the page and the title of each section that Sphinx offers for *query*, as its searchtools.js has it."""
    return {
        (page.stem, title)
        for page in DOCS.rglob("*.md")
        for title in re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        if query in title.lower() and len(query) >= len(title) / 2
    }


@pytest.mark.parametrize(
    ("query", "page", "title"),
    [
        ("log", "operating", "Log"),
        ("tls", "operating", "TLS"),
        ("limits", "operating", "Limits"),
        ("memory", "operating", "Memory"),
        ("access policy", "operating", "Access policy"),
        ("retention", "operating", "Retention"),
        ("rations", "backbone", "Rations"),
    ],
)
def test_the_search_finds_a_section_by_its_word(query: str, page: str, title: str) -> None:
    assert (page, title) in found(query)
