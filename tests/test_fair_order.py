"""The order in which shares take turns: by what each has paid."""

from __future__ import annotations

from collections import Counter
from random import Random

from fyrehose.fair_order import MOST_IDLE, FairOrder


class Model:
    """The payments of each share, and the shares that wait, in the order in which they began to.

    :ivar level: what the share whose turn was last had paid before it
    """

    def __init__(self, seed: int, seen: Counter[str]) -> None:
        self.dice, self.seen, self.order = Random(seed), seen, FairOrder()
        self.paid: dict[str, float] = {}
        self.waiting: dict[str, bool] = {}  #: True: the share was charged while it waits
        self.level = 0.0

    def step(self) -> None:
        share, chance = self.dice.choice("abcdef"), self.dice.random()
        if chance < 0.4:
            if share not in self.waiting:
                self.order.enter(share)
                self.paid[share] = max(self.paid.get(share, 0.0), self.level)
                self.waiting[share] = False
        elif chance < 0.6:
            self.pay(share, self.dice.choice((0.0, 1.0, 1.0, 3.5)))
        elif chance < 0.99:
            self.take_turn()
        elif chance < 0.997:
            for number in range(MOST_IDLE):
                self.order.pay(str(number), 0.0)
            self.seen["crowd"] += 1
        else:
            self.order.forget()
            self.paid, self.waiting, self.level = {}, {}, 0.0
        assert len(self.order) == len(self.waiting)

    def pay(self, share: str, cost: float) -> None:
        self.order.pay(share, cost)
        self.paid[share] = max(self.paid.get(share, 0.0), self.level) + cost
        if share in self.waiting:
            self.waiting[share] = True
        self.seen["paid while it waits" if share in self.waiting else "paid"] += 1

    def take_turn(self) -> None:
        share = self.order.next()
        if not self.waiting:
            assert share is None, "nobody waits"
            return
        least = min(self.paid[each] for each in self.waiting)
        first = [each for each in self.waiting if self.paid[each] == least]
        assert share in first, f"{share} is next, of {self.waiting.keys()}, which have paid {self.paid}"
        uncharged = [each for each in first if not self.waiting[each]]
        assert self.waiting[share] or share == uncharged[0], "of two that have paid the same, the first is next"
        self.seen["tie"] += len(first) > 1
        self.level = least
        del self.waiting[share]
        if self.dice.random() < 0.7:  # for its turn
            self.pay(share, self.dice.choice((1.0, 1.0, 4.0)))


def test_next_turn_is_that_of_the_share_that_has_paid_least() -> None:
    seen: Counter[str] = Counter()
    for seed in range(30):
        model = Model(seed, seen)
        for _ in range(400):
            model.step()
    cases = ("paid", "paid while it waits", "tie", "crowd")
    assert min(seen[each] for each in cases) > 10, f"hardly tried: {seen}"
