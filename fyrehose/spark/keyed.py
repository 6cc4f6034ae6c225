"""Blocking publisher with keys: a task that runs again publishes nothing twice (docs/protocols/http.md).

    publish(stream, payload) -> chunks of at most 1 MiB -> POST with Idempotency-Key ... -> 200: on the server's disk

The key of a chunk consists of the task's key and the chunk's number in its stream.  Rows are cut into chunks by their
order and their sizes alone, so a task that runs again with the same rows in the same order sends the same chunks.  The
server compares chunks: it refuses other messages under a known key.
"""

from __future__ import annotations

import time
from struct import Struct
from urllib.parse import quote, urlsplit

import attrs

from fyrehose.errors import ConfigError, PublishError, RemoteProtocolError
from fyrehose.records import Buffer
from fyrehose.spark.publisher import encoded_name, pace
from fyrehose.web.blocking_client import BlockingClient
from fyrehose.web.client_session import TEMPORARY

#: The largest chunk, in bytes, including the lengths of its messages: the server accepts so much in one publish.
CHUNK = 1 << 20
#: Limit of the bytes in incomplete chunks, for all streams together.
BUFFERED = 32 << 20
#: How long a chunk is sent again while the server cannot be reached or asks to retry later, in seconds.
PATIENCE = 60.0
#: The first and the longest pause before a chunk is sent again, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
#: The content type of a chunk of messages; a message that is larger than a chunk is sent as a body of its own, without
#: a content type.
MESSAGES = "application/vnd.fyrehose.messages"
_LENGTH = Struct(">I")


@attrs.define(eq=False)
class _Chunk:
    """Messages of one stream that are not sent yet."""

    messages: list[bytes] = attrs.field(factory=list)
    size: int = 0


@attrs.define(eq=False)
class KeyedPublisher:
    """A publisher of the rows of one task to one server, each row once, in the order of each stream.

    :ivar url: the server's HTTP listener: ``http://HOST:PORT``
    :ivar key: the beginning of all keys, which identifies the task among all tasks of all jobs
    :ivar token: the token to send, if any
    :ivar rate: the limit of messages a second; 0: no limit
    :ivar patience: how long a chunk is sent again, in seconds
    :ivar first_pause: the first pause before a chunk is sent again, in seconds
    :ivar most_buffered: how many bytes may be in incomplete chunks, for all streams together
    :ivar buffered: how many bytes are in incomplete chunks
    """

    url: str
    key: str
    token: str | None = attrs.field(default=None, repr=False)
    rate: float = 0.0
    patience: float = PATIENCE
    first_pause: float = FIRST_PAUSE
    most_buffered: int = BUFFERED
    #: number of acknowledged messages
    acknowledged: int = attrs.field(default=0, init=False)
    _chunks: dict[str, _Chunk] = attrs.field(factory=dict, init=False)
    buffered: int = attrs.field(default=0, init=False)
    #: number of sent chunks of each stream
    _sent: dict[str, int] = attrs.field(factory=dict, init=False)
    _client: BlockingClient = attrs.field(init=False)
    _began: float = attrs.field(factory=time.monotonic, init=False)

    def __attrs_post_init__(self) -> None:
        self._client = BlockingClient(self.url, self.token, timeout=self.patience, largest=CHUNK)

    def publish(self, stream: str, payload: Buffer) -> None:
        """Add one message to a chunk, and send the chunk if it is full; blocks while a chunk is sent.

        :raises InvalidName: the stream's name is empty or too long
        :raises PublishError: the server cannot be reached, or refuses
        """
        encoded_name(stream)
        size = _LENGTH.size + len(payload)
        if stream in self._chunks and self._chunks[stream].size + size > CHUNK:
            self._send(stream)
        chunk = self._chunks.setdefault(stream, _Chunk())
        chunk.messages.append(bytes(payload))
        chunk.size += size
        self.buffered += size
        while self.buffered > self.most_buffered:
            self._send(max(self._chunks, key=lambda name: self._chunks[name].size))

    def flush(self) -> None:
        """Block until every message is acknowledged; raises the errors of :meth:`publish`."""
        for stream in list(self._chunks):
            self._send(stream)

    def close(self) -> None:
        """Close the connection; messages that were not acknowledged may or may not be published."""
        self._client.close()

    def _send(self, stream: str) -> None:
        """Send the chunk of a stream until it is acknowledged."""
        chunk, number = self._chunks.pop(stream), self._sent.get(stream, 0)
        self.buffered -= chunk.size
        self._sent[stream] = number + 1
        headers = {"Idempotency-Key": f"{self.key}/{number}"}
        if chunk.size <= CHUNK:
            headers["Content-Type"] = MESSAGES
            body = b"".join(part for each in chunk.messages for part in (_LENGTH.pack(len(each)), each))
        else:
            (body,) = chunk.messages
        pace(self._began, self.acknowledged + len(chunk.messages), self.rate)
        target = f"/streams/{quote(stream, safe='')}"
        until, pause = time.monotonic() + self.patience, self.first_pause
        while (failure := self._post(target, body, headers, len(chunk.messages))) is not None:
            self.close()
            if time.monotonic() + pause > until:
                raise PublishError(
                    f"publishing to {self.url} failed for {self.patience:g} s: {failure}; {self.acknowledged} rows of "
                    "the task are acknowledged; run the job or the query again, which publishes no row twice"
                )
            time.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)
        self.acknowledged += len(chunk.messages)

    def _post(self, target: str, body: bytes, headers: dict[str, str], count: int) -> str | None:
        """Send a request once; return why it has to be sent again, or None if it is acknowledged.

        :raises PublishError: the server refuses the request
        """
        try:
            answer = self._client.ask("POST", target, body, tuple(headers.items()))
        except (OSError, RemoteProtocolError) as error:
            return str(error) or type(error).__name__
        if answer.status in TEMPORARY:
            return f"status {answer.status}: {answer.detail}"
        if answer.status == 422:
            raise PublishError(
                f"the task ran before with other rows, or in another order, under the key "
                f"{headers['Idempotency-Key']!r}; nothing was published twice: exactlyOnce needs the same rows in the "
                "same order, so sort the rows, do not change how they are divided into partitions, and let different "
                "jobs have different ids"
            )
        if answer.status != 200:
            raise PublishError(f"{self.url} refuses to publish: status {answer.status}: {answer.detail}")
        published = (answer.json_object or {}).get("count")
        if published is None:
            raise PublishError(f"{self.url} is no HTTP listener of Fyrehose: {answer.body[:80]!r}")
        if published != count:
            raise PublishError(f"{self.url} acknowledged {published} messages of {count}; use a server of this version")
        return None


def parse_url(text: str) -> str:
    """Return the URL of a server's HTTP listener, without a path.

    :raises ConfigError: the text is not ``http://HOST:PORT`` or ``https://HOST:PORT``
    """
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/")
        good = good and parts.port != 0 and not (parts.query or parts.fragment or parts.username)
    except ValueError:
        good = False
    if not good:
        raise ConfigError(
            f"invalid address {text!r}: exactlyOnce publishes by HTTP, expected http://HOST:PORT of an HTTP listener, "
            "such as http://127.0.0.1:8117"
        )
    return text.rstrip("/")
