"""The rules of RELINK.md, which can be removed from the running code one at a time: schedules must notice each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from relink_sides import Violation

from fyrehose.protocols.relink.channels import ReceiveChannel, SendChannel
from fyrehose.protocols.relink.frames import Ack, Acknowledgement, Op, Operation, nearest
from fyrehose.protocols.relink.link import Link


def _no_rollbacks_again(self: SendChannel) -> Any:
    run: tuple[Op, int] | None = None
    for seq in range(self.base, self.dec + 1):
        message = self.message(seq)
        if message.decision is Op.COMMIT and message.result is None:
            run = (Op.COMMIT, seq)
    if run is not None:
        yield self._numbered(*run)


_settle = ReceiveChannel.settle
_decision = SendChannel.decision
_operated = Link.operated


def _consumed_first(self: ReceiveChannel, through: int) -> Any:
    packets, freed = _settle(self, through)
    return packets[::-1], freed


def _results_forgotten(self: ReceiveChannel, through: int) -> Any:
    packets, freed = _settle(self, through)
    self.forget_results(through)
    return packets, freed


def _barrier_skipped(self: Link, channel: ReceiveChannel) -> None:
    if channel.exhausted and self.attached:
        self.receiving = dict(self.receiving)  # a copy, because a caller may iterate over the old one
        del self.receiving[channel.id]
        for ids in (self._filling, self.full, self._unacknowledged):
            ids.discard(channel.id)
        self.emit(Acknowledgement(kind=Ack.CLOSED, channels=(channel.id,)), id_size=self.peer_size)


def _always_plain(self: SendChannel, op: Op, first: int, last: int) -> Operation:
    packet = _decision(self, op, first, last)
    return Operation(kind=op, channels=packet.channels) if first == last and op is Op.COMMIT else packet


def _nothing_forgotten(self: Link, id_: int, packet: Operation) -> Any:
    self.forgetful = False
    return _operated(self, id_, packet)


def _barrier_and_close_anytime() -> Any:
    return [
        patch.object(Link, "_barrier", _barrier_skipped),
        patch.object(Link, "drained", staticmethod(lambda c: True)),
    ]


class Letter:
    """Checks that a literal reading of 2.3.1, with a cursor for each type of packet, refers to the same messages."""

    def __init__(self) -> None:
        self.cursors: dict[Any, int] = {}
        self.decided, self.acknowledged = Link._decided, Link.acknowledged

    def note(self, link: Any, channel: Any, kind: Any, number: int | None, meant: int) -> None:
        last = self.cursors.get((channel, kind), link.origin - 1)
        if number is None and last + 1 != meant:
            raise Violation(f"by a literal reading a plain {kind!r} refers to message {last + 1}, not {meant}")
        self.cursors[channel, kind] = max(last, meant)

    def patches(self) -> Any:
        letter = self

        def decided(link: Any, channel: ReceiveChannel, packet: Operation) -> Any:
            meant = channel.dec + 1 if packet.number is None else nearest(packet.number, channel.dec)
            letter.note(link, channel, packet.kind, packet.number, meant)
            return letter.decided(link, channel, packet)

        def acknowledged(link: Any, channel: SendChannel, kind: Ack, number: int | None) -> Any:
            if kind is not Ack.CLOSED:
                letter.note(link, channel, kind, number, meant_by(channel, kind, number))
            return letter.acknowledged(link, channel, kind, number)

        return [patch.object(Link, "_decided", decided), patch.object(Link, "acknowledged", acknowledged)]


def meant_by(channel: SendChannel, kind: Ack, number: int | None) -> int:
    """Return the message that an acknowledgement refers to, as our code reads it."""
    cursor = {Ack.RECEIVED: channel.recv, Ack.CONSUMED: channel.base - 1}.get(kind, channel.settled)
    if number is not None:
        return nearest(number, cursor)
    cursor += 1
    if kind in (Ack.COMMITTED, Ack.UNCOMMITTED):
        while cursor <= channel.dec and channel.message(cursor).decision is Op.ROLLBACK:
            cursor += 1
    return cursor


#: by rule, a function that returns the patches that remove it
RULES: dict[str, Any] = {
    "rollback-resend": lambda: [patch.object(SendChannel, "resend_decisions", _no_rollbacks_again)],
    "fence": list,  # a duty of the owner: Side.on_helloreceived omits it
    "retention": lambda: [patch.object(ReceiveChannel, "settle", _results_forgotten)],
    "order": lambda: [patch.object(ReceiveChannel, "settle", _consumed_first)],
    "barrier": _barrier_and_close_anytime,
    "explicit": lambda: [patch.object(SendChannel, "decision", _always_plain), *Letter().patches()],
    "forgotten": lambda: [patch.object(Link, "operated", _nothing_forgotten)],
    "letter": lambda: Letter().patches(),
}


@contextmanager
def without(rule: str | None) -> Iterator[frozenset[str]]:
    """Return a context in which the code lacks ``rule``; "letter" is no rule but checks the literal reading."""
    with ExitStack() as stack:
        for patched in RULES[rule]() if rule else ():
            stack.enter_context(patched)
        yield frozenset({rule} if rule else ())
