"""The contract of destinations: the keys of a table ``[[forward]]``, and the sender that delivers batches.

A destination is a subclass of :class:`ForwardTable`, whose fields are the keys of its table, and a function that makes
a :class:`BatchSender`.  Another package declares one as an entry point of the group ``fyrehose.destinations``, whose
name is the scheme of its URLs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate, islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
from twisted.internet.interfaces import IStreamClientEndpoint

from fyrehose.file_content import FileContent
from fyrehose.jsontext import dumped, one_line, quoted
from fyrehose.kernels import lumberjack as kernel
from fyrehose.ndjson import as_object
from fyrehose.options import duration, size, suggestion, why_unreadable
from fyrehose.patterns import Pattern
from fyrehose.records import Record, Run, is_label
from fyrehose.toml_files import Mistake, key, scalar, text, texts

#: Ports of destinations whose URL has none.
PORTS = {"http": 80, "https": 443, "lumberjack": 5044, "lumberjacks": 5044, "relp": 2514, "relps": 2514}
#: The byte with which a JSON object begins.
OPEN = ord("{")
_WORD = re.compile(r"\{([A-Za-z_-]*)\}")


@attrs.frozen
class Secret:
    """A text that is kept in a file or in the environment, and never in the configuration.

    :ivar place: ``file:PATH``, of which the first line counts, or ``env:NAME``
    """

    place: str
    value: str = attrs.field(default="", repr=False)

    def read(self, folder: Path) -> Secret:
        """Return the secret with its value.

        :param folder: the folder of relative paths
        :raises ValueError: there is none; the message says what is expected
        """
        kind, _, name = self.place.partition(":")
        if kind == "env":
            if name not in os.environ:
                raise ValueError(f"a variable of the environment that is set, not {name!r}")
            return Secret(self.place, os.environ[name])
        try:
            return Secret(self.place, (folder / name).read_text(encoding="utf-8").partition("\n")[0].strip())
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"a file that can be read: {why_unreadable(error)}") from None


@attrs.frozen
class PemFiles:
    """The PEM files of a key for TLS, which differ from others by their content, too: a reload notices a new one.

    :ivar paths: ``CA[,CERT[,KEY]]``
    """

    paths: tuple[str, ...] = ()
    contents: tuple[FileContent, ...] = ()

    def read(self, folder: Path) -> PemFiles:
        """Return the files with their contents.

        :param folder: the folder of relative paths
        :raises ValueError: one of them cannot be read; the message says what is expected
        """
        paths = tuple(str(folder / path) for path in self.paths)
        try:
            return PemFiles(paths, tuple(FileContent.of(Path(path).read_bytes()) for path in paths))
        except OSError as error:
            raise ValueError(f"files that can be read: {error.filename}: {why_unreadable(error)}") from None


def pem_files(value: object) -> PemFiles:
    """Convert a value of TOML that names PEM files, with commas between them."""
    return PemFiles(tuple(part for part in text(value).split(",") if part))


def secret(value: object) -> Secret:
    """Convert a value of TOML that names a secret."""
    if not isinstance(value, str) or not value.startswith(("file:", "env:")):
        raise ValueError("file:PATH or env:NAME, because secrets do not belong in this file")
    return Secret(value)


@attrs.frozen
class SendPlace:
    """Where a destination is, as one URL of ``to`` says it.

    :ivar scheme: such as ``elasticsearch``, without the suffix for TLS
    """

    scheme: str
    encrypted: bool
    host: str
    port: int
    path: str = ""

    @property
    def authority(self) -> str:
        """Return host and port as one text."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def place(url: str) -> SendPlace:
    """Return the place that *url* names, such as ``elasticsearch+https://search:9200``.

    :raises ValueError: it is no such URL
    """
    expected = "URLs of one scheme with a host and a port, such as lumberjack://logs.example.com:5044"
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme.rpartition("+")[2], 0)
    except ValueError:
        raise ValueError(expected) from None
    if not parts.hostname or not port or "@" in parts.netloc or parts.fragment:
        raise ValueError(f"{expected}; secrets have keys of their own" if "@" in parts.netloc else expected)
    name, encrypted = parts.scheme.partition("+")[0].removesuffix("s"), parts.scheme.endswith("s")
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    return SendPlace(name, encrypted, parts.hostname, port, path)


def places(value: object) -> tuple[SendPlace, ...]:
    """Convert the value of ``to``: a URL, or a list of URLs of one scheme."""
    made = tuple(map(place, texts(value)))
    if len({(each.scheme, each.encrypted) for each in made}) != 1:
        raise ValueError("one URL or several, all of one scheme")
    return made


