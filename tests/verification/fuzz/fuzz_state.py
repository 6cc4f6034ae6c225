"""Fuzz the streams of state: what is durable must be replayed at a start, by a follower, and after retention.

    python tests/verification/fuzz/fuzz_state.py [EXECUTIONS [SEED]] [--decoder NAME ...] [--corpus DIR]

harness.py explains the options.  ``lives`` appends, commits, refuses, writes checkpoints, deletes records before the
last checkpoint, and starts servers and followers; a separate dictionary has the state that each of them must find.
``records`` damages records.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[3]))

import attrs
import harness
from twisted.internet.task import Clock

with harness.instrumented("fyrehose.broker"):
    from fyrehose.broker.broker import Broker
    from fyrehose.broker.sequencer import Sequencer
    from fyrehose.broker.state_stream import StateStream, replay
    from fyrehose.errors import JournalCorrupt
    from fyrehose.interfaces import JournalState
    from fyrehose.records import Run
    from fyrehose.subscriptions.progress import (
        SOURCE,
        STREAM,
        SavedSubscription,
        SavedSubscriptions,
        SubscriptionOptions,
        pack,
        pack_whole,
    )
    from fyrehose.testing import MemoryJournal

OPTIONS = SubscriptionOptions(stream="s", ack="all")


def positions(saved: SavedSubscriptions) -> dict[str, int]:
    """Return the position of each subscription."""
    return {name: each.progress("s").final.floor for name, each in saved.entries.items()}


class Life:
    """A server that writes positions, and two dictionaries of them by subscription: appended, and durable."""

    def __init__(self) -> None:
        self.journal = MemoryJournal(auto=False)
        self.broker = Broker(Clock(), self.journal, Sequencer())
        self.broker.open()
        self.appended: dict[str, int] = {}
        self.durable: dict[str, int] = {}
        self.stream = self.of(SavedSubscriptions())
        self.follower = SavedSubscriptions()
        self.following = self.of(self.follower)

    def of(self, state: SavedSubscriptions) -> StateStream:
        journal = self.journal
        stream = StateStream(
            STREAM,
            SOURCE,
            state,
            journal.read,
            journal.bounds,
            lambda runs: self.broker.publish(runs),
            turns=self.broker.turns,
        )
        stream.everything, stream.checkpoint_bytes = self.everything, 400
        stream.end = lambda begin: pack("", begin, {})
        return stream

    def everything(self) -> Iterator[bytes]:
        for name in list(self.appended):
            if name in self.appended:
                saved = SavedSubscription(OPTIONS)
                saved.progress("s").final.add(1, self.appended[name])
                yield from pack_whole(name, self.stream.checkpoint, saved)

    def append(self, name: str, position: int | None) -> None:
        """Append a deletion, or a creation or an acknowledgement, which moves the position to *position* or not."""
        before = self.appended.get(name)
        self.appended = {each: seq for each, seq in self.appended.items() if each != name}
        fields: dict[str, Any] = {"set": None}
        if position is not None and before is None:
            self.appended[name] = position
            fields = {"set": attrs.asdict(OPTIONS), "floors": {"s": position}, "epoch": 1, "redriven": 0}
        elif position is not None:
            self.appended[name] = max(position, before or 0, 1)
            fields = {"stream": "s", "final": [[1, max(1, position)]]}
        after = self.appended

        def stored(result: Any) -> None:
            self.durable = after

        self.stream.append(pack(name, self.stream.checkpoint, fields)).addCallbacks(stored, lambda _: None)

    def step(self, dice: harness.Dice) -> None:
        what = dice.below(9)
        if what < 3:
            gone = dice.one_in(4)
            self.append(dice.choice("abc"), None if gone else dice.below(99))
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
            assert positions(self.follower) == self.durable

    def check(self) -> None:
        """Check that a new server, and one that has followed, read the durable positions."""
        journal, saved = self.journal, SavedSubscriptions()
        found = replay(saved, journal.read, journal.bounds(STREAM), STREAM, SOURCE)
        assert (positions(saved), found.missing) == (self.durable, 0)
        self.following.open()
        assert positions(self.follower) == self.durable
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
    pattern = SavedSubscription(SubscriptionOptions(stream="l.*", pattern=True, ack="all"))
    pattern.progress("l.a").final.add(1, 3)
    shared = SavedSubscription(SubscriptionOptions(stream="s"), 3, True)
    shared.progress("s").apply({"final": [[2, 3], 5], "reach": 7, "ends": [[6, 7, 2, 1]]})
    wholes = [*pack_whole("a", 1, pattern), *pack_whole("b", 1, shared)]
    change = pack(
        "b", 1, {"stream": "s", "final": [6], "dead": [7], "letters": [[7, 5, "limit", 1]], "hold": [], "reach": 9}
    )
    payloads = [dice.damaged(dice.choice(wholes)), dice.damaged(change), dice.blob()]
    run = Run.of(STREAM, payloads, source=SOURCE).numbered(1, 1)

    def read(stream: str, start: int, size: int) -> tuple[Run, ...]:
        return (run.slice(max(0, start - 1), 3),) if start <= 3 else ()

    saved = SavedSubscriptions()
    try:
        replay(saved, read, (1, 1 + dice.below(3)), STREAM, SOURCE)
    except JournalCorrupt:
        return
    for name, each in saved.entries.items():
        list(pack_whole(name, 1, each))


DECODERS = {"lives": lives, "records": records}

if __name__ == "__main__":
    sys.exit(harness.main(__file__, DECODERS))
