"""Segment files are found and read; MARK is read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fyrehose.journal import format as fmt
from fyrehose.journal import packing, scan
from fyrehose.journal.files import Files
from fyrehose.records import Run
from tests.doubles.files import CountedFiles


def test_files_with_other_names_are_no_segments(tmp_path: Path) -> None:
    for name in ("0000000000000000.segment", "0000000000000400.segment"):
        (tmp_path / name).write_bytes(b"x" * 1024)
    for name in (
        "0.segment",
        "-000000000000001.segment",
        "00000000000004_0.segment",
        "x.segment",
        "0000000000000800.new",
    ):
        (tmp_path / name).write_bytes(b"y")
    found = scan.segments(tmp_path)
    assert [(s.base, s.end) for s in found] == [(0, 1024), (1024, 2048)]
    assert [s.path for s in found] == [scan.path_of(tmp_path, 0), scan.path_of(tmp_path, 1024)]


def test_files_with_other_names_are_no_snapshots(tmp_path: Path) -> None:
    for position in (4096, 0):
        scan.snapshot_path_of(tmp_path, position).write_bytes(b"x")
    for name in ("0.streams", "000000000000080_.streams", "0000000000000800.streams.new", "0000000000000800.segment"):
        (tmp_path / name).write_bytes(b"y")
    assert scan.snapshots(tmp_path) == [0, 4096]


def test_segment_deleted_during_the_listing_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for base in (0, 64):
        scan.path_of(tmp_path, base).write_bytes(bytes(64))
    stat = Path.stat

    def vanish(self: Path, **kwargs: Any) -> Any:
        if self.name.startswith("0000000000000000"):
            raise FileNotFoundError
        return stat(self, **kwargs)

    monkeypatch.setattr(Path, "stat", vanish)
    assert [s.base for s in scan.segments(tmp_path)] == [64]


@pytest.mark.parametrize(("data", "mark"), [(None, 0), (b"", 0), (b"\0" * 12, 0), (scan.pack_mark(77), 77)])
def test_durable_mark_is_read_as_it_was_written(tmp_path: Path, data: bytes | None, mark: int) -> None:
    if data is not None:
        (tmp_path / "MARK").write_bytes(data)
    assert scan.read_mark(tmp_path) == mark


def test_damaged_durable_mark_is_ignored(tmp_path: Path) -> None:
    good = scan.pack_mark(1 << 40)
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        (tmp_path / "MARK").write_bytes(bad)
        assert scan.read_mark(tmp_path) == 0


def test_reader_keeps_a_limited_number_of_bytes(tmp_path: Path) -> None:
    path = scan.path_of(tmp_path, 0)
    path.write_bytes(bytes(scan.KEPT + 4096))
    files = CountedFiles()
    reader = scan.SegmentReader(path, 0, files)
    assert len(reader.read(0, scan.KEPT + 1)) == scan.KEPT + 1
    assert len(reader.read(64, 100)) == 100
    assert [(offset, size) for _, offset, size in files.reads] == [(0, scan.KEPT + 1 + 64), (64, scan.AHEAD)]
    assert bytes(reader.read(scan.KEPT + 4000, 100)) == bytes(96), "fewer only at the end"
    reader.close()


def test_nothing_that_may_still_be_written_is_read_ahead(tmp_path: Path) -> None:
    path = scan.path_of(tmp_path, 0)
    path.write_bytes(b"old" * 100)
    reader = scan.SegmentReader(path, 0, limit=100)
    assert len(reader.read(36, 64)) == 64
    path.write_bytes(b"new" * 100)
    assert bytes(reader.read(99, 3)) == b"new", "from the file, not from memory"
    reader.close()


def test_large_batches_are_read_once(tmp_path: Path) -> None:
    data, chain = fmt.SegmentHeader(0, 1, 0).pack(), 0
    for _ in range(4):
        run = Run.of("s", [b"x" * scan.AHEAD] * 3, source="t").numbered(1, 1)
        header, encoded = packing.batch(
            fmt.Kind.RECORDS, [run], position=len(data), durable=0, time=0, clock=0, chain=chain
        )
        data, chain = data + encoded, header.checksum

    class Counting(Files):
        asked = 0

        def read(self, fd: int, size: int, offset: int) -> bytes:
            self.asked += size
            return super().read(fd, size, offset)

    scan.path_of(tmp_path, 0).write_bytes(data)
    files = Counting()
    reader = scan.SegmentReader(scan.path_of(tmp_path, 0), 0, files, limit=len(data))
    assert [header.records for header, _ in reader.batches(64, len(data))] == [3] * 4
    assert files.asked < len(data) + scan.AHEAD + 1000, "but for what it reads ahead at the beginning"
    reader.close()


def test_a_segment_file_with_the_name_of_another_is_damage(tmp_path: Path) -> None:
    path = scan.path_of(tmp_path, 64)
    path.write_bytes(fmt.SegmentHeader(0, 1, 0).pack())
    reader = scan.SegmentReader(path, 64)
    with pytest.raises(fmt.Damage, match="begins at position 0"):
        reader.header()
    reader.close()


@pytest.mark.parametrize("mended", [True, False])
def test_a_batch_that_does_not_continue_from_the_previous_one_is_damage_unless_that_was_mended(
    tmp_path: Path, mended: bool
) -> None:
    start, data = fmt.SegmentHeader(0, 1, 0).pack(), b""
    for chain in (0, 12345):
        fill: dict[str, int] = {"fill": 80} if mended else {}
        data += packing.batch(
            fmt.Kind.CLOSED, [], position=64 + len(data), durable=0, time=0, clock=0, chain=chain, **fill
        )[1]
    scan.path_of(tmp_path, 0).write_bytes(start + data)
    with scan.SegmentReader(scan.path_of(tmp_path, 0), 0) as reader:
        if mended:
            assert len(list(reader.batches(64, 64 + len(data)))) == 2, "behind what was mended anything may come"
            return
        with pytest.raises(fmt.Damage, match="does not continue"):
            list(reader.batches(64, 64 + len(data)))


def test_a_durable_mark_file_with_further_bytes_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "MARK").write_bytes(scan.pack_mark(77, 5))
    assert scan.look_at_mark(tmp_path, Files()) == scan.Mark(77, 5)
    (tmp_path / "MARK").write_bytes(scan.pack_mark(77, 5) + b"\0")
    assert scan.look_at_mark(tmp_path, Files()) == scan.Mark()
