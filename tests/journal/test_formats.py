"""Every format that was ever written is read by this version: see fyrehose/testing/formats.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fyrehose.journal.verify import verify
from fyrehose.testing.formats import Author, described

FORMATS = sorted(path.parent for path in Path(__file__).with_name("formats").glob("*/expected.json"))


def expected(fixture: Path) -> list[Any]:
    return json.loads((fixture / "expected.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


@pytest.fixture(params=FORMATS, ids=lambda path: path.name)
def fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of one fixture."""
    copy = tmp_path / "j"
    shutil.copytree(request.param, copy)
    return copy


def test_offline_tools_read_every_format(fixture: Path) -> None:
    assert described(fixture) == expected(fixture)
    assert not verify(fixture, everything=True).problems


def test_a_server_reads_every_format_and_goes_on_writing(fixture: Path) -> None:
    author = Author(fixture)
    author.clock.advance(1_000)
    author.open()
    before = expected(fixture)
    for stream in ("log", "numbers", "events/ünï"):
        said = [line[1] for line in before if line[0] == stream]
        oldest, last = author.journal.bounds(stream)
        assert (oldest, last) == (said[0], said[-1])
        author.append(stream, b"written by this version")
    author.close()
    assert described(fixture)[: len(before)] == before
    assert len(described(fixture)) == len(before) + 3
    assert not verify(fixture).problems
