"""The records that are leased to a worker over one link, sans-I/O (``subscribe:STREAM?name=NAME&share``).

    server -> worker   channel 0   a head (HEAD), then the parts of the record
                       channel 1   JSON: what was refused, and new tokens
    worker -> server   consumed    settles the records of these messages that the worker has still
                       messages    JSON: settle, return, reject or extend records, and publish results

    sent(message, record) -> taken(work) or consumed(first, last) -> released() at the end: what the worker still has

If a message of the worker has named a record, ``consumed`` does not settle that record: it only makes room for another.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from fyrehose.broker.consumers.settling import Settling, settling
from fyrehose.broker.consumers.work import Item
from fyrehose.errors import RemoteProtocolError

#: The head of a message with a record: its number, epoch and number of the token, its failures, and how long the lease
#: lasts in seconds.  The name of its stream follows, if the subscription has a pattern.
HEAD = struct.Struct("<QQIII")
#: The channels of the server: for records, and for what workers have to know besides.
RECORDS, NOTICES = 0, 1
#: The kinds of actions that end the lease of a record.
ENDING = ("done", "failed", "untried", "reject")


@attrs.frozen(slots=True)
class HeldRecord:
    """One record that was sent to the worker.

    :ivar stream: empty: the only stream of the subscription
    """

    stream: str
    seq: int
    token: tuple[int, int]
    failures: int = 0

    def head(self, lease: int) -> bytes:
        """Return the first part of the message with the record."""
        return HEAD.pack(self.seq, *self.token, self.failures, lease) + self.stream.encode()

    def item(self, kind: str, delay: float | None = None) -> Item:
        """Return the action *kind* on the record, such as ``done``, with the token of its lease."""
        return Item(kind, self.seq, self.seq, self.token, self.stream, delay)


@attrs.define(eq=False)
class HeldRecords:
    """The records of one link.

    :ivar most: the most records that the worker has at a time
    """

    most: int
    _sent: dict[int, HeldRecord] = attrs.field(factory=dict, init=False)  #: by message on channel 0
    _held: dict[tuple[str, int], HeldRecord] = attrs.field(factory=dict, init=False)

    @property
    def room(self) -> int:
        """Return how many more records the worker may have."""
        return max(0, self.most - len(self._held))

    def sent(self, message: int, record: HeldRecord) -> None:
        """Record that *message* on channel 0 carries *record*."""
        self._sent[message] = self._held[record.stream, record.seq] = record

    def taken(self, work: Settling) -> None:
        """Forget the records that *work* settles or returns, so that ``consumed`` does not settle them, too."""
        for item in work.items:
            if item.kind in ENDING:
                for seq in range(item.first, item.last + 1):
                    held = self._held.get((item.stream, seq))
                    if held is not None and held.token == item.token:
                        del self._held[item.stream, seq]

    def consumed(self, first: int, last: int) -> list[Item]:
        """Return the actions that settle the records of consumed messages; consecutive records share an action."""
        found: list[Item] = []
        for message in range(first, last + 1):
            record = self._sent.pop(message, None)
            if record is not None and self._held.get((record.stream, record.seq)) is record:
                del self._held[record.stream, record.seq]
                before = found[-1] if found else None
                if (
                    before is not None
                    and (before.stream, before.token) == (record.stream, record.token)
                    and before.last + 1 == record.seq
                ):
                    found[-1] = attrs.evolve(before, last=record.seq)
                else:
                    found.append(record.item("done"))
        return found

    def released(self) -> list[Item]:
        """Return the actions at the end of the link: the records that the worker still has were not tried."""
        held = [record.item("untried", 0.0) for record in self._held.values()]
        self._held.clear()
        self._sent.clear()
        return held


def read_request(parts: Sequence[Any]) -> Settling:
    """Parse a message of the worker: actions on records, and results to publish.

    :raises RemoteProtocolError: it is no request
    """
    try:
        fields = json.loads(b"".join(parts))
        if not isinstance(fields, dict):
            raise ValueError("expected a JSON object")
        return settling(fields)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError("request-invalid", str(error)) from error


def notices_of(request: tuple[int, int] | None, answer: Mapping[str, object]) -> Iterator[bytes]:
    """Yield the notice for the worker, if *answer* to a request says more than that everything was done.

    :param request: channel and number of the request's message; None: the answer is about consumed records
    """
    told = {name: answer[name] for name in ("error", "retry", "refused", "extended") if answer.get(name)}
    if told:
        place = {} if request is None else {"channel": request[0], "message": request[1]}
        yield json.dumps({**place, **told}, ensure_ascii=False).encode()
