"""Simulate the contents of a disk after a power cut: all states that are possible, not only the likely ones.

    RecordingFiles -> log of the calls -> images(files, upto, ...) -> {name: content}, one for each state

    RecordingFiles -> what_stays(files, upto) -> the same files after a kill of the process alone: nothing is lost, and
                      nothing more is synced

Synced data is kept.  Of the rest, each write, each change of a length and each change of a name may be kept or lost,
independently of those before and after it, and a write may be kept in part, by sectors (as in Pillai et al., "All file
systems are not created equal", OSDI 2014).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import attrs

from fyrehose.journal.files import SteppedFiles
from fyrehose.records import Buffer

#: How many bytes a disk writes completely or not at all.
SECTOR = 512


@attrs.frozen
class NameAdded:
    """``inode`` got another ``name``, replacing the name ``old`` if that is not empty."""

    name: str
    inode: int
    old: str = ""


@attrs.frozen
class NameRemoved:
    name: str
    inode: int


@attrs.frozen
class Wrote:
    inode: int
    offset: int
    data: bytes


@attrs.frozen
class Resized:
    """``inode`` was resized to ``size``; with ``grow``, only if it was shorter."""

    inode: int
    size: int
    grow: bool = False


@attrs.frozen
class Synced:
    """``inode`` was synced or, if it is None, the names in the directory."""

    inode: int | None


@attrs.frozen
class Noted:
    """An event outside of the disk, such as an acknowledgement."""

    what: object


Step = NameAdded | NameRemoved | Wrote | Resized | Synced | Noted


@attrs.frozen
class Tree:
    """Names and contents of the files in a directory.

    :ivar names: the inode of each name
    :ivar contents: the content of each inode, also of inodes without a name
    """

    names: dict[str, int] = attrs.field(factory=dict)
    contents: dict[int, bytearray] = attrs.field(factory=dict)

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> Tree:
        """Return a tree of *files*, each with an inode of its own."""
        return cls(
            {name: number for number, name in enumerate(files)},
            {number: bytearray(data) for number, data in enumerate(files.values())},
        )

    def copy(self) -> Tree:
        return Tree(dict(self.names), {inode: bytearray(content) for inode, content in self.contents.items()})

    def files(self) -> dict[str, bytes]:
        """Return the content of each name."""
        return {name: bytes(self.contents.get(inode, b"")) for name, inode in self.names.items()}

    def apply(self, step: Step) -> None:
        """Apply *step*; a sync changes nothing."""
        names = self.names
        if isinstance(step, NameAdded):
            if names.get(step.old) == step.inode:
                del names[step.old]
            names[step.name] = step.inode
        elif isinstance(step, NameRemoved):
            if names.get(step.name) == step.inode:
                del names[step.name]
        elif isinstance(step, Wrote | Resized):
            content = self.contents.setdefault(step.inode, bytearray())
            size = step.size if isinstance(step, Resized) else step.offset
            if len(content) < size:
                content += bytes(size - len(content))
            if isinstance(step, Wrote):
                content[step.offset : step.offset + len(step.data)] = step.data
            elif not step.grow:
                del content[step.size :]


@attrs.frozen
class Kept:
    """A directory whose files are not all synced.

    :ivar synced: the state that survives a power cut
    :ivar pending: later steps in order, which are not synced
    """

    synced: Tree
    pending: tuple[Step, ...] = ()

    def files(self) -> dict[str, bytes]:
        """Return the files as a process sees them, including steps that are not synced."""
        if not self.pending:
            return self.synced.files()
        tree = self.synced.copy()
        for step in self.pending:
            tree.apply(step)
        return tree.files()


class RecordingFiles(SteppedFiles):
    """Performs all calls on real files in one directory, and records them.

    :ivar log: the recorded steps, in order
    :ivar before: the synced state of the directory at the beginning
    :param kept: the state of the directory, if not all of it is synced
    """

    def __init__(self, directory: Path, kept: Kept | None = None) -> None:
        self.directory = directory
        if kept is None:
            kept = Kept(Tree.of({path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}))
        self.log: list[Step] = list(kept.pending)
        self.before = kept.synced
        tree = Tree(dict(kept.synced.names))
        for step in kept.pending:
            if isinstance(step, NameAdded | NameRemoved):
                tree.apply(step)
        self._names = tree.names
        used = {*kept.synced.names.values(), *kept.synced.contents}
        self._inodes = max(used | {step.inode for step in kept.pending if isinstance(step, NameAdded)}, default=-1) + 1
        self._fds: dict[int, int] = {}

    def note(self, what: object) -> None:
        self.log.append(Noted(what))

    def open(self, path: Path, flags: int) -> int:
        """Open a file, and record that its name was added or its content removed."""
        fd = super().open(path, flags)
        if path.name not in self._names:
            self._names[path.name] = self._inodes
            self.log.append(NameAdded(path.name, self._inodes))
            self._inodes += 1
        self._fds[fd] = self._names[path.name]
        if flags & os.O_TRUNC:
            self.log.append(Resized(self._fds[fd], 0))
        return fd

    def close(self, fd: int) -> None:
        super().close(fd)
        self._fds.pop(fd, None)

    def write(self, fd: int, data: Buffer, offset: int) -> None:
        super().write(fd, data, offset)
        self.log.append(Wrote(self._fds[fd], offset, bytes(data)))

    def identity(self, fd: int) -> tuple[int, int]:
        """Return the same identity for every file, so that images of this directory do not count as copies."""
        return 0, 0

    def random(self, size: int) -> bytes:
        """Return the same bytes each time, so that a seed replays exactly."""
        return bytes(range(1, size + 1))

    def sync(self, fd: int) -> None:
        self.log.append(Synced(self._fds[fd]))

    def allocate(self, fd: int, offset: int, size: int) -> None:
        super().allocate(fd, offset, size)
        self.log.append(Resized(self._fds[fd], offset + size, grow=True))

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        self.log.append(Resized(self._fds[fd], size))

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        inode = self._names[new.name] = self._names.pop(old.name)
        self.log.append(NameAdded(new.name, inode, old.name))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        if path.name in self._names:
            self.log.append(NameRemoved(path.name, self._names.pop(path.name)))

    def sync_directory(self, directory: Path) -> None:
        self.log.append(Synced(None))


class WatchedFiles(SteppedFiles):
    """Writes real files without syncing them, and records which of them a power cut would damage.

    This is so cheap that a test can check after each of very many commits.

    :ivar suffixes: suffixes of the names of the files that are watched, such as ``.segment``
    :ivar unsynced: descriptors of watched files that were written and not synced since
    :ivar syncs: the number of syncs
    """

    def __init__(self, *suffixes: str) -> None:
        self.suffixes = suffixes
        self.unsynced: set[int] = set()
        self.syncs = 0
        self._watched: set[int] = set()

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        self.unsynced.discard(fd)
        if path.name.endswith(self.suffixes):
            self._watched.add(fd)
        else:
            self._watched.discard(fd)
        return fd

    def write(self, fd: int, data: Buffer, offset: int) -> None:
        super().write(fd, data, offset)
        if fd in self._watched:
            self.unsynced.add(fd)

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        if fd in self._watched:
            self.unsynced.add(fd)

    def sync(self, fd: int) -> None:
        self.syncs += 1
        self.unsynced.discard(fd)

    def sync_directory(self, directory: Path) -> None:
        self.syncs += 1


class UnsyncedFiles(SteppedFiles):
    """Writes real files without syncing them, and records what a power cut would undo.

    :ivar unsynced: the files that were written or cut, and the directories in which a name was made, changed or removed
    """

    def __init__(self) -> None:
        self.unsynced: set[Path] = set()

    def _path(self, fd: int) -> Path:
        return Path(f"/proc/self/fd/{fd}").readlink()

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT and not path.exists():
            self.unsynced.add(path.parent)
        return super().open(path, flags)

    def write(self, fd: int, data: Buffer, offset: int) -> None:
        super().write(fd, data, offset)
        self.unsynced.add(self._path(fd))

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        self.unsynced.add(self._path(fd))

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.unsynced.add(new.parent)
        if old in self.unsynced:
            self.unsynced ^= {old, new}

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.unsynced.add(path.parent)
        self.unsynced.discard(path)

    def sync(self, fd: int) -> None:
        self.unsynced.discard(self._path(fd))

    def sync_directory(self, directory: Path) -> None:
        self.unsynced.discard(directory)


def images(files: RecordingFiles, upto: int, dice: Random, count: int) -> Iterator[dict[str, bytes]]:
    """Yield possible contents of the disk after a power cut at ``upto`` steps.

    They have all unsynced steps, none of them, each of them alone, all but each of them, and ``count`` random choices,
    which may include torn writes.
    """
    pending = _pending(files.log, upto)
    choices: list[Mapping[int, Step]] = [pending, {}]
    if len(pending) > 1:
        choices += [{at: step} for at, step in pending.items()]
        choices += [{at: step for at, step in pending.items() if at != left} for left in pending]
    if pending:
        choices += [_torn(pending, dice) for _ in range(count)]
    for chosen in choices:
        yield _replay(files, upto, pending, chosen).files()


def put(directory: Path, image: Mapping[str, bytes]) -> Path:
    """Write the files of *image* into *directory*, which may be new; return it."""
    directory.mkdir(exist_ok=True)
    for name, content in image.items():
        directory.joinpath(name).write_bytes(content)
    return directory


def image(files: RecordingFiles, upto: int, dice: Random) -> dict[str, bytes]:
    """Return a random one of the states that :func:`images` yields; writes may be torn."""
    pending = _pending(files.log, upto)
    return _replay(files, upto, pending, _torn(pending, dice)).files()


def what_stays(files: RecordingFiles, upto: int) -> Kept:
    """Return what the next process finds if the one that uses *files* is killed after ``upto`` steps.

    The kernel has everything, so nothing is lost; but a power cut may still take what was not synced.
    """
    pending = _pending(files.log, upto)
    return Kept(_replay(files, upto, pending, {}), tuple(pending.values()))


def _pending(log: list[Step], upto: int) -> dict[int, Step]:
    """Return the steps that are not synced, by their index in the log."""
    pending: dict[int, Step] = {}
    for at, step in enumerate(log[:upto]):
        if isinstance(step, Synced):
            pending = {n: other for n, other in pending.items() if _of(other) != step.inode}
        elif not isinstance(step, Noted):
            pending[at] = step
    return pending


def _of(step: Step) -> int | None:
    """Return the inode whose sync makes *step* durable; None means a sync of the directory."""
    return step.inode if isinstance(step, Wrote | Resized) else None


def _torn(pending: Mapping[int, Step], dice: Random) -> dict[int, Step]:
    """Return a random selection of the steps, some of them torn."""
    chosen: dict[int, Step] = {}
    for at, step in pending.items():
        if dice.random() < 0.5:
            continue
        if isinstance(step, Wrote) and dice.random() < 0.5:
            first = SECTOR - step.offset % SECTOR
            cuts = [0, *range(first, len(step.data), SECTOR), len(step.data)]
            kept = dice.randrange(len(cuts))
            begin, end = sorted((cuts[kept], cuts[dice.randrange(len(cuts))]))
            step = Wrote(step.inode, step.offset + begin, step.data[begin:end])
        chosen[at] = step
    return chosen


def _replay(files: RecordingFiles, upto: int, pending: Mapping[int, Step], chosen: Mapping[int, Step]) -> Tree:
    tree = files.before.copy()
    for at, step in enumerate(files.log[:upto]):
        taken = chosen.get(at) if at in pending else step
        if taken is not None:
            tree.apply(taken)
    return tree
