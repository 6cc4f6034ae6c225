"""Decide which messages are JSON, so that the server calls only those ``application/json`` that a reader can parse."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

from fyrehose.web.session import JSON

#: The largest message that is parsed, in bytes: parsing a larger one would block the reactor for too long.
MOST_PARSED = 4 << 20


def is_json(message: bytes) -> bool:
    """Return whether *message* is one JSON text in UTF-8 (RFC 8259) of at most :data:`MOST_PARSED` bytes."""
    if len(message) > MOST_PARSED:
        return False
    try:
        # As floats, because Python refuses to parse very long integers, which are valid.
        json.loads(message.decode(), parse_int=float, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def by_content_type(content_type: str | None, messages: Sequence[bytes]) -> Iterator[tuple[str | None, list[bytes]]]:
    """Yield consecutive *messages* with their content type: None for those that are called JSON and are not.

    :param content_type: what the publisher says
    """
    if content_type is None or content_type.partition(";")[0].strip().lower() != JSON:
        yield content_type, list(messages)
        return
    for parses, group in groupby(messages, is_json):
        yield content_type if parses else None, list(group)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
