"""File systems on loop devices of our own whose power can be cut.

``EXT4_IOC_SHUTDOWN`` without flushing the log has the effect of a power cut on a file system: unsynced data is lost,
and nothing can be written any more; XFS has the same call.  Needs root.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path

#: The number of the ioctl, _IOR('X', 125, __u32), and its flag that discards the unwritten log of the file system.
SHUTDOWN, NOLOGFLUSH = 0x8004587D, 2
MNT_DETACH = 2
#: The minimal size of each file system, in bytes.
SIZES = {"ext4": 96 << 20, "xfs": 320 << 20}

_libc = ctypes.CDLL(None, use_errno=True)


class NotHere(Exception):
    """This test cannot run on this machine, for the reason in its message."""


class LoopDisk:
    """A file system in a file, mounted at ``where``.

    :raises NotHere: there is no root, no loop device, or no such file system
    """

    def __init__(self, directory: Path, fs: str = "ext4", options: str = "", size: int = 0) -> None:
        if os.geteuid():
            raise NotHere("only root may mount a disk and cut its power")
        for tool in (f"mkfs.{fs}", "losetup"):
            if shutil.which(tool) is None:
                raise NotHere(f"there is no {tool}")
        self.fs, self.options = fs, options
        self.where = directory / "disk"
        self.where.mkdir(parents=True)
        self.image = directory / "image"
        with self.image.open("wb") as file:
            file.truncate(size or SIZES[fs])
        _run(f"mkfs.{fs}", "-q", str(self.image))
        self.device = _run("losetup", "--find", "--show", str(self.image)).strip()
        try:
            self.mount()
        except NotHere:
            _run("losetup", "--detach", self.device)
            raise

    def mount(self) -> None:
        names = [os.fsencode(name) for name in (self.device, self.where, self.fs, self.options)]
        if _libc.mount(*names[:3], 0, names[3]):
            raise NotHere(f"{self.fs} ({self.options}) cannot be mounted: {os.strerror(ctypes.get_errno())}")

    def unmount(self) -> None:
        if _libc.umount2(os.fsencode(self.where), 0):
            raise OSError(ctypes.get_errno(), f"unmounting {self.where}: {os.strerror(ctypes.get_errno())}")

    def cut(self) -> None:
        """Cut the power: from now on nothing reaches the disk, and unsynced data is lost."""
        cut_power(self.where)

    def restart(self) -> None:
        """Switch the power on again: mount the file system as the power cut left it."""
        self.unmount()
        self.mount()

    def close(self) -> None:
        """Unmount the file system and remove its image; processes with open files there lose them later."""
        try:
            _libc.umount2(os.fsencode(self.where), MNT_DETACH)
        finally:
            _run("losetup", "--detach", self.device)
            self.image.unlink()


def cut_power(where: Path) -> None:
    """Cut the power of the file system with the path ``where``, if it still has any."""
    try:
        fd = os.open(where, os.O_RDONLY)
    except OSError as error:
        if error.errno == errno.EIO:
            return  # after a shutdown, XFS does not even open a directory
        raise
    try:
        fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", NOLOGFLUSH))
    finally:
        os.close(fd)


def _run(*words: str) -> str:
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise NotHere(f"{' '.join(words)}: {ended.stderr.strip()}")
    return ended.stdout
