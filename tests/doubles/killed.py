"""End a journal of this process as the kernel ends the journal of a process that is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def close_files(directory: Path) -> None:
    """Close all files in *directory* that this process has open, which also releases the lock of a journal.

    Nothing is written any more; what was written stays, as it does in the kernel.
    """
    for fd, _ in _descriptors(directory):
        os.close(fd)


def opened(directory: Path) -> list[Path]:
    """Return the paths of the files in *directory* that this process has open; that of a deleted file is another."""
    return [path for _, path in _descriptors(directory)]


def _descriptors(directory: Path) -> Iterator[tuple[int, Path]]:
    for each in list(Path("/proc/self/fd").iterdir()):
        try:
            path = each.readlink()
        except OSError:  # that of the listing itself
            continue
        if path.is_relative_to(directory):
            yield int(each.name), path
