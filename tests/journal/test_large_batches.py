"""Every reader of the journal finds a changed byte anywhere in a large batch.

Servers under load write large batches, so it is not enough that this holds for small ones.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.files import Files, SteppedFiles
from fyrehose.journal.recovery import Recovered, recover
from fyrehose.journal.writer import Writer
from fyrehose.offline.verify import verify
from fyrehose.records import Run

KIB = 1 << 10
MIB = 1 << 20
SIZES = (65 * KIB, 200 * KIB, MIB + 8, 8 * MIB)


class NoSync(SteppedFiles):
    """Files that are never synced, because no test here cuts the power."""

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self, directory: Path) -> None:
        pass


def places(size: int) -> list[int]:
    """Return offsets at the beginning, in the middle and at the end of *size* bytes, and around powers of two."""
    near = [0, size // 3, size // 2, size]
    near += [power for power in (4 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, MIB, 4 * MIB) if power < size]
    return sorted({at for middle in near for at in (middle - 1, middle, middle + 1) if 0 <= at < size})


@pytest.fixture(scope="module")
def payload() -> bytes:
    return Random(1).randbytes(8 * MIB)


@pytest.mark.parametrize("size", SIZES)
def test_checksum_of_a_large_body_covers_every_part_of_it(size: int, payload: bytes) -> None:
    body = bytearray(payload[:size])
    header = fmt.BatchHeader(fmt.Kind.RECORDS, False, size, 1, 1, 7, 64, 64, 1, 1, crc32c(body, 7))
    header.check(body)
    for at in places(size):
        body[at] ^= 0x10
        with pytest.raises(fmt.Damage, match="the body of the batch is damaged"):
            header.check(body)
        body[at] ^= 0x10
    header.check(body)


@pytest.fixture(params=[200 * KIB, MIB + 8], ids=["200 KiB", "1 MiB"])
def large(request: pytest.FixtureRequest, tmp_path: Path, payload: bytes) -> tuple[Path, int, int]:
    """Write a large batch and a small one; return the directory, and the range of the large body."""
    directory = tmp_path / "j"
    directory.mkdir()
    writer = Writer(directory, Recovered(directory=directory), 4 * MIB, True, NoSync())
    writer.open(1)
    begin = writer.position + fmt.BATCH_HEADER.size
    writer.commit([[Run.of("s", [payload[: request.param]], source="t").numbered(1, 1)]], 1, 1)
    end = writer.position
    writer.commit([[Run.of("s", [b"behind it"], source="t").numbered(2, 1)]], 1, 1)
    writer.close(in_order=True)
    return directory, begin, end


def flipped(directory: Path, at: int) -> None:
    with scan.path_of(directory, 0).open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_segment_reader_refuses_a_large_batch_with_a_flipped_byte(large: tuple[Path, int, int]) -> None:
    directory, begin, end = large
    for at in places(end - begin):
        flipped(directory, begin + at)
        reader = scan.SegmentReader(scan.path_of(directory, 0), 0)
        with pytest.raises(fmt.Damage):
            reader.batch(begin - fmt.BATCH_HEADER.size)
        reader.close()
        flipped(directory, begin + at)


def test_recovery_and_verify_find_a_flipped_byte_in_a_large_batch(large: tuple[Path, int, int]) -> None:
    directory, begin, end = large
    for at in (0, 64 * KIB, (end - begin) // 2, end - begin - 1):
        flipped(directory, begin + at)
        with pytest.raises(JournalCorrupt, match=f"damaged at byte {begin - fmt.BATCH_HEADER.size}"):
            recover(directory, Files())
        assert [problem.offset for problem in verify(directory).problems] == [begin - fmt.BATCH_HEADER.size]
        flipped(directory, begin + at)
    assert not verify(directory).problems
    assert recover(directory, NoSync()).streams.ends == {"s": 2}


@pytest.mark.parametrize("at", [0, 64 * KIB, 100 * KIB, 200 * KIB - 1])
def test_a_subscriber_never_receives_a_large_payload_with_a_flipped_byte(open_journal, payload: bytes, at: int) -> None:  # type: ignore[no-untyped-def]
    bench = open_journal()
    bench.append(payload[: 200 * KIB])
    bench.close()
    bench = open_journal()  # the body must be read from the disk now
    path = scan.path_of(bench.directory, 0)
    flipped(bench.directory, path.read_bytes().index(payload[:64]) + at)
    with pytest.raises(JournalCorrupt, match="the body of the batch is damaged"):
        bench.records()
