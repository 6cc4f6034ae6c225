"""Write JSON that every line reader reads alike, and read JSON of peers, whose texts can be written again.

A JSON string may contain the characters U+0085, U+2028 and U+2029 as they are.  Some programs end a line at them
(``str.splitlines`` in Python, and so ``iter_lines`` of httpx), so what the server writes has escapes in their place.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from math import isfinite
from typing import Any, NoReturn

#: Characters at which some programs end a line, and their escapes.
_LINE_ENDS = (("\x85", "\\u0085"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))


def quoted(text: str) -> str:
    """Return *text* as a JSON string without line ends."""
    return _without_line_ends(encode_basestring(text))


def one_line(text: str) -> str:
    """Return the JSON *text* without line ends; those between its tokens become spaces."""
    return _without_line_ends(text.replace("\n", " ").replace("\r", " "))


def dumped(value: object) -> bytes:
    """Return *value* as JSON in UTF-8, without line ends.

    :raises UnicodeEncodeError: a text in *value* has lone surrogates
    """
    text = json.dumps(value, ensure_ascii=False)
    return (text if text.isascii() else _without_line_ends(text)).encode()


def loaded(data: bytes) -> Any:
    """Return the value of the JSON text *data* of a peer; each text and number in it can be written as JSON again.

    :raises ValueError: *data* is no JSON text in UTF-8 (RFC 8259), or has lone surrogates or a number that no double
        comes near to; the message is for the peer
    """
    try:
        found = json.loads(data.decode(), parse_constant=_refuse, parse_float=_finite)
        if b"\\u" in data:  # only an escape can be half of a surrogate pair
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a text has half of a surrogate pair such as \\ud800, which UTF-8 cannot encode") from None
    except (ValueError, RecursionError):
        raise ValueError("expected JSON in UTF-8") from None
    return found


def json_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object *data* of a peer; see :func:`loaded`.

    :raises ValueError: it is something else
    """
    found = loaded(data)
    if not isinstance(found, dict):
        raise ValueError("expected a JSON object")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _refuse(text)


def _without_line_ends(text: str) -> str:
    if not text.isascii():
        for each, escape in _LINE_ENDS:
            text = text.replace(each, escape)
    return text
