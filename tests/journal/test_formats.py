"""Every format that was ever written is read by this version: see tests/doubles/formats.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fyrehose.journal import scan
from fyrehose.offline.verify import verify
from tests.doubles.formats import Author, described, write

FORMATS = sorted(path.parent for path in Path(__file__).with_name("formats").glob("*/expected.json"))


def expected(fixture: Path) -> list[Any]:
    return json.loads((fixture / "expected.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


@pytest.fixture(params=FORMATS, ids=lambda path: path.name)
def fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of the journal in one fixture."""
    copy = tmp_path / "j"
    shutil.copytree(request.param, copy)
    return copy


def test_offline_tools_read_every_format(fixture: Path) -> None:
    assert described(fixture) == expected(fixture)
    assert not verify(fixture, everything=True).problems


def test_a_server_reads_every_format_and_continues_to_write(fixture: Path) -> None:
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


def test_retired_streams_and_snapshots_of_format_2_are_known(tmp_path: Path) -> None:
    shutil.copytree(next(path for path in FORMATS if path.name == "2"), tmp_path / "j")
    assert scan.snapshots(tmp_path / "j")
    author = Author(tmp_path / "j")
    author.open()
    assert author.journal.retired() == {"many-0": 1}
    assert author.journal.bounds("many-1") == (2, 2)
    assert {stream for stream in author.journal.ends() if stream.startswith("many")} == {
        f"many-{i}" for i in range(1, 8)
    }
    author.close()


def test_a_change_of_the_format_needs_a_new_fixture(tmp_path: Path) -> None:
    """If this fails, write a fixture of today's format: see tests/doubles/formats.py."""
    write(tmp_path / "j")
    today, newest = (
        {
            path.name: _without_identity(path)
            for path in directory.iterdir()
            if path.name not in ("MARK", "expected.json")
        }
        for directory in (tmp_path / "j", FORMATS[-1])
    )
    assert today == newest


def _without_identity(path: Path) -> bytes:
    """Return the content of a file without the journal's identity and the checksum that covers it."""
    data = bytearray(path.read_bytes())
    if path.suffix == scan.SUFFIX:
        data[36:52], data[60:64] = bytes(16), bytes(4)
    elif path.suffix == scan.SNAPSHOT_SUFFIX:
        data[32:48], data[-4:] = bytes(16), bytes(4)
    return bytes(data)
