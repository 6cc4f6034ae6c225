"""Dead letters of listeners: messages that the server refuses and stores apart, so that later messages are not held up.

    refused = "close"               the peer is disconnected, and sends the message again first: the default
    refused = "dead-letter"         the message is stored in the stream dead.PROTOCOL, and acknowledged
    refused = "dead-letter+policy"  messages that the access policy does not allow are stored there, too

A client that nobody can change sends a refused message again for ever, and all its later messages wait.  A dead letter
is a record with the payload of such a message, cut at :data:`MOST`, with the peer as its producer and the content type
of the message; its topic says why the message was refused, its size in bytes, and its stream:
``PayloadTooLarge 70000 orders``.  Its source is :data:`SOURCE`, which no peer can give to a record: whoever may publish
into such a stream cannot forge a dead letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from struct import pack

import attrs

from fyrehose.errors import (
    Forbidden,
    FyrehoseError,
    InvalidName,
    NewStreamForbidden,
    PayloadTooLarge,
    StreamFull,
    TooManyStreams,
)
from fyrehose.options import one_of
from fyrehose.records import MAX_NAME, Run

#: The values of the option ``refused``, and its converter.
CLOSE, KEEP, KEEP_FORBIDDEN = "close", "dead-letter", "dead-letter+policy"
choice = one_of(CLOSE, KEEP, KEEP_FORBIDDEN)
#: The beginning of the names of the streams that hold dead letters.
PREFIX = "dead."
#: The source of dead letters of listeners.
SOURCE = "server-letters"
#: How many bytes of a payload a dead letter keeps, at most.
MOST = 1 << 20

#: Errors with which the same message would be refused again at each further attempt.
_FINAL = (InvalidName, PayloadTooLarge, TooManyStreams, NewStreamForbidden, StreamFull)


def keeps(refused: str, error: FyrehoseError) -> bool:
    """Return whether a message refused with *error* becomes a dead letter, given the option *refused*."""
    if isinstance(error, Forbidden):
        return refused == KEEP_FORBIDDEN
    return refused != CLOSE and isinstance(error, _FINAL)


def letter(protocol: str, run: Run, error: FyrehoseError, size: int | None = None) -> Run:
    """Return the dead letter of the only message of *run*, which was refused with *error*.

    :param size: the size of the message, if *run* has only its beginning
    """
    seqs = run.producer_seqs()
    payload = next(run.payloads())
    about = f"{type(error).__name__} {len(payload) if size is None else size} {run.stream}"
    return Run.of(
        PREFIX + protocol,
        [payload[:MOST]],
        source=SOURCE,
        producer=_label(run.producer),
        topic=_label(about),
        content_type=_label(run.content_type),
        producer_seq=None if seqs is None else seqs[0],
    )


def joined(runs: Sequence[Run]) -> list[Run]:
    """Return *runs*, dead letters of records in one stream, as few runs, in the same order.

    A start reads the labels of every run, so many small runs would slow it down.
    """
    found: list[Run] = []
    for _, group in groupby(runs, attrgetter("producer", "topic", "content_type")):
        parts = list(group)
        numbers = [number for part in parts for number in part.producer_seqs() or ()]
        whole = parts[0]
        if len(parts) > 1:
            whole = attrs.evolve(
                whole,
                lengths=b"".join(part.lengths for part in parts),
                payload=b"".join(part.payload for part in parts),
                producer_seq=pack(f"<{len(numbers)}Q", *numbers),
            )
        found.append(whole)
    return found


def _label(text: str | None) -> str | None:
    """Return *text* as a name that any record may have: valid UTF-8 of at most MAX_NAME bytes."""
    if text is None:
        return None
    return text.encode(errors="replace")[:MAX_NAME].decode(errors="ignore") or None
