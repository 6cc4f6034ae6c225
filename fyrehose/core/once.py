"""Publishes that were sent with a key: the same publish again gets the same answer, and stores nothing.

    publish(runs, key) -> one batch: the runs, and a record with the key in the stream ``.published`` -> first number

The last :data:`MOST` keys are remembered, over restarts and crashes, because key and messages are written together.
Keys belong to a stream.  A publish with a known key and other messages is refused.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import attrs
from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose import ownlog
from fyrehose.core.budget import Budget
from fyrehose.errors import KeyReused
from fyrehose.interfaces import IJournal, ISequencer
from fyrehose.records import Run

log = Logger()

#: The stream of the keys, and the source of its records.
STREAM, SOURCE = ".published", "server-published"
VERSION = 1
#: How many keys are remembered; the oldest are forgotten first.
MOST = 20_000
#: The charge of one key to the memory budget, in bytes.
ENTRY = 768


@attrs.define(eq=False)
class Known:
    """A publish with a key.

    :ivar first: number of its first message
    :ivar digest: of its messages
    :ivar charged: whether the memory budget was charged for it
    :ivar waiting: the repetitions that wait until it is durable; None: it is durable
    """

    first: int
    digest: str
    waiting: list[Deferred[int]] | None = None
    charged: bool = False


@attrs.define(eq=False)
class PublishedOnce:
    """The publishes that were sent with a key, by stream and key."""

    journal: IJournal
    sequencer: ISequencer
    budget: Budget
    _known: OrderedDict[tuple[str, str], Known] = attrs.field(factory=OrderedDict, init=False)
    _read: int = attrs.field(default=0, init=False)  #: the last record that was recovered

    def open(self) -> None:
        """Recover the last keys from the journal, which is open; those that are known are forgotten.

        :raises JournalCorrupt: their records cannot be read
        """
        while self._known:
            self._forget(self._known.popitem()[1])
        self._read = 0
        self.follow()

    def follow(self) -> None:
        """Remember the keys that another server has written to the journal since the last call.

        A follower does this all the time: reading thousands of records takes seconds, and a server that takes over
        would be silent meanwhile, so that the next one took over.

        :raises JournalCorrupt: their records cannot be read
        """
        oldest, last = self.journal.bounds(STREAM)
        first, self._read = max(oldest, self._read + 1, last - MOST + 1), last
        for record in ownlog.records(self.journal.read, STREAM, first, last):
            if record.source != SOURCE:
                continue
            try:
                fields = json.loads(record.payload)
                if fields["v"] == VERSION:
                    self._remember((fields["stream"], fields["key"]), Known(fields["first"], fields["digest"]))
            except (ValueError, KeyError, TypeError, RecursionError):
                log.warn(
                    "record {seq} of stream {stream} is invalid: its key is forgotten", seq=record.seq, stream=STREAM
                )

    def publish(
        self, runs: Sequence[Run], key: str, publish: Callable[[Sequence[Run], Sequence[Run]], Deferred[Any]]
    ) -> Deferred[int]:
        """Publish *runs*, unless they were published with *key* before.

        :param runs: of one stream
        :param publish: publishes runs of a peer, and records of the server's own
        :return: fires with the first number when the runs are durable; fails with KeyReused if *key* belongs to other
            messages, or as *publish* does
        """
        stream = runs[0].stream
        name, digest = (stream, key), _digest(runs)
        known = self._known.get(name)
        if known is not None:
            return self._repeated(known, key, digest)
        if 2 * (self.budget.kept + ENTRY) > self.budget.limit:
            return fail(KeyReused("the memory budget has no room for another key; raise server.memory"))
        first = self.sequencer.last(stream) + 1
        fields = {"v": VERSION, "stream": stream, "key": key, "first": first, "digest": digest}
        own = Run.of(STREAM, [json.dumps(fields).encode()], source=SOURCE, content_type="application/json")
        known = Known(first, digest, [])
        self._remember(name, known)
        published: Deferred[Any] = publish(runs, [own])
        return published.addCallbacks(self._durable, self._refused, (known,), errbackArgs=(name, known))

    def _repeated(self, known: Known, key: str, digest: str) -> Deferred[int]:
        if known.digest != digest:
            return fail(KeyReused(f"key {key[:80]!r} belongs to other messages, which were published before"))
        if known.waiting is None:
            return succeed(known.first)
        known.waiting.append(Deferred())
        return known.waiting[-1]

    def _durable(self, firsts: tuple[int, ...], known: Known) -> int:
        assert firsts[0] == known.first, "nothing else was published in between"
        waiting, known.waiting = known.waiting or [], None
        for each in waiting:
            each.callback(known.first)
        return known.first

    def _refused(self, failure: Failure, name: tuple[str, str], known: Known) -> Failure:
        if self._known.get(name) is known:
            self._forget(self._known.pop(name))
        for each in known.waiting or []:
            each.errback(failure)
        return failure

    def _remember(self, name: tuple[str, str], known: Known) -> None:
        if (before := self._known.pop(name, None)) is not None:
            self._forget(before)
        known.charged = self.budget.keep(ENTRY)
        self._known[name] = known
        if len(self._known) > MOST:
            self._forget(self._known.popitem(last=False)[1])

    def _forget(self, known: Known) -> None:
        if known.charged:
            self.budget.forget(ENTRY)


def _digest(runs: Sequence[Run]) -> str:
    """Return a digest of what makes two publishes the same: messages and content types."""
    found = blake2b(digest_size=16)
    for run in runs:
        for part in (run.content_type or "").encode(), bytes(run.lengths), bytes(run.payload):
            found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()
