"""Places where a journal can be read: a directory, or the address of a ``fyrehose journal serve``.

    in: a path or http://HOST:PORT      out: the durable mark, the segments, their indexes and their bytes

Both kinds of places are read with the journal's own reader (journal/scan.py); over HTTP, each read is a request for a
range of bytes.  Meanwhile, the journal's server keeps appending and deleting old segments.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

import attrs

from fyrehose.errors import (
    ConfigError,
    JournalCorrupt,
    JournalError,
    JournalUnreachable,
    RemoteProtocolError,
    os_reason,
)
from fyrehose.journal import scan, subscriptions
from fyrehose.journal.files import Files
from fyrehose.journal.format import UNKNOWN
from fyrehose.journal.index import index_limit
from fyrehose.journal.snapshots import LIMIT
from fyrehose.journal.subscriptions import FileSubscription
from fyrehose.offline import answers
from fyrehose.offline.view import View, differ, look
from fyrehose.web.blocking_client import BlockingClient, is_address
from fyrehose.web.client_session import FieldLines, ServerAnswer
from fyrehose.web.tokens import read_token

#: How many bytes are read at a time; smaller ranges would cost more requests over HTTP.
CHUNK = 4 << 20
#: How many bytes of a file are read at once if only headers of batches are needed, so that few of their bodies are
#: read.
HEADERS = 64 << 10
#: Timeout of a request, in seconds: see BlockingClient.
TIMEOUT = 30.0
#: Limit of an answer in JSON, in bytes: it lists half a million segments.
MOST_JSON = 16 << 20
#: The longest part of an answer that an error shows, in bytes.
MOST_SHOWN = 600
#: The environment variable that names the file with a server's token.
TOKEN_FILE = "FYREHOSE_TOKEN_FILE"
#: How often a request is tried.
TRIES = 4

T = TypeVar("T")


class Missing(Exception):
    """The error for a segment or snapshot that does not exist, or was deleted."""


class Place(Protocol):
    """A place where a journal can be read.  Places can be pickled, so Spark can send them to its workers.

    :ivar for_headers: how many bytes to read at a time if only the headers of batches are needed
    """

    for_headers: ClassVar[int]

    def view(self) -> View:
        """Return which part of the journal is present and durable.

        :raises JournalUnreachable: there is no journal at this place, or the server does not answer
        :raises JournalError: the server is no ``fyrehose journal serve``
        """

    def name(self, base: int) -> str:
        """Return the path or the address of the segment at *base*, for messages."""

    def index(self, base: int) -> bytes | None:
        """Return the content of the index file of the segment at *base*, or None if there is none."""

    def snapshots(self) -> list[int]:
        """Return the positions of the snapshots of all streams."""

    def snapshot(self, position: int) -> bytes:
        """Return the content of the snapshot of all streams at *position*.

        :raises Missing: there is none
        """

    def subscriptions(self) -> list[FileSubscription]:
        """Return the named subscriptions to the files."""

    def open(self, base: int, limit: int) -> scan.SegmentReader:
        """Open the segment at *base*; the reader reads nothing from the position *limit* on.

        :raises Missing: there is no such segment
        """

    def update_subscription(self, name: str, position: int, identity: bytes = UNKNOWN) -> None:
        """Create the subscription *name*, or move it to *position*.

        :param identity: of the journal that was read, if it is known
        :raises ConfigError: the name or the position is invalid, or there are too many subscriptions
        :raises JournalCorrupt: another journal is here now
        """


def place(location: str, token_file: str | None = None) -> Place:
    """Return the place with the name *location*, which is a path or ``http://HOST:PORT``.

    :param token_file: the file whose first line is the server's token; None: the file that the environment variable
        FYREHOSE_TOKEN_FILE names
    :raises ConfigError: *location* is neither, or the file has no token
    """
    if location.startswith(("http://", "https://")):
        return RemoteJournal(
            location.rstrip("/"), read_token(token_file or os.environ.get(TOKEN_FILE, ""), "the token file")
        )
    if "://" in location and not location.startswith("file://"):
        raise ConfigError(
            f"invalid journal {location!r}: expected a directory, or http://HOST:PORT of `fyrehose journal serve`"
        )
    return Directory(Path(location.removeprefix("file://")).absolute())


@attrs.frozen
class Directory:
    """A journal's directory, on this machine or on a shared file system; see :class:`Place` for the methods."""

    path: Path
    for_headers: ClassVar[int] = HEADERS

    def __str__(self) -> str:
        return str(self.path)

    def view(self) -> View:
        if not self.path.is_dir():
            raise JournalUnreachable(f"{self.path} is no journal: there is no such directory")
        view = look(self.path)
        if not view.mark and not scan.segments(self.path):
            raise JournalUnreachable(f"{self.path} is no journal: it has no segment files; name a server's --data-dir")
        return view

    def name(self, base: int) -> str:
        return str(scan.path_of(self.path, base))

    def index(self, base: int) -> bytes | None:
        try:
            return Files().content(
                scan.index_path_of(self.path, base), index_limit(0, scan.path_of(self.path, base).lstat().st_size)
            )
        except FileNotFoundError:
            return None

    def snapshots(self) -> list[int]:
        return scan.snapshots(self.path)

    def snapshot(self, position: int) -> bytes:
        path = scan.snapshot_path_of(self.path, position)
        try:
            return Files().content(path, LIMIT)
        except FileNotFoundError as error:
            raise Missing(str(path)) from error

    def subscriptions(self) -> list[FileSubscription]:
        return subscriptions.registered(self.path)

    def open(self, base: int, limit: int) -> scan.SegmentReader:
        try:
            return scan.SegmentReader(scan.path_of(self.path, base), base, limit=limit, ahead=CHUNK)
        except FileNotFoundError as error:
            raise Missing(self.name(base)) from error

    def update_subscription(self, name: str, position: int, identity: bytes = UNKNOWN) -> None:
        check_identity(self, identity)
        subscriptions.update(self.path, name, position)


