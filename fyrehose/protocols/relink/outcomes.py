"""How a message of a client can end other than well."""

from __future__ import annotations

from collections.abc import Sequence

from fyrehose.errors import PublishError
from fyrehose.protocols.relink.events import Unknown


class Uncommitted(PublishError):
    """The listener could not process a transaction: none of its messages."""


class UnknownOutcome(PublishError):
    """The link was lost: the message may have been processed, or not.

    :ivar unknown: all messages of the link of which that is so; those whose ``decided`` is False were not committed, so
        they were certainly not processed
    """

    retriable = True

    def __init__(self, unknown: Sequence[Unknown] = ()) -> None:
        super().__init__(
            f"the link was lost, and what became of {len(unknown)} messages is not known: they may have been processed"
        )
        self.unknown = tuple(unknown)
