"""Find out whether a backbone has begun its sequences again, because it has another journal.

    an old sequence comes once more, unasked
    begin(highest) -> REQUESTs for the highest sequence that the client knows, and for all up to it
    DELIVERs of the backbone itself -> it has that sequence: the same journal; it answers without it: another one

No frame of the protocol names the journal, so only answers can tell.  A REQUEST without an answer says nothing:
datagrams may be lost, and a backbone answers nothing about records that it no longer keeps.  So the client decides for
another journal only if several REQUESTs were answered with the same earlier records, and none with the highest
sequence.  A server of a cluster, which may lag behind another one, does not answer REQUESTs that end beyond its end.
"""

from __future__ import annotations

import attrs

from fyrehose.records import Run

#: Time between two rounds of REQUESTs, in seconds; a server ignores a repetition within 0.1 s.
ROUND = 0.2
#: How many rounds only ask for the highest sequence, because an answer to the other REQUEST is large.
FIRST_ROUNDS = 2
#: In how many rounds the backbone has to answer without the highest sequence.
EVIDENCE = 4
#: How many rounds there are before the check ends without a result.
ROUNDS = 12


@attrs.define(eq=False)
class RestartCheck:
    """One check at a time, whether the backbone still has the records that the client knows.

    :ivar highest: the highest sequence that the client knows; 0: no check is running
    :ivar end: the highest sequence that the backbone has sent during the check, or just before
    :ivar first: the first sequence that the backbone has sent without a REQUEST since it may have another journal;
        0: none
    """

    highest: int = attrs.field(default=0, init=False)
    end: int = attrs.field(default=0, init=False)
    first: int = attrs.field(default=0, init=False)
    _round: int = attrs.field(default=0, init=False)
    _due: float = attrs.field(default=0.0, init=False)
    #: the lowest sequence of the answers, the number of rounds in which it came, and the last such round
    _lowest: int = attrs.field(default=0, init=False)
    _evidence: int = attrs.field(default=0, init=False)
    _counted: int = attrs.field(default=0, init=False)

    @property
    def suspects(self) -> bool:
        """Return whether the backbone has sent earlier records, so that it may have another journal."""
        return bool(self.highest and self.first)

    def begin(self, highest: int, now: float) -> None:
        """Begin a check, unless one is running, or no record is known."""
        if not self.highest and highest:
            self.highest, self._due = highest, now
            self.end = self.first = self._round = self._lowest = self._evidence = self._counted = 0

    def stop(self) -> None:
        """End the check."""
        self.highest = 0

    def due(self, now: float) -> list[tuple[int, int]]:
        """Return the ranges to request now; end the check after the last round."""
        if not self.highest or now < self._due:
            return []
        if self._round == ROUNDS:
            self.stop()
            return []
        self._round += 1
        self._due = now + ROUND
        ranges = [(self.highest, self.highest)]
        return ranges if self._round <= FIRST_ROUNDS else [*ranges, (1, self.highest)]

    def next_due(self) -> float | None:
        """Return when :meth:`due` has to be called; None: no check is running."""
        return self._due if self.highest else None

    def received(self, run: Run) -> bool:
        """Process records that the backbone itself has sent; return whether it has another journal."""
        if not self.highest:
            return False
        if run.last_seq >= self.highest:
            self.stop()
            return False
        self.end = max(self.end, run.last_seq)
        if not self._lowest or run.first_seq < self._lowest:
            self._lowest, self._evidence, self._counted = run.first_seq, 0, 0
            self.first = self.first or run.first_seq
        if run.first_seq == self._lowest and self._counted < self._round:
            self._counted = self._round
            self._evidence += self._round > FIRST_ROUNDS
        return self._evidence >= EVIDENCE
