"""Where a journal is: a directory, or a server that ``fyrehose journal serve`` started.

    in: a path or http://HOST:PORT      out: the durable mark, segments, their indexes and their bytes

Both are read through the journal's own reader (journal/scan.py), which asks for files; over HTTP a file is an address,
and reading is a request for a range.  Nobody is asked to stop writing, rolling or deleting meanwhile.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPSConnection, InvalidURL
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import attrs

from fyrehose.errors import ConfigError, JournalError, JournalUnreachable
from fyrehose.journal import holds as readers
from fyrehose.journal import scan
from fyrehose.journal.files import Files
from fyrehose.journal.format import UNKNOWN
from fyrehose.journal.offline.view import Extent, View, look
from fyrehose.web.tokens import authorization, read_token

#: What is read at a time, in bytes: over HTTP smaller ranges cost more than they carry.
CHUNK = 4 << 20
#: How long a server may be silent, in seconds, and how often it is asked again.
TIMEOUT = 30.0
#: The variable of the environment that names the file with a server's token.
TOKEN_FILE = "FYREHOSE_TOKEN_FILE"
TRIES = 4


class Missing(Exception):
    """There is no such segment, or there is none any more."""


class Place(Protocol):
    """Where a journal is; can be pickled."""

    def view(self) -> View:
        """What is there, and durable.

        :raises JournalUnreachable: no journal is there, or nothing answers
        :raises JournalError: what answers is something else
        """

    def name(self, base: int) -> str:
        """The segment at ``base``, as people are told of it."""

    def index(self, base: int) -> bytes | None:
        """What the index file of the segment at ``base`` holds; None where there is none."""

    def snapshots(self) -> list[int]:
        """Return the positions of the snapshots of all streams."""

    def snapshot(self, position: int) -> bytes:
        """Return the content of one of them.

        :raises Missing: there is none
        """

    def readers(self) -> list[readers.Reader]:
        """Return the named readers, for which retention waits."""

    def open(self, base: int, limit: int) -> scan.SegmentReader:
        """The segment at ``base``; nothing from the position ``limit`` on is read.

        :raises Missing: there is none
        """

    def report(self, reader: str, position: int) -> None:
        """Retention need not keep what is before ``position`` for ``reader`` any more."""


def place(location: str, token_file: str | None = None) -> Place:
    """The place that people write as a path or as ``http://HOST:PORT``.

    :param token_file: the file whose first line is the server's token; None: the one that the environment names
    :raises ConfigError: it is neither, or there is no token in the file
    """
    if location.startswith(("http://", "https://")):
        return Server(location.rstrip("/"), read_token(token_file or os.environ.get(TOKEN_FILE, ""), "the token file"))
    if "://" in location and not location.startswith("file://"):
        raise ConfigError(f"{location!r} should be a journal's directory, or http://HOST:PORT of a server of journals")
    return Directory(Path(location.removeprefix("file://")).absolute())


@attrs.frozen
class Directory:
    """A journal's directory, on this machine or on a shared file system."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def view(self) -> View:
        if not self.path.is_dir():
            raise JournalUnreachable(f"{self.path} is no journal: there is no such directory")
        view = look(self.path)
        if not view.mark and not scan.segments(self.path):
            raise JournalUnreachable(f"{self.path} is no journal: there is no segment in it")
        return view

    def name(self, base: int) -> str:
        return str(scan.path_of(self.path, base))

    def index(self, base: int) -> bytes | None:
        try:
            return scan.index_path_of(self.path, base).read_bytes()
        except FileNotFoundError:
            return None

    def snapshots(self) -> list[int]:
        return scan.snapshots(self.path)

    def snapshot(self, position: int) -> bytes:
        path = scan.snapshot_path_of(self.path, position)
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            raise Missing(str(path)) from error

    def readers(self) -> list[readers.Reader]:
        return readers.positions(self.path)

    def open(self, base: int, limit: int) -> scan.SegmentReader:
        try:
            return scan.SegmentReader(scan.path_of(self.path, base), base, limit=limit, ahead=CHUNK)
        except FileNotFoundError as error:
            raise Missing(self.name(base)) from error

    def report(self, reader: str, position: int) -> None:
        readers.report(self.path, reader, position)


