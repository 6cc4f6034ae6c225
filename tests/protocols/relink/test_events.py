"""The events of a session."""

from __future__ import annotations

import attrs
import pytest

from fyrehose.errors import PublishError
from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.messages import MessageSequence, column_of


def test_events_are_immutable_values() -> None:
    one = events.Received(channel=1, first=2, messages=MessageSequence.of((b"x",)))
    assert one == events.Received(channel=1, first=2, messages=MessageSequence((column_of([b"x"]),)))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        one.first = 3  # type: ignore[misc]
    assert not events.Unknown(channel=1, seq=2, parts=(), decided=False).decided


def test_outcome_errors_describe_the_outcome() -> None:
    unknown = events.UnknownOutcome([events.Unknown(channel=0, seq=1, parts=(b"x",), decided=True)])
    assert "1 messages" in str(unknown)
    assert unknown.unknown[0].seq == 1
    assert (unknown.retriable, events.Uncommitted.retriable) == (True, False)
    assert issubclass(events.Uncommitted, PublishError)
