"""Windows: a plain model of each record, and random schedules of what a session reports and asks."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import islice
from random import Random

import attrs
import pytest

from fyrehose.protocols.lumberjack import windows as module
from fyrehose.protocols.lumberjack.windows import Acks, Windows
from tests.verification.consumers.ran import Ran


@attrs.define(eq=False)
class Part:
    """One record: an event, or a part of one.

    :ivar ends: whether the event ends with it
    """

    ends: bool
    number: int
    sealed: bool
    durable: bool = False


@attrs.define(eq=False)
class Announced:
    """One window, with all that came in it; *size* is None without a W frame, and *sealed* says whether that counts."""

    version: int
    size: int | None
    sealed: bool
    parts: list[Part] = attrs.field(factory=list)
    told: int = 0  #: how many events silence has acknowledged
    finished: bool = False
    alike: int = 1  #: empty windows in a row are one entry

    @property
    def numbers(self) -> list[int]:
        return [part.number for part in self.parts if part.ends]

    @property
    def safe(self) -> bool:
        return self.sealed and all(part.sealed and part.durable for part in self.parts)


class History:
    """Does at random what a session does, and compares everything that can be seen with a list of all windows."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.real = Windows()
        self.windows: list[Announced] = []
        self.version = self.begun = 0
        self.frame = (2, 0, True)  # version, size and seal of the last W frame
        self.announced: int | None = None  # by the last W frame; 0 announces nothing for a writer of version 1

    @property
    def open(self) -> Announced | None:
        return self.windows[-1] if self.windows and not self.windows[-1].finished else None

    @property
    def implied(self) -> int | None:
        return (self.announced or None) if self.version == 1 else None

    @property
    def room(self) -> int:
        size = self.open.size if self.open else self.implied
        return 1 << 32 if size is None else size - len(self.open.numbers if self.open else [])

    def begin(self, window: Announced) -> None:
        self.windows.append(window)
        self.begun += 1

    def step(self) -> None:
        names = ("announce", "receive", "receive", "receive", "durable", "durable", "seal", "seal", "acks", "acks")
        getattr(self, self.random.choice((*names, "silence", "finish", "keep_alive")))()
        real = self.real
        assert (real.room, real.begun, len(real.unacknowledged)) == (self.room, self.begun, len(self.windows))
        assert real.ack_pending == any(len(window.numbers) > window.told for window in self.windows)
        assert real.silence_ack_due == bool(self.due())
        assert (real.open is None) == (self.open is None)
        unsealed = [w for w in self.windows if not w.sealed or not all(part.sealed for part in w.parts)]
        assert len(real.unsealed) == len(unsealed), "windows of a compressed frame are limited by their number"

    def announce(self) -> None:
        if self.random.random() < 0.5:  # otherwise the last one again
            self.frame = (
                self.random.choice((1, 2)),
                self.random.choice((0, 0, 1, 2, 5, 9)),
                self.random.random() < 0.7,
            )
        version, size, sealed = self.frame
        self.real.announce(version, size, sealed)
        self.finished()
        self.version, self.announced = version, size
        last = self.windows[-1] if self.windows else None
        if last and last.size == size == 0 and (last.version, last.sealed) == (version, sealed):
            last.alike += 1
        else:
            self.begin(Announced(version, size, sealed, finished=not size))

    def finish(self) -> None:
        self.real.finish()
        self.finished()

    def finished(self) -> None:
        if self.windows:
            self.windows[-1].finished = True

    def receive(self) -> None:
        if not self.version:
            self.version = self.real.version = self.random.choice((1, 2))
        count = self.random.randint(0, min(3, self.room))
        more = self.random.choice((0, 0, 1)) if count else 1  # parts in front of the event
        number, sealed = self.random.choice((0, 1, 7, 0xFFFFFFFF)), self.random.random() < 0.7
        self.real.receive(count, number, sealed, count + more if more else None)
        if self.open is None:
            self.begin(Announced(self.version, self.implied, sealed))
        window = self.open
        assert window is not None
        window.parts += [Part(at >= more, number, sealed) for at in range(count + more)]
        window.finished = bool(count) and len(window.numbers) == window.size

    def durable(self) -> None:
        waiting = [part for window in self.windows for part in window.parts if not part.durable]
        count = self.random.choice((len(waiting), len(waiting), self.random.randint(0, len(waiting))))
        self.real.durable(count)
        for part in islice(waiting, count):
            part.durable = True

    def seal(self) -> None:
        self.real.seal()
        for window in self.windows:
            window.sealed = True
            for part in window.parts:
                part.sealed = True

    def due(self) -> Acks:
        """Return the acknowledgement of all that the writer has sent of the oldest window."""
        oldest = self.windows[0] if self.windows else None
        owed = oldest is not None and oldest.safe and len(oldest.numbers) > oldest.told
        return [(oldest.version, oldest.numbers[-1])] if oldest and owed else []

    def acks(self) -> None:
        expected: Acks = []
        while self.windows and self.windows[0].finished and self.windows[0].safe:
            window = self.windows[0]
            expected += [(window.version, 0)] * window.alike if window.size == 0 else self.due()
            self.windows.pop(0)
        unannounced = bool(self.windows) and (self.windows[0].version, self.windows[0].size) == (2, None)
        expected += self.tell() if unannounced else []
        assert self.real.acks() == expected

    def tell(self) -> Acks:
        due = self.due()
        if due:
            self.windows[0].told = len(self.windows[0].numbers)
        return due

    def silence(self) -> None:
        assert self.real.silence_acks() == self.tell()

    def keep_alive(self) -> None:
        before = self.random.choice((0, 1, 2))
        version = self.windows[0].version if self.windows else self.version or before
        assert self.real.keep_alive_acks(before) == ([(2, 0)] if version == 2 else [])


@pytest.mark.parametrize("traced", [False, True])
def test_windows_agree_with_a_model_of_each_record(traced: bool) -> None:
    """Some schedules are traced, which is slow; they run every branch of the module."""
    with Ran(module) if traced else nullcontext() as ran:
        for seed in range(60 if traced else 150):
            history = History(seed)
            for _ in range(80):
                history.step()
    assert ran is None or ran.never() == set(), "these never happened, so the schedules prove nothing about them"
