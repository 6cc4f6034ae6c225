"""The publishes that wait for a commit: whose are next, and which orders stay what they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import attrs
import pytest

from fyrehose.journal.waiting import WaitingPublishes
from fyrehose.records import Publish, Run

LARGE, SMALL = 4000, 1


@attrs.define(eq=False)
class Queue:
    """Waiting publishes whose notes are their names."""

    waiting: WaitingPublishes = attrs.field(factory=WaitingPublishes, init=False)

    def add(self, network: str, name: str, size: int = SMALL, streams: Sequence[str] = ()) -> None:
        runs = [Run.of(stream, [b"x"], source="t", first_seq=1) for stream in streams or [network]]
        self.waiting.arrived.append(Publish(runs, size, None, name, network=network))

    def retire(self, name: str) -> None:
        self.waiting.arrived.append(Publish([], 0, None, name, retires=["s"]))

    def commit(self, most: int = LARGE, part: int = 0) -> list[str]:
        return [item.note for item in self.waiting.take(most, part)[0]]


@pytest.fixture
def queue() -> Queue:
    return Queue()


def test_publishes_that_fit_into_one_commit_keep_their_order(queue: Queue) -> None:
    for network, name in zip("abcab", "12345", strict=True):
        queue.add(network, name)
    assert len(queue.waiting) == 5
    assert queue.commit() == ["1", "2", "3", "4", "5"]
    assert (queue.commit(), len(queue.waiting)) == ([], 0)


def test_small_publish_of_another_network_is_part_of_the_next_commit(queue: Queue) -> None:
    for number in range(60):
        queue.add("heavy", f"heavy {number}", LARGE)
    queue.add("light", "light")
    assert queue.commit() == ["heavy 0"]
    assert queue.commit() == ["light"]
    assert queue.commit() == ["heavy 1"]
    queue.add("light", "light again")
    assert queue.commit() == ["light again"]
    assert len(queue.waiting) == 58


def test_networks_that_publish_as_much_get_as_much_of_the_disk(queue: Queue) -> None:
    for number in range(100):
        queue.add("many", f"many {number}", 40)
    for network in ("a", "b", "c"):
        queue.add(network, network, 400)
    first = queue.commit(most=1600)
    assert {"a", "b", "c"} <= set(first)
    assert [name for name in first if name.startswith("many")] == [f"many {number}" for number in range(10)]


def test_large_publishes_are_written_although_small_ones_never_end(queue: Queue) -> None:
    """Each commit takes as long as writing 1,000 bytes, so five small ones cost as much as a large one."""
    for number in range(3):
        queue.add("heavy", f"heavy {number}", LARGE)
    commits = []
    for number in range(13):
        queue.add("light", f"light {number}")
        commits.append(queue.commit(part=1000)[0].partition(" ")[0])
    assert commits.count("heavy") == 3


def test_commit_takes_a_single_publish_that_is_too_large(queue: Queue) -> None:
    queue.add("a", "larger", LARGE + 1)
    queue.add("a", "last")
    assert [queue.commit(), queue.commit(), queue.commit()] == [["larger"], ["last"], []]


def test_publish_comes_behind_those_of_other_networks_to_its_streams(queue: Queue) -> None:
    queue.add("heavy", "1", LARGE)
    queue.add("heavy", "2", LARGE, ["keys"])
    queue.add("heavy", "3", LARGE)
    queue.add("light", "4", SMALL, ["own", "keys"])
    queue.add("other", "5", SMALL)
    assert [queue.commit() for _ in range(4)] == [["1"], ["2"], ["5", "4"], ["3"]]


def test_publish_takes_those_with_it_that_it_follows_indirectly(queue: Queue) -> None:
    queue.add("a", "1", 900, ["s"])
    queue.add("b", "2", 900, ["s", "t"])
    queue.add("c", "3", SMALL, ["t"])
    queue.add("a", "4", LARGE)
    assert queue.commit(most=2000) == ["1", "2", "3"]


class Order:
    """The orders that commits keep, whatever waits: a plain model of them.

    :ivar submitted: what waits, in the order in which it was submitted
    """

    def __init__(self, dice: Random) -> None:
        self.dice, self.waiting = dice, WaitingPublishes()
        self.submitted: list[Publish] = []
        self.ran: Counter[str] = Counter()

    def submit(self) -> None:
        network, streams = self.dice.choice("abc"), self.dice.sample("rstuv", self.dice.choice([1, 1, 2, 3]))
        runs = [Run.of(stream, [b"x"], source="t", first_seq=1) for stream in streams]
        size, counted = self.dice.choice([1, 10, 60, 120]), self.dice.randrange(len(runs) + 1)
        publish = Publish(runs, size, None, len(self.submitted), network=network, counted=counted)
        if self.dice.random() < 0.03:
            publish = Publish([], 0, None, None, retires=["s"])
        self.waiting.arrived.append(publish)
        self.submitted.append(publish)

    def commit(self) -> None:
        items, size = self.waiting.take(100, self.dice.choice([0, 20]))
        assert (items == []) == (self.submitted == []), "a commit is empty although something waits"
        assert size == sum(item.size for item in items)
        assert size <= 100 or len(items) == 1, "a commit is larger than its limit"
        if items and self.dice.random() < 0.1:
            self.waiting.put_back(items)  # it could not be written
            again, size = self.waiting.take(100)
            assert (again, size) == (items, sum(item.size for item in items))
            self.ran["put back"] += 1
        for item in items:
            before = self.submitted[: self.submitted.index(item)]
            self.ran["overtakes"] += bool(before)
            self.ran["retires"] += bool(item.retires)
            assert not (item.retires and before), "a retirement overtakes a publish"
            for each in before:
                assert not each.retires, "a publish overtakes a retirement"
                assert each.network != item.network, "a publish overtakes one of its network"
                shared = {run.stream for run in each.runs} & {run.stream for run in item.runs}
                assert not shared, f"a publish overtakes one to its stream {shared}"
            self.submitted.remove(item)
        assert len(self.waiting) == len(self.submitted)


def test_no_commit_breaks_an_order() -> None:
    ran: Counter[str] = Counter()
    for seed in range(300):
        order = Order(Random(seed))
        for _ in range(60):
            order.dice.choice([order.submit, order.submit, order.submit, order.commit])()
        while order.submitted:
            order.commit()
        ran += order.ran
    assert min(ran[branch] for branch in ("overtakes", "retires", "put back")) > 100, ran
