"""Where the files of a lake are: in a directory, or in an object store (``s3://BUCKET/PATH``).

Object stores are reached through delta-rs, for the log as well as for Parquet files, so that one set of credentials
serves both: those of the AWS tools, from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_PROFILE``, ``AWS_REGION``,
``AWS_ENDPOINT_URL``, ``AWS_ALLOW_HTTP``), from their files, or from the machine's role.  A store can be pickled; it
contains no credentials, so that each worker uses its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import attrs
import pyarrow as pa
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from fyrehose.errors import ConfigError, JournalUnreachable

_BACKTRACE = re.compile(r"\n\s*0: ")
#: Bytes of a file that are written at a time, because Parquet writes each page separately, and pages may be small.
_BUFFER = 1 << 20
#: Options that keep two writers from creating the same version of the log, because a put of an existing object fails.
_OPTIONS = {"aws_conditional_put": "etag"}


@attrs.frozen
class LakeStore:
    """The location of a lake: a directory, or a path in an object store.

    :ivar uri: an absolute path, or the URL of an object store
    """

    uri: str

    @classmethod
    def at(cls, location: str | Path) -> LakeStore:
        """Return the store at a path, a ``file://`` URL, or an ``s3://`` URL.

        :raises ConfigError: it is another kind of URL, or names no bucket
        """
        text = str(location).removeprefix("file://")
        scheme, separator, path = text.partition("://")
        if separator and scheme in ("s3", "s3a"):
            if not path.strip("/") or path.startswith("/"):
                raise ConfigError(f"invalid lake {text!r}: expected s3://BUCKET/PATH")
            return cls(f"s3://{path.strip('/')}")
        if separator:
            raise ConfigError(f"invalid lake {text!r}: expected a directory or s3://BUCKET/PATH")
        return cls(str(Path(text).absolute()))

    def __str__(self) -> str:
        return self.uri

    @property
    def remote(self) -> bool:
        """Return whether this is an object store."""
        return "://" in self.uri

    @property
    def directory(self) -> Path:
        """Return the directory of a store that is not remote."""
        assert not self.remote
        return Path(self.uri)

    @property
    def options(self) -> dict[str, str] | None:
        """Return the storage options with which delta-rs opens a table here."""
        return dict(_OPTIONS) if self.remote else None

    def below(self, name: str) -> LakeStore:
        """Return the store of a path within this store."""
        return LakeStore(f"{self.uri}/{name}")

    def relative(self, uri: str) -> str:
        """Return the path, within this store, of a file that delta-rs names by its URI."""
        return unquote(uri).removeprefix("file://").removeprefix(f"{self.uri}/")

    def files(self) -> fs.FileSystem:
        """Return a PyArrow file system with this store as its root."""
        if self.remote:
            return fs.PyFileSystem(DeltaStorageHandler(self.uri, self.options))
        return fs.SubTreeFileSystem(self.uri, fs.LocalFileSystem())

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Return the size in bytes of each file; None for a missing file."""
        if not self.remote:
            return [_size(self.directory / path) for path in paths]
        with self.explained():
            # List the store, because one request lists a thousand files.
            listed = self.files().get_file_info(fs.FileSelector("", recursive=True, allow_not_found=True))
        known = {info.path: info.size for info in listed}
        return [known.get(path) for path in paths]

    @contextmanager
    def writing(self, path: str) -> Iterator[pa.NativeFile]:
        """Open a new file; it is durable when the context ends."""
        if not self.remote:
            (self.directory / path).parent.mkdir(parents=True, exist_ok=True)
        with self.explained(), self.files().open_output_stream(path, buffer_size=_BUFFER) as file:
            yield file
        if not self.remote:
            for durable in (self.directory / path, (self.directory / path).parent, self.directory):
                sync(durable)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise errors of an object store again with a text of one line, because the texts of delta-rs have many lines.

        :raises JournalUnreachable: the object store cannot be reached, or refuses
        """
        try:
            yield
        except (OSError, DeltaError) as error:
            if not unavailable(error):
                raise
            raise JournalUnreachable(
                f"the object store of {self} failed: {plain(error)}; see AWS_ENDPOINT_URL, AWS_REGION and the "
                "credentials, and whether the bucket exists"
            ) from error


def unavailable(error: Exception) -> bool:
    """Return whether an error means that an object store is unavailable, and not that a file is damaged."""
    text = str(error)
    return "Generic S3 error" in text or ("Error performing " in text and not isinstance(error, FileNotFoundError))


def plain(error: Exception) -> str:
    """Return the text of an error of delta-rs in one line, without its prefixes."""
    whole = _BACKTRACE.split(str(error))[0]
    lines = [line.replace("\x1b[31m↳\x1b[0m", " ").strip() for line in whole.splitlines()]
    text = " ".join(" ".join(line for line in lines if line).split())
    return text if "↳" in str(error) else text.rpartition("rror: ")[2]


def sync(path: Path) -> None:
    """Make a file or a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
