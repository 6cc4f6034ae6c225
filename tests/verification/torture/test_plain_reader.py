"""Check that the reader written from docs/journal-format.md reads what was written, and notices damage."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from random import Random

import pytest

from fyrehose.journal import scan
from fyrehose.journal.files import Files
from fyrehose.journal.recovery import recover
from fyrehose.journal.writer import Writer
from fyrehose.records import Run

sys.path.insert(0, str(Path(__file__).parent))
plain = import_module("plain_reader")

PARTS = (
    {},
    {"producer": "p", "topic": "a topic", "content_type": "text/plain"},
    {"producer_seq": 7},
    {"event_ids": lambda n: bytes(16 * n)},
)


@pytest.fixture
def journal(tmp_path: Path) -> tuple[Path, list[tuple[str, int, bytes]]]:
    """Return a journal of several segments, and what was written to it."""
    dice = Random(5)
    writer = Writer(tmp_path, recover(tmp_path, Files()), 8192, True)
    writer.open(1)
    written = []
    for _ in range(100):
        runs = []
        for stream in dice.sample(["a", "b", "c/d", "ä"], dice.randint(1, 3)):
            payloads = [dice.randbytes(dice.randint(0, 99)) for _ in range(dice.randint(1, 9))]
            first = writer.streams.ends.get(stream, 0) + 1
            parts = {
                name: value(len(payloads)) if callable(value) else value for name, value in dice.choice(PARTS).items()
            }
            runs.append(Run.of(stream, payloads, source="test", **parts).numbered(first, 1))
            written += [(stream, first + n, payload) for n, payload in enumerate(payloads)]
        writer.commit([runs], 1, 1)
    writer.close(in_order=True)
    return tmp_path, written


def test_every_record_is_read(journal: tuple[Path, list[tuple[str, int, bytes]]]) -> None:
    directory, written = journal
    assert len(scan.segments(directory)) > 3
    assert sorted(plain.records(directory)) == sorted(written)


def test_every_bit_that_changes_is_noticed(journal: tuple[Path, list[tuple[str, int, bytes]]]) -> None:
    directory, _ = journal
    segment = scan.segments(directory)[1]
    content, dice = segment.path.read_bytes(), Random(6)
    for _ in range(200):
        changed = bytearray(content)
        changed[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        segment.path.write_bytes(changed)
        with pytest.raises(plain.Wrong):
            list(plain.records(directory))


def test_missing_segment_is_noticed(journal: tuple[Path, list[tuple[str, int, bytes]]]) -> None:
    directory, _ = journal
    scan.segments(directory)[2].path.unlink()
    with pytest.raises(plain.Wrong):
        list(plain.records(directory))
