"""Fuzz the records of the state of subscriptions: damaged ones are refused, or yield a valid state."""

from __future__ import annotations

import harness

with harness.instrumented("fyrehose.broker"):
    from fyrehose.broker.state_stream import replay
    from fyrehose.errors import JournalCorrupt
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


DECODERS = {"records": records}
