"""The events of a session."""

from __future__ import annotations

import attrs
import pytest

from fyrehose.errors import PublishError
from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.events import MessageOutcome
from fyrehose.protocols.relink.messages import MessageSequence, column_of


def test_events_are_immutable_values() -> None:
    one = events.Received(channel=1, first=2, messages=MessageSequence.of((b"x",)))
    assert one == events.Received(channel=1, first=2, messages=MessageSequence((column_of([b"x"]),)))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        one.first = 3  # type: ignore[misc]


def test_errors_say_whether_the_messages_may_have_been_processed() -> None:
    lost = [
        events.Unsettled(channel=0, seq=seq, parts=(b"x",), outcome=outcome)
        for seq, outcome in (
            (1, MessageOutcome.UNKNOWN),
            (2, MessageOutcome.UNKNOWN),
            (3, MessageOutcome.NOT_PROCESSED),
        )
    ]
    unknown = events.UnknownOutcome(lost)
    assert str(unknown) == (
        "the link was lost; 2 messages may or may not have been processed; "
        "1 messages of open transactions were not processed"
    )
    assert unknown.unsettled == tuple(lost)
    assert str(events.UnknownOutcome()) == "the link was lost"
    assert (unknown.retriable, events.Uncommitted.retriable) == (True, False)
    assert issubclass(events.Uncommitted, PublishError)
