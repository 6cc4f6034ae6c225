"""Fuzz the bounds of net/ (turns, slots, what is in flight) and the queue before the disk, each beside a plain account.

    python tests/verification/fuzz/fuzz_bounds.py [EXECUTIONS [SEED]] [--decoder NAME ...] [--corpus DIR]

harness.py explains the options.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import attrs
import harness
from twisted.internet.task import Clock

with harness.instrumented(
    "fyrehose.net.turns", "fyrehose.net.slots", "fyrehose.net.inflight", "fyrehose.journal.waiting"
):
    from fyrehose.journal.waiting import WaitingPublishes
    from fyrehose.net.inflight import InFlight
    from fyrehose.net.slots import RELIEF_S, Slots
    from fyrehose.net.turns import LEAST, ROUND, Turns
    from fyrehose.records import Publish, Run


class Reactor(Clock):
    """A clock that makes one turn of the reactor out of each second."""

    def callLater(self, delay: float, *args: Any, **kw: Any) -> Any:
        return super().callLater(max(delay, 1), *args, **kw)


@attrs.define(eq=False)
class Job:
    """Work that wants *left* turns; it may ask for the next one in its turn, or publish, which begins a round."""

    turns: Turns
    share: str
    size: int
    left: int
    handled: list[int]

    def take_turn(self) -> int:
        self.left -= 1
        self.handled.append(max(self.size, LEAST))
        if self.left:
            self.turns.ready(self, self.share)
        self.turns.run()
        return self.size

    def failed(self, failure: Any) -> None:
        raise AssertionError(failure)


def turns(data: bytes) -> None:
    """Check that all work is done, in bounded rounds, and that a share waits for at most two turns of each other."""
    dice, clock = harness.Dice(data), Reactor()
    table, jobs, handled = Turns(clock), list[Job](), list[int]()
    while dice:
        job = Job(table, dice.choice("abc"), dice.below(ROUND), 1 + dice.below(9), handled)
        jobs.append(job)
        table.ready(job, job.share)
        table.charge(dice.choice("abc"), dice.below(9) / 1000)
        if dice.one_in(3):
            handled.clear()
            clock.advance(1)
            assert sum(handled[:-1]) < ROUND
    while any(job.left for job in jobs):
        before = sum(job.left for job in jobs)
        clock.advance(1)
        assert sum(job.left for job in jobs) < before, "nothing is done"
    assert not clock.getDelayedCalls()


@attrs.define(eq=False)
class Peer:
    """A frame that waits for a slot, or a connection with an account."""

    network: str
    frame: int = 0
    slow: bool = False
    reads: bool = True
    gone: bool = False
    account: Any = None
    table: Any = None

    def proceed(self) -> None:
        assert self.table.covers(self)
        self.reads = True

    def give_way(self) -> None:
        assert self.slow
        self.gone, self.slow = True, False
        self.table.leave(self)

    def pauseProducing(self) -> None:
        assert self.reads
        self.reads = False

    def resumeProducing(self) -> None:
        assert not self.reads
        self.reads = True

    def drop(self) -> None:
        self.gone = True
        self.account.close()


def slots(data: bytes) -> None:
    """Check that slots are bounded, that one frame can always go on, and that each is served in the end."""
    dice, capacity, largest = harness.Dice(data), 100, 60
    table, frames, now = Slots(capacity), list[Peer](), 0.0
    while dice:
        what = dice.below(5)
        reading = [frame for frame in frames if frame.reads]
        if what < 2:
            frames.append(Peer(dice.choice("aab"), 1 + dice.below(largest), reads=False, table=table))
            table.wait(frames[-1])
        elif what == 2 and reading:
            frame = dice.choice(reading)
            frame.frame = min(largest, frame.frame + dice.below(30))
            frame.reads = table.covers(frame)
            if not frame.reads:
                table.wait(frame)
        elif what == 3 and reading:
            dice.choice(reading).slow = True
            now += RELIEF_S
            table.relieve(now)
        elif frames:
            table.leave(frames.pop(dice.below(len(frames))))
        frames = [frame for frame in frames if not frame.gone]
        assert sum(frame.frame for frame in frames if frame.reads) <= table.used <= capacity + largest
        assert not frames or any(frame.reads for frame in frames)
    while frames:
        done = next(frame for frame in frames if frame.reads)
        frames.remove(done)
        table.leave(done)
    assert (table.used, table.waiting) == (0, False)


def inflight(data: bytes) -> None:
    """Check that memory is bounded and counted exactly, and that whoever waits is served in the end."""
    dice, read, largest, now = harness.Dice(data), 16, 300, 0.0
    budget, peers, held = InFlight(limit=2048, each=700), list[Peer](), list[tuple[Any, int]]()

    def advance(peer: Peer, size: int) -> None:
        account = peer.account
        while peer.reads and peer.frame and size > 0:
            size -= read
            account.expect(peer.frame, min(peer.frame, account.arrived + read))
            if account.arrived == peer.frame:
                held.append((account, peer.frame))
                account.complete()
                account.hold(peer.frame, peer.frame)
                peer.frame, peer.slow = 0, False
                account.expect(0, 0)

    while dice:
        what = dice.below(6)
        if what == 0 or not peers:
            peers.append(Peer(dice.choice("aabc")))
            peers[-1].account = budget.account(peers[-1], peers[-1].network, peers[-1])
        elif what == 1 and held:
            account, size = held.pop(dice.below(len(held)))
            account.release(size, size)
        elif what == 2:
            peer = dice.choice(peers)
            peer.slow = bool(peer.frame) and not peer.slow
        elif what == 3 and dice.one_in(4):
            peers.pop(dice.below(len(peers))).account.close()
        else:
            peer = dice.choice(peers)
            if peer.reads:
                peer.frame = max(peer.frame, 1 + dice.below(largest))
                advance(peer, dice.below(largest))
        now += RELIEF_S
        for peer in peers:
            peer.account.retry(now)
        peers = [peer for peer in peers if not peer.gone]
        assert budget.used == sum(size for _, size in held) + sum(peer.account.arrived for peer in peers)
        assert budget.used <= budget.limit + largest + read * len(peers)
        assert held or not peers or any(peer.reads for peer in peers)
    for _ in range(20 * len(peers)):
        while held:
            account, size = held.pop()
            account.release(size, size)
        for peer in peers:
            peer.slow = False
            advance(peer, 100)
            now += RELIEF_S
            peer.account.retry(now)
    assert all(peer.reads and not peer.frame for peer in peers)
    for account, size in held:
        account.release(size, size)
    assert budget.submitting == budget.held == 0


def commits(data: bytes) -> None:
    """Check that each publish is committed once, in the order of its network, its streams and retirements."""
    dice, queue, sent, done = harness.Dice(data), WaitingPublishes(), list[Publish](), list[Publish]()
    back: list[Publish] = []

    def take() -> None:
        items, size = queue.take(most := 1 + dice.below(500), dice.below(200))
        assert size == sum(item.size for item in items)
        assert not back or items == back, "a commit that was put back is next"
        assert back or len(items) <= 1 or size <= most
        assert len(items) <= 1 or not any(item.retires for item in items)
        back.clear()
        if dice.one_in(8):
            queue.put_back(items)
            back.extend(items)
        else:
            done.extend(items)

    while dice:
        if dice.one_in(4):
            take()
        elif dice.one_in(20):
            sent.append(Publish([], 0, None, len(sent), retires=["a"]))
            queue.arrived.append(sent[-1])
        else:
            runs = [Run.of(dice.choice("abcdef"), [b""], source="") for _ in range(1 + dice.below(2))]
            sent.append(Publish(runs, 1 + dice.below(300), None, len(sent), network=dice.choice("xyz")))
            queue.arrived.append(sent[-1])
    while len(queue):
        before = len(queue)
        take()
        assert back or len(queue) < before
    assert sorted(item.note for item in done) == [item.note for item in sent]
    last: dict[str, int] = {}
    for place, item in enumerate(done):
        assert item.note == place or not item.retires, "a retirement is behind all that was submitted before it"
        for name in ["retired"] if item.retires else [f"<{item.network}", *(run.stream for run in item.runs)]:
            assert item.note > max(last.get(name, -1), last.get("retired", -1)), f"{name}: {item.note} is late"
        for name in ["retired"] if item.retires else [f"<{item.network}", *{run.stream for run in item.runs}]:
            last[name] = item.note


DECODERS = {"turns": turns, "slots": slots, "inflight": inflight, "commits": commits}

if __name__ == "__main__":
    sys.exit(harness.main(__file__, DECODERS))
