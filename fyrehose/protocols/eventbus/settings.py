"""The event bus's options: limits with their reasons (docs/protocols/eventbus.md has the table)."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Any, TypeVar

import attrs

from fyrehose.options import boolean, count, duration, name, option, size
from fyrehose.protocols.eventbus.frames import Dialect
from fyrehose.records import MAX_PAYLOAD

E = TypeVar("E", bound=Enum)


class Syntax(StrEnum):
    """How clients write the subtrees that they want."""

    TEXT = "text"  #: /a/;/b/c/
    REFERENCE = "reference"  #: commas, too, and any prefix of a topic


def choice(kind: type[E]) -> Any:
    """Reads the value of a member of ``kind``."""

    def convert(text: str) -> E:
        try:
            return kind(text.strip().lower())
        except ValueError:
            raise ValueError(" or ".join(member.value for member in kind)) from None

    return convert


def text(value: str) -> str:
    """Anything."""
    return value


@attrs.frozen(kw_only=True)
class Settings:
    """What the protocol takes as ``--option eventbus.NAME=VALUE``."""

    stream: str = option("eventbus", name, "the stream that is published into and delivered")
    server_key: str = option("", text, "the file of the server's CURVE key pair (NAME.key_secret): encrypt")
    client_keys: str = option("", text, "the directory of the keys (NAME.key) of clients that may connect, or: any")
    sequence: Dialect = option(Dialect.BINARY, choice(Dialect), "sequences of broadcasts: binary or decimal")
    subtrees: Syntax = option(Syntax.TEXT, choice(Syntax), "subtrees of clients: text or reference (commas, prefixes)")
    dedup: bool = option(False, boolean, "drop an event whose UUID was seen in the last 10 minutes (100,000 are kept)")
    max_payload: int = option(MAX_PAYLOAD, size, "the largest event taken, in bytes", least=1)
    max_connections: int = option(16_000, count, "connections at a time, of all three ports together", least=1)
    snapshots: int = option(8, count, "snapshots that are sent at a time", least=1)
    snapshots_memory: int = option(
        64 << 20, size, "memory of requests for snapshots; one address has half; a request beyond it is dropped"
    )
    stall_timeout: float = option(30.0, duration, "time for a snapshot's client to take more, or it is cancelled")

    def __attrs_post_init__(self) -> None:
        if self.max_payload > MAX_PAYLOAD:
            raise ValueError(f"max_payload has to be {MAX_PAYLOAD} at the most, not {self.max_payload}")
        if self.client_keys and not self.server_key:
            raise ValueError("client_keys need a server_key")
        if self.server_key and not self.client_keys:
            raise ValueError("server_key needs client_keys: a directory, or any for everybody who has the server's")