def label(value: object) -> str:
    """Convert the name of a subscription or of a stream."""
    if not isinstance(value, str) or not is_label(value) or value.startswith("."):
        raise ValueError("a name of 1 to 255 bytes that does not begin with a dot")
    return value


@attrs.frozen(kw_only=True, slots=False)
class ForwardTable:
    """A table ``[[forward]]``: the keys of all destinations.

    :ivar name: the subscription at the server that is read
    :ivar source: the servers that are read: ``HOST:PORT`` of their http listeners
    :ivar from_token: the bearer token that these servers want; None: none
    :ivar streams: the name of a stream, or a pattern
    :ivar dead: the stream of dead letters at the server that is read; "": NAME.dead
    :ivar batch_bytes: limit of the payloads of a batch; it has at least one record
    :ivar linger: how long a smaller batch waits for more records, in seconds
    :ivar timeout: limit of the answer to a batch, in seconds
    :ivar longest_pause: limit of the pause before the next attempt, in seconds
    """

    name: str = key(label, expected="the name of a subscription")
    source: tuple[str, ...] = key(texts, name="from", default=("127.0.0.1:8117",))
    from_tls: PemFiles = key(pem_files, default=PemFiles())
    from_token: Secret | None = key(secret, default=None)
    streams: str = key(text, expected="the name of a stream, or a pattern such as logs.*")
    since: str = key(text, default="start")
    to: tuple[SendPlace, ...] = key(places, expected="a URL, such as lumberjack://logs.example.com:5044")
    tls: PemFiles = key(pem_files, default=PemFiles())
    dead: str = key(label, default="")
    batch_bytes: int = key(scalar(size), default=1 << 20)
    batch_count: int = key(scalar(int), default=4096)
    linger: float = key(scalar(duration), default=0.05)
    timeout: float = key(scalar(duration), default=60.0)
    longest_pause: float = key(scalar(duration), default=60.0)

    def __attrs_post_init__(self) -> None:
        if Pattern(self.streams).matches(self.letters):
            raise Mistake(
                f"streams {self.streams!r} include the dead letters in {self.letters!r}; expected dead = NAME"
            )
        if self.batch_count < 1:
            raise Mistake(f"batch-count is {self.batch_count}; expected a number of at least 1", key="batch-count")

    @property
    def letters(self) -> str:
        """Return the stream of dead letters."""
        return self.dead or f"{self.name}.dead"


@attrs.frozen
class Around:
    """The surroundings of a sender: the reactor, connections, and the epoch of the numbers.

    :ivar endpoints: how to connect to each place of the table, in order, with TLS if the scheme says so
    :ivar epoch: returns the epoch of the numbers that are read
    """

    reactor: Any
    endpoints: Sequence[IStreamClientEndpoint]
    epoch: Callable[[], str]


@attrs.frozen
class BatchOutcome:
    """The outcome of a batch; records that it does not list are done.

    :ivar again: the records to send again
    :ivar reason: why, as text for people
    :ivar refused: the records that the destination refuses for good, and why
    :ivar pause: how long the destination asks to wait, in seconds
    :ivar whole: whether it refuses the records as a whole, for *reason*: some of them alone may be accepted
    :ivar more: whether the batch has to be sent with records that follow
    """

    again: Sequence[Run] = attrs.field(default=(), converter=tuple[Run, ...])
    reason: str = ""
    refused: Sequence[tuple[Run, str]] = attrs.field(default=(), converter=tuple[tuple[Run, str], ...])
    pause: float = 0.0
    whole: bool = False
    more: bool = False


DONE = BatchOutcome()


def merged(outcomes: Sequence[BatchOutcome]) -> BatchOutcome:
    """Return the outcomes of parts of a batch as one."""
    return BatchOutcome(
        again=[run for each in outcomes for run in each.again],
        reason=next((each.reason for each in outcomes if each.again), ""),
        refused=[refused for each in outcomes for refused in each.refused],
        pause=max((each.pause for each in outcomes), default=0.0),
        more=any(each.more for each in outcomes),
    )


class BatchSender:
    """Delivers batches to one destination, one at a time.

    :ivar problem: why a batch is not confirmed at present, as text for people; "" if that is not known
    """

    problem: str = ""

    async def send(self, runs: Sequence[Run]) -> BatchOutcome:
        """Deliver *runs*, each of which has records of one stream in order.

        A failure of the destination is an outcome; an exception is logged as a bug, and the batch is sent again.
        """
        raise NotImplementedError

    def close(self) -> Any:
        """Disconnect; return a Deferred that fires when that is done, or None."""
        return None


