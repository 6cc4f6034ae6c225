"""Simulate the disks of a cluster's servers, which fail at a write or a sync; read and copy the journals on them."""

from __future__ import annotations

from pathlib import Path

from server import Disk, Server
from world import Violation

from fyrehose.journal import scan
from fyrehose.records import Buffer
from tests.doubles.disk import SECTOR, Kept, Synced, Tree

#: The message of a simulated disk error.
FAULT = "simulated fault"


class FaultyDisk(Disk):
    """A disk whose next write or sync may fail.

    :ivar fault: the error number of the next failure; 0 if none is planned
    :ivar countdown: how many writes and syncs still succeed before the failure
    """

    fault = 0
    countdown = 0

    def __init__(self, directory: Path, kept: Kept, server: Server) -> None:
        super().__init__(directory, kept, server)
        #: the durable mark that survives any power cut
        self.certain_mark = mark_of(kept.synced)

    def break_soon(self, fault: int, after: int) -> None:
        self.fault, self.countdown = fault, after

    def _may_fail(self) -> None:
        if not self.fault:
            return
        self.countdown -= 1
        if self.countdown < 0:
            fault, self.fault = self.fault, 0
            raise OSError(fault, FAULT)

    def _check_deletion(self, name: str) -> None:
        """Check that a segment that is deleted lies beyond the durable mark, where nothing was acknowledged."""
        if int(name.removesuffix(scan.SUFFIX), 16) < self.certain_mark:
            raise Violation(f"{self.server.name} deletes {name} below its durable mark, {self.certain_mark}")

    def write(self, fd: int, data: Buffer, offset: int) -> None:
        try:
            self._may_fail()
        except OSError:
            # A write of less than a sector, such as that of MARK, is not torn.
            part = self.server.world.random.randrange(len(bytes(data)) // SECTOR + 1) * SECTOR
            super().write(fd, bytes(data)[:part], offset)
            raise
        super().write(fd, data, offset)

    def sync(self, fd: int) -> None:
        self._may_fail()
        super().sync(fd)
        if self._fds[fd] == self._names.get(scan.MARK_NAME) and self.log[-1:] == [Synced(self._fds[fd])]:
            self.certain_mark = scan.read_mark(self.directory)


def mark_of(tree: Tree) -> int:
    """Return the durable mark in the file MARK of *tree*; 0 if there is none."""
    content = tree.contents.get(tree.names.get(scan.MARK_NAME, -1), b"")
    return int.from_bytes(content[:8], "little")


def bytes_between(directory: Path, start: int, stop: int) -> bytes:
    """Return the bytes of the journal in *directory* from *start* to *stop*."""
    found = bytearray()
    for segment in reversed(scan.segments(directory)):
        begin = max(start, segment.base)
        if begin < stop:
            with segment.path.open("rb") as file:
                file.seek(begin - segment.base)
                found[:0] = file.read(stop - begin)
            stop = begin
    return bytes(found)


def copy_journal(directory: Path, mark: int) -> dict[str, bytes]:
    """Return the files of the journal in *directory* up to *mark*, as an operator copies them."""
    files = {scan.MARK_NAME: scan.pack_mark(mark, 0)}
    for segment in scan.segments(directory):
        if segment.base < mark:
            files[segment.path.name] = segment.path.read_bytes()[: mark - segment.base]
    return files
