"""Endpoint names of the server (specification, 1): how a connector selects a stream.

    publish:STREAM
    subscribe:STREAM[@SEQ][?OPTION[&OPTION ...]]

In STREAM ``%XX`` stands for a byte of UTF-8, so that ``%``, ``?`` and ``@`` of a stream's own name can be written
(``%25``, ``%3F``, ``%40``).  With ``?seq`` every message begins with a part of eight bytes: the record's number in its
stream, little-endian.  The first message of such a channel is not a record: it has an empty part, and a part of eight
bytes with the number of the record before the first one, so that a subscriber knows its position before a record comes.
Two more parts of eight bytes follow: how often the named subscription was rewound, 0 without one, and the last number
of the stream; then the epoch of these numbers, as text.  ``epoch=EPOCH`` says of which epoch ``@SEQ`` is: in another
one, and if SEQ is beyond the end of the stream, the channel begins with the oldest record.

With ``?name=NAME`` the link consumes the named subscription NAME: it begins behind the position that the server keeps,
and each ``consumed`` of the peer moves that position.  ``@SEQ`` says where a new subscription begins.  With
``takeover`` the link displaces another consumer; without it, it is refused while there is one.
"""

from __future__ import annotations

from urllib.parse import unquote

import attrs

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.relink.frames import Terms
from fyrehose.records import LAST_SEQ, MAX_NAME

#: Number of digits of the largest sequence number of a stream.
MAX_DIGITS = len(str(LAST_SEQ))
#: The size of a record's number, in bytes.
SEQ_SIZE = 8
#: Characters with a meaning in endpoint names, which are escaped in stream names.
_ESCAPED = str.maketrans({"%": "%25", "?": "%3F", "@": "%40"})


@attrs.frozen(kw_only=True, slots=True)
class EndpointName:
    """A parsed endpoint name."""

    stream: str
    subscribe: bool
    #: for subscribers: number of the record behind which to begin; None: only new records
    after: int | None = None
    #: for subscribers: whether messages begin with the number of their record (``?seq``)
    seqs: bool = False
    #: for subscribers: the named subscription (``?name=NAME``); None: none
    name: str | None = None
    #: for subscribers: whether to displace another consumer of the named subscription
    takeover: bool = False
    #: for subscribers: the epoch of ``after``; empty: unknown
    epoch: str = ""


def publish_name(stream: str) -> str:
    """Return the name of the endpoint that publishes to *stream*."""
    return f"publish:{stream.translate(_ESCAPED)}"


def subscribe_name(
    stream: str,
    after: int | None = None,
    *,
    seqs: bool = False,
    name: str | None = None,
    takeover: bool = False,
    epoch: str = "",
) -> str:
    """Return the name of the endpoint that subscribes to *stream*.

    :param after: the number behind which the link begins (0: with the oldest record); None: only new records
    :param seqs: whether each message begins with the number of its record
    :param name: the named subscription to consume; *after* then only says where a new subscription begins
    :param takeover: whether to displace another consumer of the named subscription
    :param epoch: the epoch of *after*, which is left out if it is unknown, or if the name would become too long
    """
    place = "" if after is None else f"@{after}"
    options = ["seq"] * seqs + [f"name={name}"] * (name is not None) + ["takeover"] * takeover
    found = f"subscribe:{stream.translate(_ESCAPED)}{place}{'?' if options else ''}{'&'.join(options)}"
    option = f"{'&' if options else '?'}epoch={epoch}"
    return found + option if epoch and len((found + option).encode()) <= MAX_NAME else found


def parse(terms: Terms) -> EndpointName:
    """Return the stream and the position that the endpoint name in *terms* selects.

    :raises RemoteProtocolError: there is no such endpoint, or the endpoint does not support the transactions that
        *terms* ask for
    """
    verb, _, rest = terms.endpoint.partition(":")
    if verb not in ("publish", "subscribe"):
        raise _unknown(terms, "expected publish:STREAM or subscribe:STREAM")
    subscribe = verb == "subscribe"
    stream, mark, options = rest.partition("?")
    chosen = _options(terms, options) if mark and subscribe else {}
    if mark and not subscribe:
        raise _unknown(terms, "publish:STREAM has no options; write a ? in the stream's name as %3F")
    name, at, number = stream.rpartition("@")
    after = None
    if subscribe and at and number.isascii() and number.isdecimal():
        if len(number) > MAX_DIGITS:
            raise _unknown(terms, f"the number after @ has more than {MAX_DIGITS} digits")
        stream, after = name, int(number)
    try:
        stream = unquote(stream, errors="strict")
    except UnicodeDecodeError:
        raise _unknown(terms, "the escapes in the stream's name are not valid UTF-8") from None
    if not 1 <= len(stream.encode()) <= MAX_NAME:
        raise _unknown(terms, f"the stream's name must have 1 to {MAX_NAME} bytes")
    if terms.listener_transactions or (subscribe and terms.connector_transactions):
        raise RemoteProtocolError("transactions-unsupported")
    return EndpointName(
        stream=stream,
        subscribe=subscribe,
        after=after,
        seqs="seq" in chosen,
        name=chosen.get("name"),
        takeover="takeover" in chosen,
        epoch=chosen.get("epoch", ""),
    )


def _options(terms: Terms, text: str) -> dict[str, str]:
    """Return the options of a subscriber and their values, which are empty except for ``name`` and ``epoch``."""
    found: dict[str, str] = {}
    for option in text.split("&"):
        key, mark, value = option.partition("=")
        known = key in ("seq", "name", "takeover", "epoch")
        if not known or bool(mark) != (key in ("name", "epoch")) or key in found:
            raise _unknown(
                terms,
                "unknown option; use seq, name=NAME, takeover or epoch=EPOCH; write a ? in the stream's name as %3F",
            )
        found[key] = value
    if "takeover" in found and "name" not in found:
        raise _unknown(terms, "the option takeover needs name=NAME")
    return found


def _unknown(terms: Terms, why: str) -> RemoteProtocolError:
    return RemoteProtocolError("endpoint-unknown", f"{terms.endpoint!r}: {why}")
