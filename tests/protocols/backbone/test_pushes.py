"""The window of a publisher: unconfirmed, confirmed and expired pushes."""

from __future__ import annotations

from random import Random

import attrs

from fyrehose.protocols.backbone import pushes as product
from fyrehose.protocols.backbone.pushes import PACE, PendingPush, Pushes
from fyrehose.protocols.backbone.rates import Rates
from fyrehose.records import Run
from tests.verification.consumers.ran import Ran

TIMEOUT, RATE, BURST = 5.0, 8, 3


@attrs.define
class Model:
    """The pushes that wait, and those that were sent, in order; the latter with ``floor`` and ``deadline``."""

    window: int
    window_bytes: int
    waiting: list[PendingPush] = attrs.field(factory=list)
    sent: list[PendingPush] = attrs.field(factory=list)
    tokens: float = BURST
    at: float = 0.0

    def room(self) -> int:
        """Return how many of the waiting pushes the window has room for; a single one may be of any size."""
        for count in range(len(self.waiting) + 1):
            size = bytes_of(self.sent + self.waiting[: count + 1])
            held = len(self.sent) + count
            if held >= self.window or count == len(self.waiting) or (held and size > self.window_bytes):
                return count
        raise AssertionError("the loop has ended without a result")

    def take(self, highest: int, now: float) -> list[bytes]:
        if not self.room():
            return []
        self.tokens, self.at = min(BURST, self.tokens + (now - self.at) * RATE), now
        count = min(self.room(), int(self.tokens))
        self.tokens -= count
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        self.sent += [attrs.evolve(push, floor=highest, deadline=now + TIMEOUT) for push in taken]
        return [push.payload for push in taken]

    def delivered(self, first: int, payloads: list[bytes]) -> list[tuple[object, int]]:
        found = []
        for seq, payload in enumerate(payloads, first):
            oldest = next((push for push in self.sent if push.payload == payload), None)
            if oldest is not None and oldest.floor < seq:
                self.sent.remove(oldest)
                found.append((oldest.handle, seq))
        return found

    def expired(self, now: float) -> list[object]:
        over = [push for push in self.sent if push.deadline <= now]
        again = [PendingPush(push.payload, push.handle, push.retries - 1) for push in over if push.retries]
        self.sent, self.waiting = self.sent[len(over) :], again + self.waiting
        return [push.handle for push in over if not push.retries]


def bytes_of(pushes: list[PendingPush]) -> int:
    return sum(len(push.payload) for push in pushes)


def act(random: Random, pushes: Pushes, model: Model, number: int, now: float) -> None:
    """Do the same to both, and compare what they return."""
    action = random.choice(("add", "add", "take", "take", "deliver", "deliver", "expire", "renumber or abandon"))
    payload = random.choice((b"a", b"bb", bytes(20)))
    if action == "add":
        pushes.add(payload, number)
        model.waiting.append(PendingPush(payload, number, pushes.retries))
    elif action == "take":
        highest = random.randrange(4)
        assert pushes.take(highest, now) == model.take(highest, now)
    elif action == "deliver":
        first, payloads = random.randrange(1, 5), [payload, b"of another publisher", random.choice((payload, b"a"))]
        run = Run.of("backbone", payloads, source="backbone").numbered(first, 0)
        assert [(push.handle, seq) for push, seq in pushes.delivered(run)] == model.delivered(first, payloads)
    elif action == "expire":
        assert [push.handle for push in pushes.expired(now)] == model.expired(now)
    elif random.random() < 0.5:
        pushes.renumber(2)
        for push in model.sent:
            push.floor = 2
    else:
        assert [push.handle for push in pushes.abandon()] == [push.handle for push in model.sent + model.waiting]
        model.sent, model.waiting = [], []


def test_pushes_agree_with_a_model_of_two_lists() -> None:
    """A DELIVER with the same bytes and a higher sequence confirms the oldest push; others expire, or are repeated."""
    with Ran(product) as ran:
        for seed in range(100):
            random, now = Random(seed), 0.0
            window, window_bytes, retries = random.choice((1, 2, 4)), random.choice((4, 21, 99)), random.randrange(3)
            pushes = Pushes(window, window_bytes, TIMEOUT, retries, Rates(RATE, BURST, most=1))
            model = Model(window, window_bytes)
            for number in range(30):
                soon = pushes.next_due(now, sending=False) or now
                now = max(now, random.choice((now, now + 0.125, now + 1, soon, soon - 0.125)))
                act(random, pushes, model, number, now)
                both = model.sent + model.waiting
                assert pushes.has_room == (len(both) < window and bytes_of(both) < window_bytes)
                assert pushes.idle == (not both)
                assert pushes.unsent == bytes_of(model.waiting)
                deadlines = [push.deadline for push in model.sent[:1]]
                assert pushes.next_due(now, sending=False) == min(deadlines, default=None)
                with_pace = [*deadlines, now + PACE] if model.room() else deadlines
                assert pushes.next_due(now, sending=True) == min(with_pace, default=None)
    assert ran.never() == set()
