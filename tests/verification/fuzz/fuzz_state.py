"""Fuzz the streams of state: what is durable must be replayed at a start, by a follower, and after retention.

    python tests/verification/fuzz/fuzz_state.py [EXECUTIONS [SEED]] [--decoder NAME ...] [--corpus DIR]

harness.py explains the options.  ``lives`` appends, commits, refuses, writes checkpoints, deletes records before the
last checkpoint, and starts servers and followers; a separate dictionary has the state that each of them must find.
``records`` damages records.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import harness
from twisted.internet.task import Clock

with harness.instrumented("fyrehose.broker"):
    from fyrehose.broker.broker import Broker
    from fyrehose.broker.sequencer import Sequencer
    from fyrehose.broker.state_stream import StateStream, replay
    from fyrehose.errors import JournalCorrupt
    from fyrehose.interfaces import JournalState
    from fyrehose.records import Run
    from fyrehose.subscriptions import positions
    from fyrehose.subscriptions.positions import Position, SavedPositions
    from fyrehose.testing import MemoryJournal

STREAM, SOURCE = positions.STREAM, positions.SOURCE


class Life:
    """A server that writes positions, and two dictionaries of them: those appended, and those durable."""

    def __init__(self) -> None:
        self.journal = MemoryJournal(auto=False)
        self.broker = Broker(Clock(), self.journal, Sequencer())
        self.broker.open()
        self.appended: dict[str, Position] = {}
        self.durable: dict[str, Position] = {}
        self.stream = self.of(SavedPositions())
        self.follower = SavedPositions()
        self.following = self.of(self.follower)

    def of(self, state: SavedPositions) -> StateStream:
        journal = self.journal
        stream = StateStream(
            STREAM, SOURCE, state, journal.read, journal.bounds, lambda runs: self.broker.publish(runs)
        )
        stream.everything, stream.checkpoint_bytes = self.everything, 400
        return stream

    def everything(self) -> list[bytes]:
        return [positions.pack(self.appended, None)]

    def append(self, name: str, position: Position | None) -> None:
        self.appended = {each: state for each, state in self.appended.items() if each != name}
        if position is not None:
            self.appended[name] = position
        after = self.appended

        def stored(result: Any) -> None:
            self.durable = after

        self.stream.append(positions.pack({name: position}, self.stream.checkpoint)).addCallbacks(
            stored, lambda _: None
        )

    def step(self, dice: harness.Dice) -> None:
        what = dice.below(9)
        if what < 3:
            gone = dice.one_in(4)
            self.append(dice.choice("abc"), None if gone else Position(stream="s", seq=dice.below(99)))
        elif what == 3:
            self.journal.commit()
        elif what == 4:
            self.stream.maintain(must_move=dice.one_in(3))
        elif what == 5:
            self.broker.publish([Run.of(STREAM, [b"of an operator"], source="http")]).addErrback(lambda _: None)
        elif what == 6:  # retention deletes what nothing needs
            oldest, _ = self.journal.bounds(STREAM)
            if self.stream.checkpoint > oldest:
                self.journal.forget(STREAM, self.stream.checkpoint)
        elif what == 7:  # the disk is full: appends that are not durable are refused
            self.journal.enter(JournalState.READ_ONLY, "full")
            self.journal.enter(JournalState.WRITABLE, "room")
            self.appended = self.durable
        else:
            self.following.follow()
            assert self.follower.positions == self.durable

    def check(self) -> None:
        """Check that a new server, and one that has followed, read the durable positions."""
        journal, saved = self.journal, SavedPositions()
        found = replay(saved, journal.read, journal.bounds(STREAM), STREAM, SOURCE)
        assert (saved.positions, found.missing) == (self.durable, 0)
        self.following.open()
        assert self.follower.positions == self.durable
        assert self.stream.checkpoint in (0, found.checkpoint) or found.checkpoint > self.stream.checkpoint


def lives(data: bytes) -> None:
    """Check a stream of state after random events."""
    dice, life = harness.Dice(data), Life()
    for _ in range(120):
        if not dice:
            break
        life.step(dice)
    life.check()
    life.journal.commit()
    life.check()


def records(data: bytes) -> None:
    """Check that damaged records and random JSON are either refused or yield a valid state."""
    dice = harness.Dice(data)
    whole = positions.pack(
        {"a": Position(stream="s", seq=1), "b": Position(stream="l.*", seq=0, streams={"l.a": 3})}, None
    )
    change = positions.pack({"a": Position(stream="s", seq=2), "b": None}, 1)
    payloads = [dice.damaged(whole), dice.damaged(change), dice.blob()]
    run = Run.of(STREAM, payloads, source=SOURCE).numbered(1, 1)

    def read(stream: str, start: int, size: int) -> tuple[Run, ...]:
        return (run.slice(max(0, start - 1), 3),) if start <= 3 else ()

    saved = SavedPositions()
    try:
        replay(saved, read, (1, 1 + dice.below(3)), STREAM, SOURCE)
    except JournalCorrupt:
        return
    for position in saved.positions.values():
        json.loads(positions.pack({"x": position}, 0))


DECODERS = {"lives": lives, "records": records}

if __name__ == "__main__":
    sys.exit(harness.main(__file__, DECODERS))
