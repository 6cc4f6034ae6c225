"""Endpoint names: how a connector says what it wants.

    publish:STREAM
    subscribe:STREAM[@SEQ][?seq]

In STREAM ``%XX`` stands for a byte of UTF-8, so that ``%``, ``?`` and ``@`` of a stream's own name can be written
(``%25``, ``%3F``, ``%40``).  With ``?seq`` every message begins with a part of eight bytes: the record's number in its
stream, little-endian.  The first message of such a channel is no record: an empty part, and then a part of eight bytes
with the number of the record before the first one, so that a reader knows its place before there is a record.
"""

from __future__ import annotations

from urllib.parse import unquote

import attrs

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.relink.handshake import Terms
from fyrehose.records import LAST_SEQ, MAX_NAME

#: As many as the last number of a stream has.
MAX_DIGITS = len(str(LAST_SEQ))
#: The size of a record's number, in bytes.
SEQ_SIZE = 8
#: What an endpoint name means itself, and has to be escaped in a stream's name.
_ESCAPED = str.maketrans({"%": "%25", "?": "%3F", "@": "%40"})


@attrs.frozen(kw_only=True, slots=True)
class Place:
    """An endpoint name, understood."""

    stream: str
    subscribe: bool
    #: for subscribers: begin behind this number; None: with what is published from now on
    after: int | None = None
    #: for subscribers: whether messages say the numbers of their records
    seqs: bool = False


def publish_name(stream: str) -> str:
    """Return the name of the endpoint that publishes to *stream*."""
    return f"publish:{stream.translate(_ESCAPED)}"


def subscribe_name(stream: str, after: int | None = None, *, seqs: bool = False) -> str:
    """Return the name of the endpoint that reads *stream*.

    :param after: begin behind this number (0: with the oldest record); None: with what is published from now on
    :param seqs: have each message say the number of its record
    """
    place = "" if after is None else f"@{after}"
    return f"subscribe:{stream.translate(_ESCAPED)}{place}{'?seq' if seqs else ''}"


def parse(terms: Terms) -> Place:
    """Return the stream and the place that ``terms`` ask for.

    :raises RemoteProtocolError: there is no such endpoint, or it is not to be had with these transactions
    """
    verb, _, rest = terms.endpoint.partition(":")
    if verb not in ("publish", "subscribe"):
        raise _unknown(terms, "it begins with publish: or subscribe:")
    subscribe = verb == "subscribe"
    stream, mark, options = rest.partition("?")
    if mark and not (subscribe and options == "seq"):
        raise _unknown(terms, "the only option is subscribe:STREAM?seq; write a ? of the stream's name as %3F")
    name, at, number = stream.rpartition("@")
    after = None
    if subscribe and at and number.isascii() and number.isdecimal():
        if len(number) > MAX_DIGITS:
            raise _unknown(terms, "the number is larger than any in a stream")
        stream, after = name, int(number)
    try:
        stream = unquote(stream, errors="strict")
    except UnicodeDecodeError:
        raise _unknown(terms, "the escapes in the stream's name are no UTF-8") from None
    if not 1 <= len(stream.encode()) <= MAX_NAME:
        raise _unknown(terms, f"a stream's name has 1 to {MAX_NAME} bytes")
    if terms.listener_transactions or (subscribe and terms.connector_transactions):
        raise RemoteProtocolError("transactions-unsupported")
    return Place(stream=stream, subscribe=subscribe, after=after, seqs=bool(mark))


def _unknown(terms: Terms, why: str) -> RemoteProtocolError:
    return RemoteProtocolError("endpoint-unknown", f"{terms.endpoint!r}: {why}")
