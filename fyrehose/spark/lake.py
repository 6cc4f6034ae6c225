"""The lake: what was archived of a journal, as Parquet files, and the log that says which of them count.

    LAKE/_fyrehose/LOCK                 held by the one archive that writes
    LAKE/_fyrehose/000000000001.json    commits, each once: the range of positions, what is in it, and where
    LAKE/data/round=START-END-RANDOM/stream_key=KEY/date=YYYY-MM-DD/*.parquet

A round is written to a directory that nobody knows of, then synced, then committed: a file of the log appears, or it
does not.  So every record is in the lake once or not at all, whatever was killed when; what was not committed is
removed by the next archive.  Where to go on is the end of the last commit: there is no second checkpoint to disagree.

A stream's name is never a file name: KEY is the name where it is a plain word, and a digest of it where it is not.  The
name itself is a column of the files.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from fyrehose.errors import JournalError, JournalLocked

#: The version of what the log says.
VERSION = 1
_LOG = "_fyrehose"
_DATA = "data"


@attrs.frozen(slots=True, kw_only=True)
class File:
    """A Parquet file of one stream, or of several where a round was not divided by them.

    :ivar path: below the round's directory
    :ivar first, last: the least and the greatest number in it
    """

    path: str
    rows: int
    size: int
    stream: str | None
    first: int
    last: int


@attrs.frozen(slots=True, kw_only=True)
class Commit:
    """A round that counts: everything of the journal from position ``start`` to ``end``.

    :ivar chain: the checksum of the last batch of it, from which the journal goes on
    :ivar gaps: (stream, first, last) that the journal declares as lost
    """

    start: int
    end: int
    chain: int | None
    directory: str
    rows: int
    files: tuple[File, ...] = ()
    gaps: tuple[tuple[str, int, int], ...] = ()
    time: int = 0  #: when it was made, us since 1970 UTC

    def packed(self) -> bytes:
        """What its file holds."""
        return json.dumps({"version": VERSION, **attrs.asdict(self)}, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def unpacked(cls, data: bytes) -> Commit:
        """:raises ValueError: it is none"""
        said: dict[str, Any] = json.loads(data)
        if said.pop("version", None) != VERSION:
            raise ValueError("it was written by another version of Fyrehose")
        said["files"] = tuple(File(**file) for file in said["files"])
        said["gaps"] = tuple((stream, first, last) for stream, first, last in said["gaps"])
        return cls(**said)


@attrs.define(eq=False)
class Lake:
    """A lake in a directory, on this machine or on a shared file system."""

    path: Path
    _lock: int = attrs.field(default=-1, init=False)

    @classmethod
    def at(cls, location: str | Path) -> Lake:
        """The lake that people write as a path.

        :raises JournalError: it is no path
        """
        text = str(location).removeprefix("file://")
        if "://" in text:
            raise JournalError(f"the lake {text} should be on a file system; object storage can be mounted as one")
        return cls(Path(text).absolute())

    @classmethod
    def existing(cls, location: str | Path) -> Lake:
        """The same, where there is one: what reads takes a wrong path for no empty lake.

        :raises JournalError: there is none
        """
        lake = cls.at(location)
        if not lake._log.is_dir():
            raise JournalError(f"{lake} is no lake: nothing was archived there")
        return lake

    def __str__(self) -> str:
        return str(self.path)

    @property
    def data(self) -> Path:
        """What the rounds are in."""
        return self.path / _DATA

    def commits(self) -> list[Commit]:
        """Every round that counts, in the order of their positions; none where there is no lake yet.

        :raises JournalError: the log is damaged
        """
        found: list[Commit] = []
        for number, path in enumerate(sorted(self._log.glob("*.json")), 1):
            try:
                commit = Commit.unpacked(path.read_bytes())
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise JournalError(f"{path} is damaged: {error}; put it back from a copy") from error
            if path != self._entry(number) or (found and commit.start != found[-1].end):
                raise JournalError(f"{path} does not follow on the commit before it: one is missing in {self._log}")
            found.append(commit)
        return found

    def lock(self) -> None:
        """Be the one that writes.

        :raises JournalLocked: another process is
        """
        self._log.mkdir(parents=True, exist_ok=True)
        self.data.mkdir(exist_ok=True)
        fd = os.open(self._log / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise JournalLocked(f"another archive writes to the lake {self.path}; one at a time") from error
        self._lock = fd

    def unlock(self) -> None:
        """Let others write."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def clean(self) -> list[str]:
        """Remove rounds that do not count; their names.  Only for who has the lock."""
        counted = {commit.directory for commit in self.commits()}
        removed = [path for path in self.data.glob("round=*") if path.name not in counted]
        for path in removed:
            shutil.rmtree(path, ignore_errors=True)  # what is left is tried again next time, and is never read
        for path in self._log.glob("*.new"):
            path.unlink()
        return [path.name for path in removed]

    def begin(self, start: int, end: int) -> Path:
        """A directory for a round, which nobody else has."""
        return self.data / f"round={start:016x}-{end:016x}-{uuid.uuid4().hex[:12]}"

    def commit(self, commit: Commit) -> None:
        """Make a round count, durably and once.

        :raises JournalLocked: another process has committed meanwhile
        """
        if commit.directory:
            _sync_tree(self.data / commit.directory)
            _sync(self.data)
        path = self._entry(len(self.commits()) + 1)
        temporary = path.with_suffix(".new")
        with temporary.open("wb") as file:
            file.write(commit.packed())
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # fails where it is there, which a rename does not
        except FileExistsError as error:
            raise JournalLocked(f"{path} is there already: another archive writes to the lake {self.path}") from error
        finally:
            temporary.unlink()
        _sync(self._log)

    @property
    def _log(self) -> Path:
        return self.path / _LOG

    def _entry(self, number: int) -> Path:
        return self._log / f"{number:012}.json"


def round_files(directory: Path) -> Iterator[File]:
    """The Parquet files of a round that Spark has written, by their own footers."""
    from pyarrow import parquet

    for path in sorted(directory.rglob("*.parquet")):
        footer = parquet.read_metadata(path)
        names = [footer.schema.column(i).path for i in range(footer.num_columns)]
        streams = _extremes(footer, names.index("stream"))
        seqs = _extremes(footer, names.index("seq"))
        yield File(
            path=str(path.relative_to(directory)),
            rows=footer.num_rows,
            size=path.stat().st_size,
            stream=streams[0] if streams is not None and streams[0] == streams[1] else None,
            first=seqs[0] if seqs is not None else 0,
            last=seqs[1] if seqs is not None else 0,
        )


def _extremes(footer: Any, column: int) -> tuple[Any, Any] | None:
    """The least and the greatest value of a column; None where a footer does not tell."""
    found = [footer.row_group(i).column(column).statistics for i in range(footer.num_row_groups)]
    if not found or any(one is None or not one.has_min_max for one in found):
        return None
    return min(one.min for one in found), max(one.max for one in found)


def _sync_tree(directory: Path) -> None:
    for parent, _, files in os.walk(directory):
        for name in files:
            _sync(Path(parent, name))
        _sync(Path(parent))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
