"""So many bytes of large frames arrive at a time: in turns by network, bounded, and slow ones give way."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fyrehose.net.slots import RELIEF_S, Slots


@attrs.define(eq=False)
class Frame:
    """A frame of *frame* bytes that a peer sends.

    :ivar reads: whether its connection is read
    """

    slots: Slots
    network: str
    frame: int
    slow: bool = False
    reads: bool = attrs.field(default=False, init=False)
    ended: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.slots.wait(self)

    def proceed(self) -> None:
        assert self.slots.covers(self)
        self.reads = True

    def give_way(self) -> None:
        assert self.slow
        self.ended, self.reads, self.slow = True, False, False
        self.slots.leave(self)

    def grow(self, size: int) -> None:
        self.frame += size
        if not self.slots.covers(self):
            self.reads = False
            self.slots.wait(self)


def frames(slots: Slots, *sizes: int, network: str = "a", slow: bool = False) -> list[Frame]:
    return [Frame(slots, network, size, slow) for size in sizes]


def reading(found: list[Frame]) -> list[int]:
    return [frame.frame for frame in found if frame.reads]


def test_frames_of_several_networks_have_slots_up_to_the_capacity() -> None:
    slots = Slots(100)
    found = [*frames(slots, 40, network="a"), *frames(slots, 40, network="b"), *frames(slots, 20, 1, network="c")]
    assert (reading(found), slots.used) == ([40, 40, 20], 100)
    slots.leave(found[0])
    assert (reading(found[1:]), slots.used) == ([40, 20, 1], 61)


@pytest.mark.parametrize(("size", "fits"), [(40, True), (41, False)])
def test_a_network_has_at_most_twice_what_it_leaves_free(size: int, fits: bool) -> None:
    slots = Slots(100)
    [_, second] = frames(slots, 40, size)
    assert second.reads is fits, "40 and 40 leave 20, and half of the first is 20"
    assert reading(frames(slots, 20, network="b")) == [20]


def test_a_frame_of_any_size_has_a_slot_alone() -> None:
    slots = Slots(100)
    [large] = frames(slots, 1_000)
    [other] = frames(slots, 1, network="b")
    assert (large.reads, other.reads) == (True, False)
    slots.leave(large)
    assert other.reads


def test_networks_take_turns() -> None:
    slots = Slots(1)
    first = frames(slots, 1, network="x")[0]
    many, one = frames(slots, *[1] * 10, network="a"), frames(slots, 1, network="b")[0]
    slots.leave(first)
    assert many[0].reads
    slots.leave(many[0])
    assert one.reads
    slots.leave(one)
    assert many[1].reads


def test_every_second_frame_of_a_network_is_its_smallest() -> None:
    slots = Slots(100)
    current = frames(slots, 100)[0]
    waiting = frames(slots, 90, 80, 70, 60)
    order = []
    while waiting:
        slots.leave(current)
        current = next(frame for frame in waiting if frame.reads)
        waiting.remove(current)
        order.append(current.frame)
    assert order == [90, 60, 80, 70]


def test_a_large_frame_keeps_its_turn_before_smaller_ones_of_other_networks() -> None:
    slots = Slots(100)
    [first] = frames(slots, 60)
    [large], [small] = frames(slots, 90, network="b"), frames(slots, 10, network="c")
    assert not large.reads
    assert not small.reads
    slots.leave(first)
    assert (large.reads, small.reads) == (True, True)


def test_a_network_with_its_whole_share_does_not_delay_others() -> None:
    slots = Slots(100)
    [_, waiting] = frames(slots, 40, 41)
    assert reading(frames(slots, 30, network="b")) == [30]
    assert not waiting.reads


def test_no_more_slow_frames_give_way_than_are_needed() -> None:
    slots = Slots(100)
    slow = [*frames(slots, 30, network="a", slow=True), *frames(slots, 30, network="b", slow=True)]
    slow += frames(slots, 30, network="c", slow=True)
    [waiting] = frames(slots, 40, network="d")
    slots.relieve(0)
    assert waiting.reads
    assert [frame.ended for frame in slow] == [True, False, False]


def test_slow_frames_of_other_networks_do_not_give_way_to_a_network_with_its_whole_share() -> None:
    slots = Slots(100)
    [other] = frames(slots, 10, network="b", slow=True)
    [own, waiting] = frames(slots, 40, 40)
    slots.relieve(0)
    assert not other.ended
    assert not waiting.reads
    own.slow = True
    slots.relieve(RELIEF_S)
    assert own.ended
    assert waiting.reads


def test_a_slow_frame_stays_while_nothing_waits() -> None:
    slots = Slots(100)
    [slow] = frames(slots, 100, slow=True)
    slots.relieve(0)
    assert not slow.ended


def test_slow_frames_are_searched_once_a_second() -> None:
    slots = Slots(100)
    [first] = frames(slots, 100)
    [waiting] = frames(slots, 100, network="b")
    slots.relieve(0)
    first.slow = True
    slots.relieve(RELIEF_S / 2)
    assert not waiting.reads
    slots.relieve(RELIEF_S)
    assert waiting.reads


def test_a_frame_that_outgrows_its_slot_waits_behind_older_ones() -> None:
    slots = Slots(100)
    first, second = frames(slots, 45)[0], frames(slots, 45, network="b")[0]
    second.grow(20)
    assert not second.reads
    first.grow(20)
    assert first.reads, "the oldest may always go on"
    slots.leave(first)
    assert second.reads
    assert slots.used == 65


def test_a_growing_frame_that_ends_waits_no_more() -> None:
    slots = Slots(100)
    first, second = frames(slots, 50)[0], frames(slots, 50, network="b")[0]
    second.grow(20)
    assert slots.waits(second)
    slots.leave(second)
    assert not slots.waiting
    slots.leave(first)
    assert (second.reads, slots.used) == (False, 0)


def test_a_slow_frame_that_outgrows_its_slot_gives_way_to_another_one() -> None:
    slots = Slots(100)
    [_], [growing], [slow] = (
        frames(slots, 20),
        frames(slots, 30, network="b"),
        frames(slots, 30, network="c", slow=True),
    )
    growing.grow(40)
    slow.grow(40)
    slots.relieve(RELIEF_S)
    assert (growing.reads, slow.ended, slots.used, slots.waiting) == (True, True, 90, False)


def test_nothing_is_given_while_memory_becomes_free_otherwise() -> None:
    held_up = True
    slots = Slots(100, lambda: held_up)
    [frame] = frames(slots, 10)
    assert not frame.reads
    held_up = False
    slots.serve()
    assert frame.reads


def test_a_frame_that_leaves_the_queue_gets_no_slot() -> None:
    slots = Slots(100)
    [first, second] = frames(slots, 100, 100)
    slots.leave(second)
    slots.leave(second)
    slots.leave(first)
    assert (second.reads, slots.used, slots.waiting) == (False, 0, False)


class SlotsMachine(RuleBasedStateMachine):
    """Frames as they come: they wait, grow, become slow, and end."""

    capacity, largest = 100, 60

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots(self.capacity)
        self.frames: list[Frame] = []
        self.now = 0.0

    @rule(network=st.sampled_from("aab"), size=st.integers(1, largest))
    def begin(self, network: str, size: int) -> None:
        self.frames.append(Frame(self.slots, network, size))

    @precondition(lambda self: any(frame.reads for frame in self.frames))
    @rule(data=st.data(), size=st.integers(1, largest))
    def grow(self, data: st.DataObject, size: int) -> None:
        frame = data.draw(st.sampled_from([frame for frame in self.frames if frame.reads]))
        if frame.frame + size <= self.largest:
            frame.grow(size)

    @precondition(lambda self: any(frame.reads for frame in self.frames))
    @rule(data=st.data())
    def become_slow(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from([frame for frame in self.frames if frame.reads])).slow = True

    @precondition(lambda self: self.frames)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        frame = data.draw(st.sampled_from(self.frames))
        self.frames.remove(frame)
        self.slots.leave(frame)

    @rule()
    def look_for_slow_ones(self) -> None:
        self.now += RELIEF_S
        self.slots.relieve(self.now)
        self.frames = [frame for frame in self.frames if not frame.ended]

    @invariant()
    def it_is_bounded(self) -> None:
        assert self.slots.used <= self.capacity + self.largest
        assert self.slots.used >= sum(frame.frame for frame in self.frames if frame.reads)

    @invariant()
    def one_is_read(self) -> None:
        assert not self.frames or any(frame.reads for frame in self.frames)

    @invariant()
    def each_is_read_or_waits(self) -> None:
        assert all(frame.reads != self.slots.waits(frame) for frame in self.frames)

    def teardown(self) -> None:
        """Each frame is served, in as many steps as there are frames."""
        for _ in range(len(self.frames)):
            done = next(frame for frame in self.frames if frame.reads)
            self.frames.remove(done)
            self.slots.leave(done)
        assert (self.slots.used, self.slots.waiting) == (0, False)


TestSlotsMachine = SlotsMachine.TestCase
TestSlotsMachine.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
