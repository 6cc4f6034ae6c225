"""The records that a worker has by one link, sans-I/O (``subscribe:STREAM?name=NAME&share``).

    server -> worker   channel 0   a head (HEAD), then the parts of the record
                       channel 1   JSON: what was refused, and new tokens
    worker -> server   consumed    settles the records of these messages that the worker has still
                       messages    JSON: settle, return, reject or extend records, and publish results

    sent(message, record) -> taken(work) or consumed(first, last) -> what is still held -> released() at the end

A record that the worker speaks of in a message is not settled by ``consumed``: that only makes room for another one.
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
#: The kinds of actions after which the worker does not have the record any more.
ENDING = ("done", "failed", "untried", "reject")


@attrs.frozen(slots=True)
class HeldRecord:
    """One record that was sent to the worker.

    :ivar stream: empty: the only one of the subscription
    """

    stream: str
    seq: int
    token: tuple[int, int]
    failures: int = 0

    def head(self, lease: int) -> bytes:
        """Return the first part of the message with the record."""
        return HEAD.pack(self.seq, *self.token, self.failures, lease) + self.stream.encode()

    def item(self, kind: str, delay: float | None = None) -> Item:
        """Return the verdict *kind* about the record."""
        return Item(kind, self.seq, self.seq, self.token, self.stream, delay)


@attrs.define(eq=False)
class HeldRecords:
    """The records of one link.

    :ivar most: how many the worker has at most
    """

    most: int
    _sent: dict[int, HeldRecord] = attrs.field(factory=dict, init=False)  #: by message on channel 0
    _held: dict[tuple[str, int], HeldRecord] = attrs.field(factory=dict, init=False)

    @property
    def room(self) -> int:
        """Return how many more records the worker may have."""
        return max(0, self.most - len(self._held))

    def sent(self, message: int, record: HeldRecord) -> None:
        """Note that *message* of channel 0 carries *record*."""
        self._sent[message] = self._held[record.stream, record.seq] = record

    def taken(self, work: Settling) -> None:
        """Forget the records that *work* ends: ``consumed`` says nothing more about them."""
        for item in work.items:
            if item.kind in ENDING:
                for seq in range(item.first, item.last + 1):
                    held = self._held.get((item.stream, seq))
                    if held is not None and held.token == item.token:
                        del self._held[item.stream, seq]

    def consumed(self, first: int, last: int) -> list[Item]:
        """Return the verdicts that the worker gives by consuming messages; those that follow each other are one."""
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
        """Return the verdicts of a worker whose link has ended: it has not tried what it has still."""
        held = [record.item("untried", 0.0) for record in self._held.values()]
        self._held.clear()
        self._sent.clear()
        return held


def read_request(parts: Sequence[Any]) -> Settling:
    """Return what a message of the worker says.

    :raises RemoteProtocolError: it is no request
    """
    try:
        fields = json.loads(b"".join(parts))
        if not isinstance(fields, dict):
            raise ValueError("expected an object")
        return settling(fields)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError("request-invalid", str(error)) from error


def notices_of(request: tuple[int, int] | None, answer: Mapping[str, object]) -> Iterator[bytes]:
    """Yield the message for the worker, if *answer* to a request says more than that everything was done.

    :param request: channel and number of its message; None: it is about records that were consumed
    """
    told = {name: answer[name] for name in ("error", "retry", "refused", "extended") if answer.get(name)}
    if told:
        place = {} if request is None else {"channel": request[0], "message": request[1]}
        yield json.dumps({**place, **told}, ensure_ascii=False).encode()
