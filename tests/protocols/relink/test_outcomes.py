"""Errors of messages that were not processed."""

from __future__ import annotations

from fyrehose.errors import PublishError
from fyrehose.protocols.relink.events import Unknown
from fyrehose.protocols.relink.outcomes import Uncommitted, UnknownOutcome


def test_outcome_errors_describe_the_outcome() -> None:
    unknown = UnknownOutcome([Unknown(channel=0, seq=1, parts=(b"x",), decided=True)])
    assert "1 messages" in str(unknown)
    assert unknown.unknown[0].seq == 1
    assert (unknown.retriable, Uncommitted.retriable) == (True, False)
    assert issubclass(Uncommitted, PublishError)