@attrs.frozen
class RemoteJournal:
    """The address of a ``fyrehose journal serve``; see :class:`Place` for the methods.

    :ivar token: the token to send, if any; Spark's workers get it with the pickled place, and need no file
    :ivar timeout: of a request, in seconds: see BlockingClient
    :ivar first_pause_s: the pause before a request is tried again, in seconds; each further one is twice as long
    """

    url: str
    token: str | None = attrs.field(default=None, repr=False)
    timeout: float = TIMEOUT
    first_pause_s: float = 0.2
    for_headers: ClassVar[int] = CHUNK  # Each read is a request, so few large ones cost less.

    def __str__(self) -> str:
        return self.url

    def view(self) -> View:
        return self._asked("/journal", answers.view)

    def name(self, base: int) -> str:
        return f"{self.url}/segments/{base:016x}"

    def index(self, base: int) -> bytes | None:
        try:
            return _request(self, "GET", f"/indexes/{base:016x}")
        except Missing:
            return None

    def snapshots(self) -> list[int]:
        return self._asked("/journal", answers.snapshots)

    def snapshot(self, position: int) -> bytes:
        return _request(self, "GET", f"/snapshots/{position:016x}")

    def subscriptions(self) -> list[FileSubscription]:
        return self._asked("/subscriptions", answers.subscriptions)

    def open(self, base: int, limit: int) -> scan.SegmentReader:
        return scan.SegmentReader(Path(f"/segments/{base:016x}"), base, _Remote(self), limit=limit, ahead=CHUNK)

    def update_subscription(self, name: str, position: int, identity: bytes = UNKNOWN) -> None:
        check_identity(self, identity)
        _request(self, "PUT", f"/subscriptions/{subscriptions.checked_name(name)}", b"%d" % position)

    def _asked(self, path: str, decode: Callable[[bytes], T]) -> T:
        """Return the decoded answer to a request for JSON.

        :raises JournalError: it cannot be that of a ``fyrehose journal serve``
        """
        try:
            return decode(_request(self, "GET", path, largest=MOST_JSON))
        except (Missing, answers.InvalidAnswer) as error:
            why = f": {error}" if isinstance(error, answers.InvalidAnswer) else ""
            raise JournalError(f"the server at {self.url} is no `fyrehose journal serve`{why}") from error


