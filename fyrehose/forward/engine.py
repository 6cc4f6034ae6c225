"""Forward the records of one named subscription: batches, attempts, dead letters, acknowledgements.

    take(run) -> lane of its stream -> batch -> BatchSender.send -> BatchOutcome -> the subscription's position moves

A *lane* has the records of one stream that are not delivered, in order.  One batch is under way at a time, so that the
position moves over delivered records only; the tailer is paused while much is waiting.  The position moves to the end
of a batch and never into it, so a batch that is sent again after a restart begins where it began before.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections import deque
from collections.abc import Sequence
from typing import Any

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from fyrehose.forward.destination import DONE, BatchOutcome, BatchSender, ForwardTable
from fyrehose.net.clients import Backoff
from fyrehose.records import Buffer, Run

log = Logger()

#: How many batches wait at most while one is under way: above the first number reading pauses, below the second it
#: resumes.
HIGH, LOW = 4, 2


@attrs.define(eq=False)
class StreamLane:
    """The records of one stream.

    :ivar runs: the records that are in no batch yet
    :ivar owed: the number of the last record of each run that was taken, and what its acknowledgement waits for
    """

    runs: deque[Run] = attrs.field(factory=deque)
    owed: deque[tuple[int, Deferred[int]]] = attrs.field(factory=deque)


Batch = list[tuple[StreamLane, Run]]


@attrs.define(eq=False)
class ForwardCounts:
    """Counts of records and batches since the start.

    :ivar delivered: confirmed by the destination
    :ivar dead: made dead letters
    :ivar retries: batches that were sent again
    :ivar lost: no longer kept by the server that is read
    :ivar error: why a batch was last sent again, or a record became a dead letter
    :ivar error_at: when that was, by the reactor's clock
    """

    delivered: int = 0
    delivered_bytes: int = 0
    dead: int = 0
    retries: int = 0
    lost: int = 0
    error: str = ""
    error_at: float = 0.0


def dead_letter(run: Run, reason: str, with_payload: bool = True) -> Run:
    """Return the letter that says why the only record of *run* was refused, with its payload or only its size."""
    payload = bytes(run.payload)
    letter: dict[str, object] = {"stream": run.stream, "seq": run.first_seq, "time": run.time, "why": reason}
    if not with_payload:
        letter["payload_bytes"] = len(payload)
    else:
        try:
            letter["payload"] = payload.decode()
        except UnicodeDecodeError:
            letter["payload_base64"] = b64encode(payload).decode()
    # The number of the record makes the key of the letter, so that a repetition is stored once.
    return Run.of(run.stream, [json.dumps(letter).encode()], source="", first_seq=run.first_seq)


@attrs.define(eq=False)
class Forwarding:
    """Forwards the records of one subscription.

    :ivar tailer: reads the subscription: an :class:`fyrehose.interfaces.ITailer`
    :ivar letters: where dead letters go
    :ivar error: why the batch under way is not delivered; "" if nothing is wrong
    """

    reactor: Any
    table: ForwardTable
    tailer: Any
    sender: BatchSender
    letters: BatchSender
    counts: ForwardCounts = attrs.field(factory=ForwardCounts)
    error: str = attrs.field(default="", init=False)
    waiting_bytes: int = attrs.field(default=0, init=False)
    _lanes: dict[str, StreamLane] = attrs.field(factory=dict, init=False)
    _paused: bool = attrs.field(default=False, init=False)
    _wakes: Deferred[None] | None = attrs.field(default=None, init=False)

    # Called by the tailer.

    def take(self, run: Run) -> Deferred[int]:
        """Queue *run*; the Deferred fires with the number up to which its stream is delivered."""
        lane = self._lanes.setdefault(run.stream, StreamLane())
        if lane.owed and run.first_seq <= lane.owed[-1][0]:
            self._forget(lane)  # The server begins again, at the position that it keeps.
        taken: Deferred[int] = Deferred()
        lane.runs.append(run)
        lane.owed.append((run.last_seq, taken))
        self.waiting_bytes += run.size
        self._pause_or_resume()
        if self._wakes is not None:
            wakes, self._wakes = self._wakes, None
            wakes.callback(None)
        return taken

    def lost(self, first: int, last: int, stream: str | None = None) -> None:
        """Count records that the server no longer keeps."""
        self.counts.lost += last - first + 1
        log.warn(
            "{name}: records {first} to {last} of stream {stream!r} are no longer kept, and are not forwarded",
            name=self.table.name,
            first=first,
            last=last,
            stream=stream or self.table.streams,
        )

    def restarted(self, end: int, stream: str | None = None) -> None:
        """Forget what waits, because the server has another journal, in which the numbers have begun again."""
        log.warn("{name}: the server has another journal; reading from its position there", name=self.table.name)
        for lane in self._lanes.values():
            self._forget(lane)
        self._lanes = {}
        self._pause_or_resume()

    # The loop.

    async def run(self) -> None:
        """Deliver batches until it is cancelled."""
        while True:
            if not any(lane.runs for lane in self._lanes.values()):
                self._wakes = Deferred()
                await self._wakes
            if self.table.linger and self.waiting_bytes < self.table.batch_bytes:
                await deferLater(self.reactor, self.table.linger)
            batch = self._cut()
            if batch:
                dead = await self._deliver(batch)
                self.counts.delivered += sum(len(run) for _, run in batch) - len(dead)
                self.counts.delivered_bytes += sum(len(run.payload) for _, run in batch) - sum(map(len, dead))
                self._settle(batch)

    def _cut(self) -> Batch:
        """Take the records of the next batch from the lanes."""
        batch: Batch = []
        size, count = self.table.batch_bytes, self.table.batch_count
        for stream, lane in list(self._lanes.items()):
            while lane.runs and count > 0 and (not batch or lane.runs[0].sizes[0] <= size):
                run = lane.runs[0]
                head = run.slice(0, min(run.fitting(size), count))
                lane.runs.popleft()
                if len(head) < len(run):
                    lane.runs.appendleft(run.slice(len(head), len(run)))
                batch.append((lane, head))
                count, size = count - len(head), size - len(head.payload)
                self.waiting_bytes -= head.size
            if batch and batch[-1][0] is lane:
                self._lanes[stream] = self._lanes.pop(stream)  # the next batch begins with another stream
        self._pause_or_resume()
        return batch

    def _pause_or_resume(self) -> None:
        """Pause reading while much is waiting; called after each change of what waits."""
        if not self._paused and self.waiting_bytes > HIGH * self.table.batch_bytes:
            self._paused = True
            self.tailer.pause()
        elif self._paused and self.waiting_bytes <= LOW * self.table.batch_bytes:
            self._paused = False
            self.tailer.resume()

    async def _deliver(self, batch: Batch) -> list[Buffer]:
        """Send a batch until each of its records is delivered, or a dead letter; *batch* may get more records.

        :return: the payloads of those that are dead letters
        """
        dead: list[Buffer] = []
        failures, left = 0, [run for _, run in batch]
        while left:
            outcome = await self._try(self.sender, left)
            for run, reason in outcome.refused:
                await self._bury(run, reason)
                dead.append(run.payload)
            left = list(outcome.again)
            if left:
                failures += 1
                self.counts.retries += 1
                await self._pause(outcome.reason, failures, outcome.pause)
            if outcome.more:
                more = self._cut()
                batch += more
                left += [run for _, run in more]
        if self.error:
            log.warn("{name}: the destination takes records again", name=self.table.name)
        self.error = ""
        return dead

    async def _try(self, sender: BatchSender, runs: Sequence[Run]) -> BatchOutcome:
        try:
            return await sender.send(runs)
        except CancelledError:
            raise
        except Exception as error:
            log.failure("{name}: sending failed; please report this bug", name=self.table.name)
            return BatchOutcome(again=runs, reason=repr(error))

    async def _bury(self, run: Run, reason: str) -> None:
        """Publish the only record of *run* as a dead letter; return when that is durable."""
        letter, failures = dead_letter(run, reason), 0
        while (outcome := await self._try(self.letters, [letter])) != DONE:
            if outcome.refused:  # it is larger than the server allows
                letter = dead_letter(run, reason, with_payload=False)
            failures += 1
            why = outcome.reason or outcome.refused[0][1]
            record = f"the dead letter of record {run.first_seq} of stream {run.stream!r}"
            await self._pause(f"{record}: {why}", failures, outcome.pause)
        self.counts.dead += 1
        self._note(f"record {run.first_seq} of stream {run.stream!r} is a dead letter: {reason}")

    def _settle(self, batch: Batch) -> None:
        """Acknowledge the records of a delivered batch."""
        ends: dict[StreamLane, int] = {}
        for lane, run in batch:
            ends[lane] = max(ends.get(lane, 0), run.last_seq)
        for lane, end in ends.items():
            while lane.runs and lane.runs[0].first_seq <= end:  # they were sent again while the batch was under way
                run = lane.runs.popleft()
                self.waiting_bytes -= run.size
                if run.last_seq > end:
                    rest = run.slice(end - run.last_seq, len(run))
                    self.waiting_bytes += rest.size
                    lane.runs.appendleft(rest)
            while lane.owed and lane.owed[0][0] <= end:
                lane.owed.popleft()[1].callback(end)
        for stream in [name for name, lane in self._lanes.items() if not lane.owed]:
            del self._lanes[stream]
        self._pause_or_resume()

    async def _pause(self, reason: str, failures: int, least: float) -> None:
        """Say why records are sent again, and wait, at least *least* seconds."""
        if reason != self.error:
            log.warn("{name}: {reason}; retrying", name=self.table.name, reason=reason)
        self.error = reason
        self._note(reason)
        await deferLater(self.reactor, max(least, Backoff(longest=self.table.longest_pause)(failures)))

    def _note(self, error: str) -> None:
        self.counts.error, self.counts.error_at = error, self.reactor.seconds()

    def _forget(self, lane: StreamLane) -> None:
        self.waiting_bytes -= sum(run.size for run in lane.runs)
        lane.runs.clear()
        lane.owed.clear()
