"""Every function that reads a journal's files closes them, also if they are damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from fyrehose.errors import FyrehoseError
from fyrehose.journal import scan, snapshots
from fyrehose.journal.files import Files
from fyrehose.journal.quarantine import set_aside
from fyrehose.journal.recovery import recover
from fyrehose.offline import dump
from fyrehose.offline import mirror as replica
from fyrehose.offline.backup import Backup
from fyrehose.offline.mirror import Replica
from fyrehose.offline.places import Directory
from fyrehose.offline.verify import verify
from fyrehose.offline.view import durable_by_batches, look
from fyrehose.offline.walk import Log, walk
from tests.doubles.disk import WatchedFiles, put


def back_up(directory: Path) -> None:
    with Replica(directory.with_name("backup"), WatchedFiles()) as replica:
        Backup(Directory(directory), replica, mirror=True).run()


def look_at_oldest(directory: Path) -> None:
    reader = Directory(directory).open(scan.segments(directory)[0].base, 1 << 40)
    try:
        snapshots.needed_by(reader)
    finally:
        reader.close()


USES: dict[str, Callable[[Path], object]] = {
    "back up": back_up,
    "continue a backup": lambda directory: replica.tail_of(directory),
    "dump": lambda directory: list(dump.runs(directory)),
    "look": look,
    "look at the batches": durable_by_batches,
    "look at the oldest": look_at_oldest,
    "quarantine": lambda directory: set_aside(directory, WatchedFiles()),
    "reach": lambda directory: replica.reach(Directory(directory)),
    "recover": lambda directory: recover(directory, WatchedFiles(), verify=1 << 20),
    "verify": verify,
    "walk": lambda directory: list(walk(Log.of(directory), everything=True)),
}


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("state", ["whole", "header", "begin", "end", "cut", "missing", "newer", "torn"])
def test_a_start_leaves_no_file_open_whatever_is_damaged(
    open_journal, tmp_path: Path, state: str, copied: bool
) -> None:
    bench = open_journal(segment_size=1024)
    for i in range(6):
        bench.append(b"%d" % i * 300)
    bench.crash()
    mark = scan.look_at_mark(bench.directory, Files())
    bench.directory.joinpath("MARK").write_bytes(scan.pack_mark(mark.durable, mark.begin, (1, 1) if copied else (0, 0)))
    first, second = scan.segments(bench.directory)[:2]
    data = bytearray(second.path.read_bytes())
    at = {"header": 10, "begin": 70, "end": len(data) - 10}.get(state)
    if at is not None:
        data[at] ^= 1
    elif state == "cut":
        del data[-100:]
    elif state == "newer":
        data[8] = 9
        data[60:64] = crc32c(bytes(data[:60])).to_bytes(4, "little")
    second.path.write_bytes(data)
    if state == "missing":
        first.path.unlink()
    elif state == "torn":
        with scan.segments(bench.directory)[-1].path.open("r+b") as file:
            file.seek(mark.durable - scan.segments(bench.directory)[-1].base)
            file.write(b"FYB, and nothing else")
    whole = {path.name: path.read_bytes() for path in bench.directory.iterdir()}
    failed = 0
    for number, (name, use) in enumerate(USES.items()):
        (tmp_path / str(number)).mkdir()
        directory = put(tmp_path / str(number) / "j", whole)
        before = descriptors()
        try:
            use(directory)
        except FyrehoseError:
            failed += 1
        assert descriptors() == before, name
    assert failed or state in ("whole", "torn", "missing")
