"""Options, and types of options, that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from fyrehose.options import duration, moment, size
from fyrehose.records import LAST_SEQ

#: Default address of a server's admin listener, and of its http listener.
DEFAULT_URL, HTTP_URL = "http://127.0.0.1:8118", "http://127.0.0.1:8117"

#: The option of commands that print a table or JSON.
FORMAT = click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)


class Parsed(click.ParamType):  # type: ignore[type-arg]
    """Option type whose values a function parses; the message of its ValueError says which text is expected."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return self._parse(str(value))
        except ValueError as expected:
            self.fail(f"{value!r}: expected {expected}", param, ctx)


class WholeNumber(click.IntRange):
    """Option type of a whole number within bounds."""

    name = "n"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return *value* as a number; fail with the expected bounds if it is not within them."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            bounds = f"from {self.min}" if self.max is None else f"from {self.min} to {self.max}"
            self.fail(f"{value!r}: expected a whole number {bounds}", param, ctx)


#: Option types of a duration in seconds (typed as 30, 250ms, 5m or 12h), and of a size in bytes (typed as 64k or 1G).
DURATION, SIZE = Parsed("duration", duration), Parsed("size", size)


def since(text: str) -> int | str | None:
    """Return the number before the first record to read, or its time as text; None for ``latest``: new records only.

    :raises ValueError: *text* is neither ``latest``, ``start``, a number nor a time
    """
    if text.lower() == "latest":  # The help shows the words in capitals, so accept them.
        return None
    if text.lower() == "start":
        return 0
    if text.isascii() and text.isdecimal() and len(text) <= 15 and int(text) <= LAST_SEQ:
        return max(int(text) - 1, 0)
    try:
        moment("" if text.isdecimal() else text, 0)
    except ValueError as error:
        raise ValueError(f"latest, start, a record number up to {LAST_SEQ}, or {error}") from None
    return text


def addresses(text: str) -> tuple[tuple[str, int | None], ...]:
    """Return the hosts and ports of servers: ``HOST:PORT``, ``[IPV6]:PORT`` or only a host, separated by commas.

    :raises ValueError: one of them has another form
    """
    found: list[tuple[str, int | None]] = []
    for part in map(str.strip, text.split(",")):
        host, colon, port = part.rpartition(":") if part.count(":") == 1 or "]:" in part else (part, "", "")
        if colon and not (port.isdecimal() and 0 < int(port) < 65536):
            raise ValueError("HOST:PORT, such as 127.0.0.1:8119")
        found.append((host.strip("[]") or "127.0.0.1", int(port) if colon else None))
    return tuple(found)


#: Option types for the record at which to begin to read a stream, and for the addresses of servers.
SINCE, ADDRESSES = Parsed("latest|start|seq", since), Parsed("host:port[,...]", addresses)
