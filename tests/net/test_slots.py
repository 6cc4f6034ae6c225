"""So many bytes of large frames arrive at a time: in turns by network, bounded, and slow ones give way."""

from __future__ import annotations

from collections import Counter
from random import Random

import attrs

from fyrehose.net.slots import RELIEF_S, Slots


@attrs.define(eq=False)
class Frame:
    """A frame of *frame* bytes that a peer sends.

    :ivar more: by how many bytes it grows at once, each time that it gets a slot; by 0 if it is complete then
    :ivar reads: whether its connection is read
    """

    slots: Slots
    network: str
    frame: int
    slow: bool = False
    more: tuple[int, ...] = ()
    reads: bool = attrs.field(default=False, init=False)
    ended: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.slots.wait(self)

    def proceed(self) -> None:
        assert self.slots.covers(self)
        self.reads = True
        if self.more:
            size, *self.more = self.more
            if size:
                self.grow(size)
            else:
                self.end()

    def give_way(self) -> None:
        assert self.slow
        self.end()

    def end(self) -> None:
        self.ended, self.reads, self.slow = True, False, False
        self.slots.leave(self)

    def grow(self, size: int) -> None:
        self.frame += size
        if not self.slots.covers(self):
            self.reads = False
            self.slots.wait(self)


def frames(slots: Slots, *sizes: int, network: str = "a", slow: bool = False) -> list[Frame]:
    return [Frame(slots, network, size, slow) for size in sizes]


def test_no_more_slow_frames_give_way_than_are_needed() -> None:
    slots = Slots(100)
    slow = [*frames(slots, 30, network="a", slow=True), *frames(slots, 30, network="b", slow=True)]
    slow += frames(slots, 30, network="c", slow=True)
    [waiting] = frames(slots, 40, network="d")
    slots.relieve(0)
    assert waiting.reads
    assert [frame.ended for frame in slow] == [True, False, False]


@attrs.define(eq=False)
class Table:
    """A plain model of the rules at the top of slots.py, which looks at all frames for each question.

    :ivar sizes: the sizes of all frames, and how they grow when they get slots
    :ivar slots: the frames that have slots, the oldest first, and their sizes
    :ivar queues: by network, the frames that wait for a first slot; the network whose turn is next comes first
    """

    capacity: int
    held_up: bool = False
    sizes: dict[Frame, tuple[int, ...]] = attrs.field(factory=dict, init=False)
    slots: dict[Frame, int] = attrs.field(factory=dict, init=False)
    growing: list[Frame] = attrs.field(factory=list, init=False)
    queues: dict[str, list[Frame]] = attrs.field(factory=dict, init=False)
    given: Counter[str] = attrs.field(factory=Counter, init=False)
    slow: set[Frame] = attrs.field(factory=set, init=False)
    ended: list[Frame] = attrs.field(factory=list, init=False)
    changes: int = attrs.field(default=0, init=False)
    relieved: float = attrs.field(default=-RELIEF_S, init=False)

    @property
    def used(self) -> int:
        return sum(self.slots.values())

    def reads(self, frame: Frame) -> bool:
        return self.slots.get(frame, -1) >= self.size(frame)

    def size(self, frame: Frame) -> int:
        return self.sizes[frame][0]

    def wait(self, frame: Frame, *sizes: int) -> None:
        self.sizes[frame] = sizes
        (self.growing if frame in self.slots else self.queues.setdefault(frame.network, [])).append(frame)
        self.serve()

    def proceed(self, frame: Frame) -> None:
        """Give *frame* the slot; it may grow, or be complete, at once."""
        size, *more = self.sizes[frame]
        self.slots[frame] = size
        if more:
            self.sizes[frame] = (size + more[0], *more[1:])
            self.changes += 1
            if more[0]:
                self.growing.append(frame)
            else:
                self.end(frame)

    def end(self, frame: Frame) -> None:
        self.ended.append(frame)
        self.forget(frame)

    def leave(self, frame: Frame) -> None:
        self.forget(frame)
        self.serve()

    def forget(self, frame: Frame) -> None:
        self.slots.pop(frame, None)
        self.growing = [each for each in self.growing if each is not frame]
        queue = [each for each in self.queues.get(frame.network, ()) if each is not frame]
        self.queues |= {frame.network: queue} if frame.network in self.queues else {}
        if not queue:
            self.queues.pop(frame.network, None)
            self.given.pop(frame.network, None)

    def relieve(self, now: float) -> None:
        if (self.queues or self.growing) and now >= self.relieved + RELIEF_S:
            self.relieved = now
            self.serve(relieve=True)

    def serve(self, relieve: bool = False) -> None:
        before = -1
        while before < self.changes:  # what a frame leaves behind is given to others at once
            before = self.changes
            for frame in list(self.growing):
                more = self.size(frame) - self.slots.get(frame, self.size(frame))
                self.end_slow(self.used + more - self.capacity if relieve else 0)
                if frame in self.growing and (self.used + more <= self.capacity or frame is next(iter(self.slots))):
                    self.growing.remove(frame)
                    self.proceed(frame)
            while not self.held_up and self.give(relieve):
                pass

    def give(self, relieve: bool) -> bool:
        for network, queue in list(self.queues.items()):
            frame = min(queue, key=self.size) if self.given[network] % 2 else queue[0]
            if relieve:
                self.end_slow(self.over(frame, 0))
                self.end_slow(self.over(frame, self.of(network)), network)
            if self.over(frame, self.of(network)) <= 0:
                given = self.given[network] + 1
                self.forget(frame)
                if network in self.queues:
                    self.queues[network] = self.queues.pop(network)
                    self.given[network] = given
                self.proceed(frame)
                return True
            if not self.of(network):
                return False
        return False

    def of(self, network: str) -> int:
        return sum(size for frame, size in self.slots.items() if frame.network == network)

    def over(self, frame: Frame, share: int) -> int:
        return self.used + self.size(frame) + share // 2 - self.capacity if self.slots else 0

    def end_slow(self, needed: int, network: str | None = None) -> None:
        for frame, size in list(self.slots.items()):
            if needed > 0 and frame in self.slow and network in (None, frame.network):
                needed -= size
                self.changes += 1
                self.end(frame)