@attrs.frozen
class Server:
    """``fyrehose journal serve``, at http://HOST:PORT.

    :ivar token: what it wants to see, if it does; workers get it with the place, and need no file
    """

    url: str
    token: str | None = attrs.field(default=None, repr=False)

    def __str__(self) -> str:
        return self.url

    def view(self) -> View:
        with self._understood():
            said = json.loads(_ask(self, "GET", "/journal"))
            segments = tuple(Extent(int(base), int(end)) for base, end in said["segments"])
            return View(int(said["mark"]), segments, bytes.fromhex(said.get("identity", UNKNOWN.hex())))

    def name(self, base: int) -> str:
        return f"{self.url}/segments/{base:016x}"

    def index(self, base: int) -> bytes | None:
        try:
            return _ask(self, "GET", f"/indexes/{base:016x}")
        except Missing:
            return None

    def snapshots(self) -> list[int]:
        with self._understood():
            return [int(position) for position in json.loads(_ask(self, "GET", "/journal")).get("snapshots", [])]

    def snapshot(self, position: int) -> bytes:
        return _ask(self, "GET", f"/snapshots/{position:016x}")

    def readers(self) -> list[readers.Reader]:
        with self._understood():
            said = json.loads(_ask(self, "GET", "/readers")).items()
            return [readers.Reader(name, int(of["position"]), int(of["time"])) for name, of in said]

    def open(self, base: int, limit: int) -> scan.SegmentReader:
        return scan.SegmentReader(Path(f"/segments/{base:016x}"), base, _Remote(self), limit=limit, ahead=CHUNK)

    def report(self, reader: str, position: int) -> None:
        _ask(self, "PUT", f"/readers/{readers.checked(reader)}", str(position).encode())

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Turn an answer that a server of journals does not give into an error for people."""
        try:
            yield
        except (Missing, ValueError, KeyError, TypeError, AttributeError) as error:
            raise JournalError(f"what answers at {self.url} is no `fyrehose journal serve`") from error


class _Remote(Files):
    """The one file that a reader of segments opens, over HTTP."""

    def __init__(self, server: Server) -> None:
        self._connection = _Connection(server.url, server.token)
        self._path = ""

    def open(self, path: Path, flags: int) -> int:
        self._path = str(path)
        try:
            self._connection.request("HEAD", self._path)
        except Exception:
            self._connection.close()
            raise
        return 0

    def close(self, fd: int) -> None:
        self._connection.close()

    def read(self, fd: int, size: int, offset: int) -> bytes:
        if not size:
            return b""
        headers = {"Range": f"bytes={offset}-{offset + size - 1}"}
        return self._connection.request("GET", self._path, headers=headers)


def _ask(server: Server, method: str, path: str, body: bytes = b"") -> bytes:
    """One request by itself."""
    connection = _Connection(server.url, server.token)
    try:
        return connection.request(method, path, body)
    finally:
        connection.close()


@attrs.define(eq=False)
class _Connection:
    """Requests to one server, over one connection while it lasts."""

    url: str
    token: str | None = attrs.field(default=None, repr=False)
    _http: HTTPConnection | None = attrs.field(default=None, init=False)

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def request(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
        """
        :raises Missing: the server has no such thing
        :raises JournalUnreachable: the server does not answer, or cannot at present
        :raises JournalError: the server refuses
        """
        for again in range(TRIES):
            try:
                if self._http is None:
                    self._http = self._connect()
                known = {} if self.token is None else {"Authorization": authorization(self.token)}
                self._http.request(method, path, body or None, {**known, **(headers or {})})
                answer = self._http.getresponse()
                return self._taken(path, answer.status, answer.read())
            except (OSError, HTTPException) as error:
                self.close()
                if again == TRIES - 1:
                    raise JournalUnreachable(
                        f"{self.url} does not answer: {error!r}; is `fyrehose journal serve` running?"
                    ) from error
                time.sleep(0.2 * 2**again)
        raise AssertionError("the last try raised or returned")

    def _connect(self) -> HTTPConnection:
        kind = HTTPSConnection if self.url.startswith("https:") else HTTPConnection
        try:
            parts = urlsplit(self.url)
            if not parts.hostname:
                raise ValueError("no host")
            return kind(parts.hostname, parts.port, timeout=TIMEOUT)
        except (ValueError, InvalidURL) as error:
            raise ConfigError(f"{self.url!r} should be http://HOST:PORT") from error

    def _taken(self, path: str, status: int, data: bytes) -> bytes:
        if status == 404:
            raise Missing(self.url + path)
        if status == 416:
            return b""  # beyond its end
        if status == 401:
            hint = f"name a file with it by --token-file, the option tokenFile, or {TOKEN_FILE}"
            raise JournalError(f"{self.url} wants a token: {hint if self.token is None else 'it is not the one sent'}")
        if status >= 300:
            kind = JournalUnreachable if status >= 500 else JournalError
            raise kind(f"{self.url}{path}: {status} {data[:200].decode(errors='replace').strip()}")
        return data
