"""Append entries to the shared log, and remember what its answers prove to the leader.

send -> the shared log -> accepted, refused: Role    unavailable: the role repeats the append later
settle, looked: when this leader sent the last request whose answer shows that no other server had taken over
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from fyrehose.cluster.entries import LogEntry
from fyrehose.cluster.log_answers import LogAnswers
from fyrehose.cluster.peers import DRIFT
from fyrehose.cluster.role import Role, State
from fyrehose.cluster.shared_log import ISharedLog, Refused, Unavailable

T = TypeVar("T")

#: After how many seconds of silence a follower takes over if the leader's process is not connected.  A leader that has
#: lost its NATS server reaches another one sooner.
GONE = 1.0


@attrs.define(eq=False)
class Appends:
    """The appends of this leader: each is sent once at a time, and its first sending counts for what it proves.

    If an append is repeated, the shared log may have accepted the first one, so a proof is as old as that one.  An
    accepted append proves something only when everything before it is confirmed (rule 2): the shared log may accept an
    append that does not count, because another server has taken over.

    :ivar confirmed: when this leader sent the latest of the requests whose answers show that no other server had taken
        over by then
    """

    seconds: Callable[[], float]
    log: ISharedLog
    answers: LogAnswers
    confirmed: float = attrs.field(default=-inf, init=False)
    #: When this leader sent the last entry that was accepted; see :meth:`lead_alone`.
    _proven: float = attrs.field(default=-inf, init=False)
    _settled: LogEntry | None = attrs.field(default=None, init=False)  #: the entry that proves this
    #: The identity and the expected number of each append that waits for an answer.
    _under_way: set[tuple[str, int]] = attrs.field(factory=set, init=False)
    #: When the appends of unknown outcome were first sent.
    _sent: dict[str, float] = attrs.field(factory=dict, init=False)

    def send(self, role: Role, entry: LogEntry, expect: int, since: int) -> Deferred[None] | None:
        """Append *entry* as the one with the number *expect*, unless that is under way, and tell *role* the answer.

        :param since: how many entries *role* had applied when it decided so
        :return: fires when the append has ended, with or without an answer; None if it was under way already
        """
        if (entry.ident, expect) in self._under_way:
            return None
        self._under_way.add((entry.ident, expect))
        self.note_sent(entry)

        def accepted(number: int) -> None:
            self.answers.answered(self.seconds())
            role.accepted(entry, number)

        def refused(failure: Failure) -> None:
            error = failure.value
            if isinstance(error, Refused):
                self.answers.answered(self.seconds())
                role.refused(entry, error.last, since)
            else:
                failure.trap(Unavailable)
                self.answers.unavailable(str(error))

        def ended(result: T) -> T:
            self._under_way.discard((entry.ident, expect))
            return result

        appended: Deferred[int] = self.log.append(entry, expect)
        return appended.addCallbacks(accepted, refused).addBoth(ended)

    def note_sent(self, entry: LogEntry) -> None:
        """Note when *entry* is sent for the first time."""
        self._sent.setdefault(entry.ident, self.seconds())

    def looked(self, role: Role, asked: float, last: int) -> None:
        """Note that the shared log ended at entry *last* when it answered a request that was sent at the time *asked*.

        The answer shows that no other server has taken over only if this leader has confirmed the entry *last*.
        """
        if role.state is State.LEADER and last <= role.applied:
            self.confirmed = max(self.confirmed, asked)

    def lacks(self, role: Role) -> bool:
        """Return whether an entry of unknown outcome is not under way, so that it has to be sent again."""
        return any((item.entry.ident, item.expect) not in self._under_way for item in role.inflight if not item.known)

    def settle(self, role: Role) -> None:
        """Note when this leader sent the last entry that *role* has confirmed."""
        if role.state not in (State.LEADER, State.CANDIDATE):
            self._sent.clear()
            self._proven = -inf
            return
        if role.last_confirmed is not None and role.last_confirmed is not self._settled:
            self._settled = role.last_confirmed  # the next checkpoint at the same position has the same ident
            self._proven = max(self._proven, self._sent.get(role.last_confirmed.ident, -inf))
            self.confirmed = max(self.confirmed, self._proven)
        unknown = {item.entry.ident for item in role.inflight}
        self._sent = {ident: sent for ident, sent in self._sent.items() if ident in unknown}

    def lead_alone(self, role: Role, now: float) -> bool:
        """Return whether no other server can have taken over from this leader.

        A follower takes over only after it has read all entries, and at least :data:`GONE` seconds after the last
        entry.  So no server can have taken over if this leader sent an entry less than that time ago and the shared log
        has accepted the entry.
        """
        return role.state is State.LEADER and now - self._proven < GONE * (1 - DRIFT)
