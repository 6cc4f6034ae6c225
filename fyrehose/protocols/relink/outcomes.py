"""Errors with which the Deferred of a sent message may fail."""

from __future__ import annotations

from collections.abc import Sequence

from fyrehose.errors import PublishError
from fyrehose.protocols.relink.events import Unknown


class Uncommitted(PublishError):
    """The listener has refused or could not process a transaction; none of its messages took effect."""


class UnknownOutcome(PublishError):
    """The link was lost, so the message may or may not have been processed.

    :ivar unknown: all such messages of the link; those whose ``decided`` is False were not committed, so they were
        certainly not processed
    """

    retriable = True

    def __init__(self, unknown: Sequence[Unknown] = ()) -> None:
        super().__init__(f"the link was lost; {len(unknown)} messages may or may not have been processed")
        self.unknown = tuple(unknown)