@attrs.frozen
class Destination:
    """A destination: the object to which an entry point refers.

    :ivar table: the class of its table
    :ivar sender: makes a sender; raises :class:`~fyrehose.errors.FyrehoseError` if that is not possible
    """

    table: type[ForwardTable]
    sender: Callable[[Any, Around], BatchSender]


#: A record of a run: the run, its index there, and what is sent for it.
Item = tuple[Run, int, bytes]


def alone(item: tuple[Run, int, Any]) -> Run:
    """Return the record of an item as a run."""
    return item[0].slice(item[1], item[1] + 1)


def objects(run: Run) -> Iterator[tuple[Run, bool]]:
    """Split *run* into parts whose payloads all are JSON objects, or all are not; yield each, and whether they are."""
    at = 0
    for count, _, valid in kernel.split(run.lengths, run.payload, ()):
        part, at = run.slice(at, at + count), at + count
        begins = islice(accumulate(part.sizes, initial=0), count)
        if not valid or all(part.payload[begin] == OPEN for begin in begins):
            yield part, valid
        else:
            for index, payload in enumerate(part.payloads()):
                yield part.slice(index, index + 1), bytes(payload).lstrip()[:1] == b"{"


def documents(runs: Iterable[Run]) -> tuple[list[Item], list[tuple[Run, str]]]:
    """Return each record as a JSON object: its payload, or else an object with the payload as ``message``.

    :return: the records, and those that are not text, which JSON cannot carry, with the reason
    """
    made: list[Item] = []
    refused: list[tuple[Run, str]] = []
    for run, part, fits in ((each, *found) for each in runs for found in objects(each)):
        for index, payload in enumerate(map(bytes, part.payloads()), part.first_seq - run.first_seq):
            if fits:
                made.append((run, index, payload))
                continue
            try:
                wrapped = {"@timestamp": moment(run.time).isoformat(), "message": payload.decode()}
                made.append((run, index, dumped(wrapped)))
            except UnicodeDecodeError:
                refused.append((alone((run, index, None)), "the payload is not UTF-8"))
    return made, refused


def moment(micros: int) -> datetime:
    """Return a time in microseconds since 1970."""
    return datetime.fromtimestamp(micros / 1e6, UTC)


def identity(run: Run, index: int, epoch: str) -> str:
    """Return a text that names one record for ever, also if the numbers of its stream begin again."""
    return f"{epoch}:{run.stream}:{run.first_seq + index}"


#: What a word of a template stands for: the text for a record and its JSON object.
Word = Callable[[Record, bytes], str]
WORDS: dict[str, Word] = {
    "stream": lambda record, document: record.stream,
    "seq": lambda record, document: str(record.seq),
    "time": lambda record, document: str(record.time),
    "time_ns": lambda record, document: str(record.time * 1000),
    "date": lambda record, document: f"{moment(record.time):%Y.%m.%d}",
    "document": lambda record, document: one_line(document.decode()),
    "payload": lambda record, document: record.payload.decode(),
    "text": lambda record, document: quoted(record.payload.decode()),
    "record": lambda record, document: as_object(record, True).decode(),
}


@attrs.frozen
class RecordTemplate:
    """A text with words in braces, which stand for parts of a record.

    :ivar parts: text and words in turn
    """

    parts: tuple[str, ...]
    words: Mapping[str, Word] = attrs.field(default=WORDS, repr=False)

    def filled(self, run: Run, index: int, document: bytes = b"") -> str:
        """Return the text for a record.

        :param document: its JSON object
        """
        found, record = list(self.parts), next(run.slice(index, index + 1).records())
        found[1::2] = [self.words[word](record, document) for word in self.parts[1::2]]
        return "".join(found)


def template(*allowed: str, words: Mapping[str, Word] = WORDS) -> Callable[[object], RecordTemplate]:
    """Return a converter of templates in which only the words *allowed* are allowed.

    :param words: what they stand for
    """

    def converted(value: object) -> RecordTemplate:
        parts = tuple(_WORD.split(text(value)))
        for word in parts[1::2]:
            if word not in allowed:
                known = ", ".join(f"{{{each}}}" for each in allowed)
                raise ValueError(f"only the words {known}, not {{{word}}}{suggestion(word, allowed)}")
        return RecordTemplate(parts, words)

    return converted


def by_stream(runs: Iterable[Run]) -> Iterator[list[Run]]:
    """Yield the runs of each stream, in order."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.stream, []).append(run)
    yield from found.values()
