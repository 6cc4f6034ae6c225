"""Requests of workers to a shared subscription, without I/O: lease records; settle, return, reject and extend them.

lease(consumer, request, most) -> leased records
act(actions, consumer)         -> what is appended, and what is refused
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import attrs

from fyrehose.broker.consumers.lane import Group, Lane, LaneChange, OpenRecord, Token

#: The most consumers whose last request is remembered.
MOST_CONSUMERS = 1_000


@attrs.frozen
class Leased:
    """A record that a worker has.

    :ivar failures: how many of its leases have failed
    """

    lane: Lane
    seq: int
    token: Token
    failures: int


@attrs.define(eq=False)
class WorkerAction:
    """The verdict of a worker on one record.

    :ivar kind: ``done``, ``failed``, ``untried``, ``reject`` or ``extend``
    :ivar delay: until a returned record may be leased again, in seconds; None: longer with each failure
    :ivar why: the reason of a rejection
    """

    kind: str
    lane: Lane
    seq: int
    token: Token
    delay: float | None = None
    why: str = ""

    def refusal(self) -> str:
        """Return why it is refused; empty if it is not."""
        if self.kind == "done":
            return self.lane.why_not(self.seq, self.token)
        if self.kind == "extend" and self.token[0] != self.lane.group.epoch:
            return self.lane.why_not(self.seq, self.token)
        if self.lane.holds(self.seq, self.token):
            return ""
        return self.lane.why_not(self.seq, self.token) or "lease-lost"


@attrs.frozen
class Item:
    """The verdict of a worker on one record; see :class:`WorkerAction`.

    :ivar stream: the stream of the record; empty: the only one
    """

    kind: str
    seq: int
    token: Token
    stream: str = ""
    delay: float | None = None
    why: str = ""


@attrs.define
class WorkOutcome:
    """The outcome of a request.

    :ivar batches: what is to be appended together, with the results of the request
    :ivar refused: the actions that were refused, and why
    :ivar extended: the tokens of the leases that last longer
    """

    batches: list[LaneChange] = attrs.field(factory=list)
    refused: list[tuple[WorkerAction, str]] = attrs.field(factory=list)
    extended: list[tuple[WorkerAction, Token]] = attrs.field(factory=list)


@attrs.define(eq=False)
class Work:
    """The lanes of a shared subscription, as its workers use them.

    :ivar lanes: by stream
    """

    group: Group
    lanes: OrderedDict[str, Lane] = attrs.field(factory=OrderedDict)
    _requests: OrderedDict[str, tuple[int, list[Leased]]] = attrs.field(factory=OrderedDict, init=False)

    def lease(self, consumer: str, request: int | None, most: int) -> list[Leased]:
        """Lease up to *most* records to *consumer*.

        :param request: the same number gets the same leases again, from now on, as long as they last: the answer may
            have been lost; None: there are new ones each time
        """
        repeated = self._repeated(consumer, request) if request is not None else []
        if repeated:
            return repeated
        most = min(most, self.group.options.most - self.group.held[consumer])
        leased: list[Leased] = []
        for left in range(len(self.lanes), 0, -1):
            if len(leased) >= most:
                break
            stream, lane = next(iter(self.lanes.items()))
            self.lanes.move_to_end(stream)  # The streams take turns.
            entries = lane.lease(consumer, -(-(most - len(leased)) // left))
            leased += [_leased(lane, entry) for entry in entries]
        if request is not None and leased:
            self._requests[consumer] = request, leased
            self._requests.move_to_end(consumer)
            if len(self._requests) > MOST_CONSUMERS:
                self._requests.popitem(last=False)
        return leased

    def available(self) -> int:
        """Return about how many records could be leased now."""
        return sum(lane.available() for lane in self.lanes.values())

    def _repeated(self, consumer: str, request: int) -> list[Leased]:
        """Return the leases of the last request of *consumer* if it has this number, from now on."""
        number, leased = self._requests.get(consumer, (None, []))
        if number != request:
            return []
        return [each for each in leased if each.lane.extend(each.seq, each.token, consumer) == each.token]

    def act(self, actions: Sequence[WorkerAction], consumer: str, whole: bool = False) -> WorkOutcome:
        """Do *actions*, and return what is to be appended for them; dead letters are appended by themselves.

        :param whole: do nothing if one of them is refused
        """
        for lane in dict.fromkeys(action.lane for action in actions):
            lane.tick()
        outcome = WorkOutcome()
        outcome.refused = [(action, why) for action in actions if (why := action.refusal())]
        if outcome.refused and whole:
            return outcome
        refused = {action for action, _ in outcome.refused}
        batches: dict[Lane, LaneChange] = {}
        done: dict[Lane, list[int]] = {}
        for action in actions:
            if action.kind == "done" and action not in refused:
                done.setdefault(action.lane, []).append(action.seq)
        for lane, seqs in done.items():
            lane.settle(list(dict.fromkeys(seqs)), batches.setdefault(lane, LaneChange(lane)))
        for action in actions:
            if action.kind != "done" and action not in refused:
                self._act(action, consumer, batches, outcome)
        self.group.late += len(outcome.refused)
        outcome.batches = [batch for batch in batches.values() if batch.settled or batch.ended]
        return outcome

    def _act(self, action: WorkerAction, consumer: str, batches: dict[Lane, LaneChange], outcome: WorkOutcome) -> None:
        lane, seq, token = action.lane, action.seq, action.token
        if action.kind == "extend":
            extended = lane.extend(seq, token, consumer)
            if extended is None:
                outcome.refused.append((action, lane.why_not(seq, token) or "not-leading"))
            else:
                outcome.extended.append((action, extended))
        elif not lane.holds(seq, token):  # Another action of the same request has ended the lease.
            outcome.refused.append((action, lane.why_not(seq, token) or "lease-lost"))
        else:
            batch = batches.setdefault(lane, LaneChange(lane))
            why = action.why or ("rejected" if action.kind == "reject" else "")
            lane.give_back(seq, batch, failed=action.kind != "untried", delay=action.delay, why=why)


def _leased(lane: Lane, entry: OpenRecord) -> Leased:
    return Leased(lane, entry.seq, lane.token(entry), entry.ended[1])
