"""The shared log on NATS JetStream: a stream of one subject, with conditional appends.

nats-py needs asyncio, so it runs in a thread with a loop of its own; results come back to the reactor's thread.

    subject fyrehose.NAME.log    the entries; the stream FYREHOSE_NAME stores them
    subject fyrehose.NAME.say    messages between servers, which nobody stores

One request reads many entries (a "batched direct get", nats-server 2.11); an older server answers with one of them.

Install the extra ``replication`` to use it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import ConfigError
from fyrehose.journal.format import Damage
from fyrehose.replication.entries import MAX_ENTRY, LogEntry
from fyrehose.replication.shared_log import EntryRange, ISharedLog, Refused, Unavailable

log = Logger()
T = TypeVar("T")

#: JetStream's code for an append under a condition that does not hold.
WRONG_LAST = 10071
#: For how long JetStream recognizes a repeated append; later ones fail because of their condition.
DUPLICATES = 120.0
#: How often the connection is tried again, in seconds.
RETRY = 0.25
#: How many bytes of entries one request reads; the connection's buffers hold several times as much.
READ_BYTES = 4 << 20
#: How many bytes one read of the connection takes at most.
RECEIVE_BYTES = 512 << 10


@implementer(ISharedLog)
@attrs.define(eq=False)
class JetStreamLog:
    """A shared log on JetStream; see :class:`ISharedLog` for the methods.

    :ivar servers: URLs, for example ``nats://10.0.0.1:4222``
    :ivar name: of the cluster; part of the subjects' names
    :ivar replicas: on how many machines each entry must be
    :ivar timeout: seconds after which an answer is not waited for any longer
    :ivar options: further arguments of ``nats.connect``: credentials, TLS
    """

    reactor: Any
    servers: Sequence[str]
    name: str
    replicas: int = 3
    timeout: float = 2.0
    options: dict[str, Any] = attrs.field(factory=dict)
    _loop: asyncio.AbstractEventLoop | None = attrs.field(default=None, init=False)
    _thread: Thread | None = attrs.field(default=None, init=False)
    _client: Any = attrs.field(default=None, init=False)
    _stream: Any = attrs.field(default=None, init=False)
    #: Prefix of the subjects to which entries that were asked for are sent, and where each request awaits them.
    _inbox: str = attrs.field(default="", init=False)
    _requests: dict[str, asyncio.Queue[Any]] = attrs.field(factory=dict, init=False)
    _asked: int = attrs.field(default=0, init=False)
    #: The last error of the connection; the same error is not logged again and again.
    _error: str = attrs.field(default="", init=False)

    @property
    def stream(self) -> str:
        """Return the name of the stream in JetStream."""
        return f"FYREHOSE_{self.name}"

    @property
    def subject(self) -> str:
        """Return the subject of the entries."""
        return f"fyrehose.{self.name}.log"

    def open(self, heard: Callable[[bytes], None]) -> Deferred[list[str]]:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = Thread(target=self._loop.run_forever, name="fyrehose replication", daemon=True)
            self._thread.start()
        return self._ask(self._open(heard))

    async def _open(self, heard: Callable[[bytes], None]) -> list[str]:
        import nats.aio.client

        # Entries are large, and each read of the connection costs as much as the copy of ten times the default.
        nats.aio.client.DEFAULT_BUFFER_SIZE = max(nats.aio.client.DEFAULT_BUFFER_SIZE, RECEIVE_BYTES)
        if self._client is None:

            async def receive(message: Any) -> None:
                self.reactor.callFromThread(heard, bytes(message.data))

            client = await nats.connect(
                list(self.servers),
                error_cb=self._failed,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RETRY,
                connect_timeout=self.timeout,
                name=f"fyrehose {self.name}",
                **self.options,
            )
            await client.subscribe(f"fyrehose.{self.name}.say", cb=receive)
            self._inbox = client.new_inbox()
            await client.subscribe(f"{self._inbox}.*", cb=self._replied)
            self._client, self._stream = client, client.jetstream(timeout=self.timeout)
        return await self._open_stream()

    async def _open_stream(self) -> list[str]:
        from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
        from nats.js.errors import NotFoundError

        try:
            info = await self._stream.stream_info(self.stream)
        except NotFoundError:
            config = StreamConfig(
                name=self.stream,
                description="the journal of a cluster of Fyrehose servers, on its way from the leader to the others",
                subjects=[self.subject],
                retention=RetentionPolicy.LIMITS,
                storage=StorageType.FILE,
                num_replicas=self.replicas,
                discard=DiscardPolicy.NEW,
                max_age=0,
                duplicate_window=DUPLICATES,
                allow_direct=True,
            )
            info = await self._stream.add_stream(config)
        return judge(info.config, self.stream, self.subject, self.replicas)

    async def _failed(self, error: Exception) -> None:
        said = str(error) or type(error).__name__
        if said != self._error:
            self._error = said
            self.reactor.callFromThread(log.warn, "the connection to NATS: {error}", error=said)

    def append(self, entry: LogEntry, expect: int) -> Deferred[int]:
        return self._ask(self._append(entry, expect))

    async def _append(self, entry: LogEntry, expect: int) -> int:
        from nats.js.errors import APIError

        headers = {"Nats-Msg-Id": entry.ident, "Nats-Expected-Last-Sequence": str(expect)}
        try:
            answer = await self._stream.publish(
                self.subject, entry.pack(), timeout=self.timeout, stream=self.stream, headers=headers
            )
        except APIError as error:
            last = re.search(r"wrong last sequence: (\d+)", error.description or "")
            if error.err_code == WRONG_LAST and last:
                raise Refused(int(last[1])) from error
            raise
        self._error = ""
        return int(answer.seq)

    def extent(self) -> Deferred[EntryRange]:
        return self._ask(self._extent())

    async def _extent(self) -> EntryRange:
        state = (await self._stream.stream_info(self.stream)).state
        return EntryRange(int(state.first_seq) or 1, int(state.last_seq))

    def read(self, number: int, most: int) -> Deferred[list[tuple[int, LogEntry]]]:
        return self._ask(self._read(number, most))

    async def _read(self, number: int, most: int) -> list[tuple[int, LogEntry]]:
        self._asked += 1
        reply = f"{self._inbox}.{self._asked}"
        replies = self._requests[reply] = asyncio.Queue()
        wanted = json.dumps({"seq": number, "batch": most, "max_bytes": READ_BYTES}).encode()
        found: list[tuple[int, LogEntry]] = []
        try:
            await self._client.publish(f"$JS.API.DIRECT.GET.{self.stream}", wanted, reply=reply)
            while len(found) < most:
                message = await asyncio.wait_for(replies.get(), self.timeout)
                if not _is_entry(message, number + len(found)):
                    break
                found.append((number + len(found), LogEntry.unpack(message.data)))
                if "Nats-Num-Pending" not in message.headers:  # an older server sends one entry, and no end
                    break
        except TimeoutError:
            if not found:
                raise
        finally:
            del self._requests[reply]
        return found

    async def _replied(self, message: Any) -> None:
        replies = self._requests.get(message.subject)
        if replies is not None:
            replies.put_nowait(message)

    def purge(self, number: int) -> Deferred[None]:
        return self._ask(self._purge(number))

    async def _purge(self, number: int) -> None:
        await self._stream.purge_stream(self.stream, seq=number)

    def say(self, message: bytes) -> None:
        if self._client is not None and self._client.is_connected:
            self._ask(self._client.publish(f"fyrehose.{self.name}.say", message)).addErrback(lambda _: None)

    def close(self) -> Deferred[None]:
        closed = self._ask(self._close())
        return closed.addBoth(self._stop)

    async def _close(self) -> None:
        if self._client is not None:
            with suppress(Exception):  # the last words are a courtesy
                await self._client.flush(timeout=1)
            await self._client.close()

    def _stop(self, _: object) -> None:
        loop, thread, self._loop, self._client = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _ask(self, asked: Coroutine[Any, Any, T]) -> Deferred[T]:
        """Run *asked* in the thread; fail with Unavailable if NATS does not answer."""
        done: Deferred[T] = Deferred()

        async def run() -> None:
            try:
                result = await asked
            except (Refused, Damage, ConfigError):
                self.reactor.callFromThread(done.errback, Failure())
            except Exception as error:
                unavailable = Unavailable(f"NATS does not answer: {error or type(error).__name__}")
                self.reactor.callFromThread(done.errback, Failure(unavailable))
            else:
                self.reactor.callFromThread(done.callback, result)

        if self._loop is None:
            asked.close()
            done.errback(Failure(Unavailable("the connection to NATS is closed")))
        else:
            asyncio.run_coroutine_threadsafe(run(), self._loop)
        return done


def _is_entry(message: Any, number: int) -> bool:
    """Return whether *message* has the entry *number*; if not, there is none, or no further one.

    :raises Unavailable: it says that no server can answer
    """
    headers = message.headers or {}
    status = headers.get("Status")
    if status not in (None, "204", "404"):
        raise Unavailable(f"NATS cannot read the shared log: status {status} {headers.get('Description', '')}".rstrip())
    return status is None and headers.get("Nats-Sequence") == str(number)


def judge(config: Any, stream: str, subject: str, replicas: int) -> list[str]:
    """Check the settings of an existing stream.

    :return: warnings, one sentence each
    :raises ConfigError: the stream would lose entries, or does not accept them
    """
    deletes = [
        f"{name} is {value}"
        for name, value in (
            ("max_age", config.max_age),
            ("max_msgs", config.max_msgs),
            ("max_bytes", config.max_bytes),
            ("max_msgs_per_subject", config.max_msgs_per_subject),
        )
        if value not in (None, 0, -1)
    ]
    wrong = [
        (str(config.storage) != "file", f"it is stored in {config.storage}; it must be stored in files"),
        (str(config.retention) != "limits", f"its retention is {config.retention}; it must be limits"),
        (bool(deletes), f"it deletes messages by itself ({', '.join(deletes)}); remove these limits"),
        (subject not in (config.subjects or []), f"it does not have the subject {subject}"),
        (bool(config.no_ack), "it does not acknowledge messages (no_ack)"),
        (not config.allow_direct, "it does not allow direct reads; set allow_direct"),
        (
            0 < (config.max_msg_size or 0) < MAX_ENTRY,
            f"its max_msg_size is {config.max_msg_size}; entries have up to {MAX_ENTRY} bytes",
        ),
    ]
    for is_wrong, reason in wrong:
        if is_wrong:
            raise ConfigError(f"the stream {stream} in JetStream cannot be used: {reason}")
    if (config.num_replicas or 1) < replicas:
        warning = (
            f"the stream {stream} has {config.num_replicas or 1} replicas, and {replicas} are configured: what is "
            "acknowledged may be lost with fewer machines than you expect; run `nats stream edit` to change it"
        )
        return [warning]
    return []
