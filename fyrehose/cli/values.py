"""Options, and types of options, that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from fyrehose.options import duration, size
from fyrehose.records import LAST_SEQ

F = TypeVar("F", bound=Callable[..., Any])

#: Default address of a server's admin listener, and of its http listener.
DEFAULT_URL, HTTP_URL = "http://127.0.0.1:8118", "http://127.0.0.1:8117"

#: The option of commands that print a table or JSON.
FORMAT = click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)


class Parsed(click.ParamType):  # type: ignore[type-arg]
    """Option type whose values are parsed by a function of :mod:`fyrehose.options`."""

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


#: The option that says what to do with the parts of an event larger than a record.
PARTS = click.Choice(["join", "keep"])
#: Option types of a duration in seconds (typed as 30, 250ms, 5m or 12h), and of a size in bytes (typed as 64k or 1G).
DURATION, SIZE = Parsed("duration", duration), Parsed("size", size)


def remote_options(url: str, listener: str) -> Callable[[F], F]:
    """Add the options of a command that asks a running server.

    :param url: the default address
    :param listener: the name of the listener that the command asks
    """
    options = (
        click.option("--ca", type=click.Path(path_type=Path), help="PEM file of the certificate authority (https)."),
        click.option("--token-file", type=click.Path(path_type=Path), help="File with the server's token."),
        click.option("--url", default=url, show_default=True, metavar="URL", help=f"URL of its {listener} listener."),
    )

    def add(command: F) -> F:
        for option in options:
            command = option(command)
        return command

    return add


class Since(click.ParamType):  # type: ignore[type-arg]
    """Option type of a stream position: the number before the first record, or None for new records only."""

    name = "latest|start|seq"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | None:
        """Return the number before the first record of *value*; None for ``latest``."""
        number = str(value)
        if number.lower() == "latest":  # The help shows the words in capitals.
            return None
        if number.lower() == "start":
            return 0
        if not (number.isascii() and number.isdecimal() and len(number) <= 15 and int(number) <= LAST_SEQ):
            self.fail(f"{value!r}: expected latest, start, or a record number up to {LAST_SEQ}", param, ctx)
        return max(int(number) - 1, 0)
