"""Observe a shared subscription as Relink's listener uses it: the leases it gives, and the requests of its workers.

A packet of Relink cannot be understood without the state of its link, so the observer stands between the listener and
the broker.  The effects of links are checked by comparison with what their workers (linkworker.py) have done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from book import Book, Verdict
from twisted.internet.defer import Deferred

from fyrehose.subscriptions.sharing import Sharing


@attrs.define(eq=False)
class Watched:
    """A proxy of an object that replaces some of its attributes."""

    other: Any
    changed: dict[str, Callable[[], Any]]

    def __getattr__(self, name: str) -> Any:
        return self.changed[name]() if name in self.changed else getattr(self.other, name)


def watched(broker: Any, book: Book) -> Any:
    """Return a proxy of *broker* whose shared subscriptions report each request to *book*."""

    def named() -> Watched:
        real = broker.named
        sharing = real.sharing
        return Watched(
            real, {"sharing": lambda: WatchedSharing(sharing.table, sharing.peer, sharing.network, book=book)}
        )

    def identified() -> Callable[[Any], Any]:
        return lambda identity: watched(broker.identified(identity), book)

    return Watched(broker, {"named": named, "identified": identified})


@attrs.frozen(eq=False)
class WatchedSharing(Sharing):
    """The shared subscriptions of one Relink worker, which report each request and answer to the book."""

    book: Book = attrs.field(kw_only=True)

    def lease(self, shared: Any, consumer: str, request: int | None, most: int, wait: float) -> Deferred[Any]:
        def note(found: Any) -> Any:
            records = []
            for part in found:
                token = f"{part.lease.token[0]}.{part.lease.token[1]}"
                for seq, payload in enumerate(part.run.payloads(), part.lease.first):
                    records.append(((part.run.stream, seq), token, part.lease.failures, bytes(payload)))
            self.book.leased(consumer, None, records)
            return found

        return super().lease(shared, consumer, request, most, wait).addCallback(note)

    def act(self, shared: Any, items: Any, consumer: str, runs: Any = ()) -> Deferred[Any]:
        only = shared.options.stream
        verdicts = [
            Verdict(each.kind, (each.stream or only, seq), f"{each.token[0]}.{each.token[1]}")
            for each in items
            for seq in range(each.first, each.last + 1)
        ]
        about = self.book.asked(verdicts)

        def note(outcome: Any) -> Any:
            refused, extended = [
                [((each.stream or only, seq), more) for each, more in part for seq in range(each.first, each.last + 1)]
                for part in (outcome.refused, outcome.extended)
            ]
            gone = {place for place, _ in refused}
            nothing = bool(runs and refused)
            done = [each.place for each in verdicts if each.kind == "done" and each.place not in gone and not nothing]
            tokens = [(place, f"{token[0]}.{token[1]}") for place, token in extended]
            self.book.acted(about, done, refused, tokens)
            return outcome

        return super().act(shared, items, consumer, runs).addCallback(note)

    def give_back(self, shared: Any, items: Any, consumer: str) -> Deferred[Any]:
        only = shared.options.stream
        tokens = {(each.stream or only, each.first): f"{each.token[0]}.{each.token[1]}" for each in items}
        self.book.lost({place: Verdict("untried", place, token) for place, token in tokens.items()})
        return super().give_back(shared, items, consumer)
