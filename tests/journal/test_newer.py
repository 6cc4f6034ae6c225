"""A journal with a batch of a newer version is refused, wherever that batch is, and nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal import packing, scan
from fyrehose.journal.files import Files
from fyrehose.journal.quarantine import set_aside
from fyrehose.journal.recovery import recover
from fyrehose.offline import dump
from fyrehose.offline.verify import verify
from fyrehose.offline.view import look
from tests.doubles.files import flip

NEWER = 99


@pytest.fixture
def bench(open_journal):
    bench = open_journal(segment_size=4 << 10)
    for i in range(30):
        bench.append(b"%d" % i * 100)
    bench.close()
    return bench


def batches(segment: scan.Segment) -> list[fmt.BatchHeader]:
    with scan.SegmentReader(segment.path, segment.base) as reader:
        return [header for header, _ in reader.batches(segment.base + fmt.SEGMENT_HEADER.size, segment.end)]


def renew(segment: scan.Segment, header: fmt.BatchHeader) -> None:
    """Return the batch with the version number of a newer format."""
    data = bytearray(segment.path.read_bytes())
    at = header.position - segment.base
    data[at + 3] = NEWER
    data[at + 60 : at + 64] = crc32c(bytes(data[at : at + 60])).to_bytes(4, "little")
    segment.path.write_bytes(data)


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


@pytest.mark.parametrize("which", [0, 1, -1], ids=["oldest segment", "next segment", "last segment"])
@pytest.mark.parametrize("place", [0, 2, -1], ids=["first batch", "third batch", "last batch"])
@pytest.mark.parametrize("mark", [True, False], ids=["with MARK", "without MARK"])
def test_start_and_quarantine_change_nothing_of_a_newer_journal(bench, which: int, place: int, mark: bool) -> None:
    segment = scan.segments(bench.directory)[which]
    renew(segment, batches(segment)[place])
    if not mark:
        (bench.directory / scan.MARK_NAME).unlink()
    before = content(bench.directory)
    for start in (lambda: recover(bench.directory, Files(), 1 << 30), lambda: set_aside(bench.directory, Files())):
        with pytest.raises(JournalCorrupt, match=f"format version {NEWER}; .* nothing of it is damaged"):
            start()
        assert content(bench.directory) == before


@pytest.mark.parametrize("mark", [True, False], ids=["with MARK", "without MARK"])
def test_offline_tools_report_a_newer_version(bench, mark: bool) -> None:
    segment = scan.segments(bench.directory)[-1]
    renew(segment, batches(segment)[2])
    if not mark:
        (bench.directory / scan.MARK_NAME).unlink()
    tools = [verify, lambda directory: list(dump.runs(directory))]
    for tool in tools if mark else [*tools, look]:
        with pytest.raises(JournalCorrupt, match="newer Fyrehose"):
            tool(bench.directory)


def test_a_newer_batch_behind_damage_is_noticed(bench) -> None:
    segment = scan.segments(bench.directory)[-1]
    damaged, newer = batches(segment)[1:3]
    renew(segment, newer)
    flip(segment.path, damaged.position - segment.base + 70)
    (bench.directory / scan.MARK_NAME).unlink()
    before = content(bench.directory)
    for start in (lambda: recover(bench.directory, Files()), lambda: set_aside(bench.directory, Files())):
        with pytest.raises(JournalCorrupt, match="newer Fyrehose"):
            start()
        assert content(bench.directory) == before


def test_a_payload_that_looks_like_a_newer_batch_does_not_count_as_one(open_journal) -> None:
    bench = open_journal(segment_size=64 << 10)
    _, data = packing.batch(fmt.Kind.CLOSED, [], position=0, durable=0, time=0, clock=0, chain=0)
    forged = bytearray(data)
    forged[3] = NEWER
    forged[60:64] = crc32c(bytes(forged[:60])).to_bytes(4, "little")
    bench.append(bytes(forged) * 20)
    bench.append(b"last")
    bench.close()
    segment = scan.segments(bench.directory)[-1]
    data = bytearray(segment.path.read_bytes())
    first = batches(segment)[1]
    data[first.position - segment.base + 4] ^= 1  # its header, so that its payload is looked through
    segment.path.write_bytes(data)
    with pytest.raises(JournalCorrupt, match="is damaged at byte"):
        recover(bench.directory, Files())