class History:
    """A random history of frames, beside the table: they wait, grow, become slow, and end."""

    def __init__(self, seed: int) -> None:
        self.dice, self.table, self.now = Random(seed), Table(100), 0.0
        self.slots = Slots(100, lambda: self.table.held_up)
        self.frames: list[Frame] = []
        self.most = self.dice.choice((3, 8, 20))  #: how many frames there are at a time

    def begin(self) -> None:
        if len(self.frames) < self.most:
            size = self.dice.randint(1, self.dice.choice((20, 60, 130)))
            more = self.dice.choice(((), (), (), (0,), (5,), (90,), (30, 0)))
            self.frames.append(Frame(self.slots, self.dice.choice("aaabc"), size, more=more))
            self.table.wait(self.frames[-1], size, *more)

    def grow(self) -> None:
        if found := [frame for frame in self.frames if frame.reads]:
            frame = self.dice.choice(found)
            size = self.dice.randint(1, 60)
            frame.grow(size)
            before, *more = self.table.sizes[frame]
            self.table.wait(frame, before + size, *more)

    def become_slow(self) -> None:
        if found := [frame for frame in self.frames if frame.reads]:
            frame = self.dice.choice(found)
            frame.slow = True
            self.table.slow.add(frame)

    def end(self) -> None:
        if self.frames:
            frame = self.frames.pop(self.dice.randrange(len(self.frames)))
            for _ in range(2):
                self.slots.leave(frame)
                self.table.leave(frame)

    def relieve(self) -> None:
        self.now += self.dice.choice((0.0, RELIEF_S / 2, RELIEF_S))
        self.slots.relieve(self.now)
        self.table.relieve(self.now)

    def hold_up(self) -> None:
        """Let memory become free without slots, or no more."""
        self.table.held_up = not self.table.held_up
        self.slots.serve()
        self.table.serve()

    def check(self) -> None:
        table = self.table
        assert [frame.reads for frame in self.frames] == [table.reads(frame) for frame in self.frames]
        assert {frame for frame in self.frames if frame.ended} == set(table.ended) & set(self.frames)
        self.frames = [frame for frame in self.frames if not frame.ended]
        assert (self.slots.used, self.slots.waiting) == (table.used, bool(table.queues or table.growing))
        assert all(frame.reads != self.slots.waits(frame) for frame in self.frames)
        assert not self.frames or table.held_up or any(frame.reads for frame in self.frames), "none is read"

    def step(self) -> None:
        often = [self.begin] * 6 + [self.grow, self.become_slow, self.relieve] * 2 + [self.end] * 3 + [self.hold_up]
        self.dice.choice(often)()
        self.check()

    def finish(self) -> None:
        """Each frame is served, in as many steps as there are frames."""
        if self.table.held_up:
            self.hold_up()
        while waiting := [frame for frame in self.frames if not frame.ended]:
            next(frame for frame in waiting if frame.reads).end()
        assert (self.slots.used, self.slots.waiting) == (0, False)


def test_slots_are_given_as_by_the_table_of_all_frames() -> None:
    slow = given = 0
    for seed in range(200):
        history = History(seed)
        for _ in range(80):
            history.step()
        slow += len(history.table.ended)
        given += sum(count > 2 for count in history.table.given.values())
        history.finish()
    assert min(slow, given) > 20, f"hardly tried: {slow} slow frames, {given} queues of several frames"
