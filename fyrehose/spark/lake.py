"""The lake: the archived records of a journal as Parquet files, and the log that lists the committed files.

    LAKE/_fyrehose/LOCK                 held by the one archive that writes
    LAKE/_fyrehose/000000000001.json    commits, each once: the range of positions, what is in it, and where
    LAKE/data/round=START-END-RANDOM/stream_key=KEY/date=YYYY-MM-DD/*.parquet

A round is written to a new directory, synced, and committed by one file that appears in the log.  So every record is
in the lake exactly once or not at all, whenever the archive is killed; the next archive removes rounds without a
commit.  It resumes at the end of the last commit; there is no second checkpoint that could disagree.

KEY is the stream's name if that is a plain word, and otherwise a digest of it, because names may have any characters.
The name itself is a column of the files.
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

#: Version of the log's format.
VERSION = 1
_LOG = "_fyrehose"
_DATA = "data"


@attrs.frozen(slots=True, kw_only=True)
class File:
    """A Parquet file of one stream, or of several if the round was not partitioned by stream.

    :ivar path: relative to the round's directory
    :ivar first, last: the lowest and the highest number in it
    """

    path: str
    rows: int
    size: int
    stream: str | None
    first: int
    last: int


@attrs.frozen(slots=True, kw_only=True)
class Commit:
    """A committed round: all records of the journal from position ``start`` to ``end``.

    :ivar chain: the checksum of its last batch, from which the journal continues
    :ivar gaps: (stream, first, last) that the journal declares lost
    :ivar time: when it was committed, in us since 1970 UTC
    """

    start: int
    end: int
    chain: int | None
    directory: str
    rows: int
    files: tuple[File, ...] = ()
    gaps: tuple[tuple[str, int, int], ...] = ()
    time: int = 0

    def packed(self) -> bytes:
        """Return the contents of its file in the log."""
        return json.dumps({"version": VERSION, **attrs.asdict(self)}, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def unpacked(cls, data: bytes) -> Commit:
        """Parse the contents of a file in the log.

        :raises ValueError: it is not a commit, or one of another version
        """
        fields: dict[str, Any] = json.loads(data)
        if fields.pop("version", None) != VERSION:
            raise ValueError("it was written by another version of Fyrehose")
        fields["files"] = tuple(File(**file) for file in fields["files"])
        fields["gaps"] = tuple((stream, first, last) for stream, first, last in fields["gaps"])
        return cls(**fields)


@attrs.define(eq=False)
class Lake:
    """A lake in a directory, on this machine or on a shared file system."""

    path: Path
    _lock: int = attrs.field(default=-1, init=False)

    @classmethod
    def at(cls, location: str | Path) -> Lake:
        """Return the lake at a path or ``file://`` URL, which need not exist yet.

        :raises JournalError: it is another kind of URL
        """
        text = str(location).removeprefix("file://")
        if "://" in text:
            raise JournalError(f"the lake {text} should be on a file system; object storage can be mounted as one")
        return cls(Path(text).absolute())

    @classmethod
    def existing(cls, location: str | Path) -> Lake:
        """Return the lake at a path, so that a mistyped path is not read as an empty lake.

        :raises JournalError: there is no lake
        """
        lake = cls.at(location)
        if not lake._log.is_dir():
            raise JournalError(f"{lake} is no lake: nothing was archived there")
        return lake

    def __str__(self) -> str:
        return str(self.path)

    @property
    def data(self) -> Path:
        """Return the directory of the rounds."""
        return self.path / _DATA

    def commits(self) -> list[Commit]:
        """Return the committed rounds in the order of their positions; empty if the lake does not exist yet.

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
        """Take the lock that allows writing.

        :raises JournalLocked: another process holds it
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
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def clean(self) -> list[str]:
        """Remove rounds that were not committed, and return their names; requires the lock."""
        counted = {commit.directory for commit in self.commits()}
        removed = [path for path in self.data.glob("round=*") if path.name not in counted]
        for path in removed:
            shutil.rmtree(path, ignore_errors=True)  # The next call retries; uncommitted files are never read.
        for path in self._log.glob("*.new"):
            path.unlink()
        return [path.name for path in removed]

    def begin(self, start: int, end: int) -> Path:
        """Return a unique directory for a round, which is not created yet."""
        return self.data / f"round={start:016x}-{end:016x}-{uuid.uuid4().hex[:12]}"

    def commit(self, commit: Commit) -> None:
        """Commit a round durably.

        :raises JournalLocked: another process has committed in the meantime
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
            os.link(temporary, path)  # Unlike a rename, a link fails if the file exists.
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
    """Describe the Parquet files that Spark wrote for a round, from their footers."""
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
    """Return the lowest and the highest value of a column; None if the footer has no statistics."""
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
