"""``fyrehose eventbus import``, from a file to a journal."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import bson
import pytest
from click.testing import CliRunner, Result

from fyrehose.cli import main
from fyrehose.offline import dump


def document(n: int, **raw: Any) -> dict[str, Any]:
    when = datetime(2016, 11, 18, 14, 36, 49, 7_000)
    event = {"topic": "/a/", "producer": "me", "timestamp": when, "uuid": str(UUID(int=n)), "data": b"\x01"}
    return {"sequence": n, "created": when, "raw": event | raw}


@pytest.fixture
def events(tmp_path: Path) -> Path:
    path = tmp_path / "events.bson"
    path.write_bytes(b"".join(bson.encode(document(n)) for n in (2, 3, 6)))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["eventbus", "import", *map(str, arguments)])


def numbers(directory: Path, stream: str = "eventbus") -> list[int]:
    return [seq for run in dump.runs(directory, stream) for seq in range(run.first_seq, run.last_seq + 1)]


def test_dump_is_imported_once(tmp_path: Path, events: Path) -> None:
    data = tmp_path / "data"
    result = run("--data-dir", data, events)
    assert result.output == "3 events imported into stream eventbus, 3 numbers missing\n"
    result = run("--data-dir", data, events)
    assert result.output == "0 events imported into stream eventbus, 3 were there already\n"
    assert numbers(data) == [2, 3, 6]


def test_stream_can_be_named(tmp_path: Path, events: Path) -> None:
    assert run("--data-dir", tmp_path / "data", "--stream", "old", events).exit_code == 0
    assert numbers(tmp_path / "data", "old") == [2, 3, 6]
    result = run("--data-dir", tmp_path / "data", "--stream", "x" * 256, events)
    assert (result.exit_code, "invalid --stream" in result.output) == (2, True)


def test_invalid_document_ends_the_import_with_its_place(tmp_path: Path, events: Path) -> None:
    size = events.stat().st_size
    events.write_bytes(events.read_bytes() + bson.encode(document(7, topic=5)) + bson.encode(document(8)))
    result = run("--data-dir", tmp_path / "data", events)
    assert result.exit_code == 1
    assert f"{events}, the document at byte {size}: raw.topic is 5, expected text" in result.output
    result = run("--data-dir", tmp_path / "data", "--skip-invalid", events)
    assert result.exit_code == 0
    assert f"skipped: the document at byte {size}: raw.topic is 5" in result.output
    assert "1 document skipped" in result.output
    assert numbers(tmp_path / "data") == [2, 3, 6, 8]


def test_document_of_a_missing_number_is_reported(tmp_path: Path, events: Path) -> None:
    run("--data-dir", tmp_path / "data", events)
    events.write_bytes(events.read_bytes() + bson.encode(document(4)))
    result = run("--data-dir", tmp_path / "data", events)
    assert "1 have numbers that the journal noted as missing, or deleted" in result.output