def check_identity(place: Place, identity: bytes, view: View | None = None) -> None:
    """Check that the journal at *place* has the identity *identity*; do nothing if either identity is unknown.

    :param identity: the identity of the journal that was read before
    :param view: a view of the journal; None: a new view
    :raises JournalCorrupt: it is another journal
    """
    if identity != UNKNOWN and differ(found := (view or place.view()).identity, identity):
        raise JournalCorrupt(
            f"{place} is another journal (identity {found.hex()}) than the one that was read ({identity.hex()}); put "
            "that journal back, or give this one a lake, a checkpoint and a subscription of its own"
        )


class _Remote(Files):
    """A segment file that is read over HTTP; replaces the system calls of a segment reader."""

    def __init__(self, server: RemoteJournal) -> None:
        self._server = server
        self._connection = _Connection(server)
        self._path = ""

    def open(self, path: Path, flags: int) -> int:
        self._path = str(path)
        _request(self._server, "HEAD", self._path)
        return 0

    def close(self, fd: int) -> None:
        self._connection.close()

    def extents(self, fd: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
        yield start, stop

    def read(self, fd: int, size: int, offset: int) -> bytes:
        headers = (("Range", f"bytes={offset}-{offset + size - 1}"),)
        return self._connection.request("GET", self._path, headers=headers, largest=size)


def _request(
    server: RemoteJournal, method: str, path: str, body: bytes | None = None, largest: int | None = None
) -> bytes:
    """Send one request over a new connection, and return the body of the answer."""
    with closing(_Connection(server)) as connection:
        return connection.request(method, path, body, largest=largest)


class _Connection:
    """A client of one server, which repeats requests without an answer."""

    def __init__(self, server: RemoteJournal) -> None:
        if not is_address(server.url):
            raise ConfigError(f"invalid address {server.url!r}: expected http://HOST:PORT")
        self._server = server
        self._client = BlockingClient(server.url, server.token, timeout=server.timeout)

    def close(self) -> None:
        self._client.close()

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: FieldLines = (), largest: int | None = None
    ) -> bytes:
        """Send a request, repeat it if there is no answer, and return the body of the answer.

        :param largest: limit of the answer's body, in bytes
        :raises Missing: the server has no such file
        :raises JournalUnreachable: the server does not answer, or answers with a status of 500 or above
        :raises JournalError: the server refuses the request
        """
        url = self._server.url
        for attempt in range(TRIES):
            connected = self._client.connected
            try:
                return self._checked(path, self._client.ask(method, path, body, headers, largest), bool(headers))
            except RemoteProtocolError as error:
                why = str(error)[:MOST_SHOWN]
                raise JournalUnreachable(f"{url} does not answer as `fyrehose journal serve` does: {why!r}") from error
            except OSError as error:
                # A lost connection is worth another try; a server that took the whole time of a request is not, unless
                # only the connection was dead.
                if attempt == TRIES - 1 or (isinstance(error, TimeoutError) and not connected):
                    raise JournalUnreachable(
                        f"{url} does not answer: {os_reason(error)}; is `fyrehose journal serve` running?"
                    ) from error
                time.sleep(self._server.first_pause_s * 2**attempt)
        raise AssertionError("unreachable: the last try raises or returns")

    def _checked(self, path: str, answer: ServerAnswer, ranged: bool) -> bytes:
        """Return the body of an answer.

        :param ranged: whether the request asked for a part of the file
        """
        url, status = self._server.url, answer.status
        if status == 200 and ranged:
            raise JournalUnreachable(f"{url}{path}: all of the file was sent; a proxy must pass the header Range on")
        if status == 404 and answer.media_type != "application/json":
            # A proxy does not know whether a file was deleted.
            raise JournalUnreachable(f"{url} is no `fyrehose journal serve`, or a proxy answered for it with 404")
        if status == 404:
            raise Missing(url + path)
        if status == 416:
            return b""  # the range begins behind the end of the file
        if status == 401:
            hint = f"name a file that contains it with --token-file, the option tokenFile, or {TOKEN_FILE}"
            wrong = "the token that was sent is wrong"
            raise JournalError(f"{url} requires a token: {hint if self._server.token is None else wrong}")
        if status >= 300:
            kind = JournalUnreachable if status >= 500 else JournalCorrupt if status == 409 else JournalError
            text = answer.body[:MOST_SHOWN].decode(errors="replace").strip()
            raise kind(f"{url}{path}: {status} {text!r}")
        return answer.body
