"""The options of the event bus server; docs/protocols/eventbus.md explains the limits."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Any, TypeVar

import attrs

from fyrehose.options import FilePath, boolean, count, duration, exact_size, file_path, name, option, size
from fyrehose.protocols.eventbus.frames import Dialect
from fyrehose.records import MAX_PAYLOAD

E = TypeVar("E", bound=Enum)


class Syntax(StrEnum):
    """The syntax of subtree specifications."""

    TEXT = "text"  #: as specified: /a/;/b/c/
    REFERENCE = "reference"  #: as in the reference program: commas, too, and any prefix of a topic


def choice(kind: type[E]) -> Any:
    """Return a converter from the value of a member of *kind* to the member."""

    def convert(text: str) -> E:
        try:
            return kind(text.strip().lower())
        except ValueError:
            raise ValueError(" or ".join(member.value for member in kind)) from None

    return convert


@attrs.frozen(kw_only=True)
class EventBusSettings:
    """The options ``--option eventbus.NAME=VALUE``."""

    stream: str = option("eventbus", name, "the stream to publish to and broadcast from")
    server_key: str = option(
        "", file_path, "file of the server's CURVE key pair (NAME.key_secret); turns encryption on"
    )
    client_keys: str = option(
        "", FilePath(("any",)), "directory of the public keys (NAME.key) of permitted clients, or any"
    )
    recognize: bool = option(True, boolean, "recognize the dialect of each client by what it sends")
    sequence: Dialect = option(
        Dialect.BINARY, choice(Dialect), "encoding of broadcast sequences, binary or decimal, for other clients"
    )
    subtrees: Syntax = option(
        Syntax.TEXT, choice(Syntax), "syntax of subtrees: text or reference (commas, prefixes), for other clients"
    )
    dedup: bool = option(False, boolean, "drop an event whose UUID was seen in the last 10 minutes (100,000 are kept)")
    max_payload: int = option(MAX_PAYLOAD, size, "maximum size of an event's data", least=1)
    max_connections: int = option(16_000, count, "maximum number of connections, all three ports together", least=1)
    snapshots: int = option(8, count, "number of snapshots that are sent at a time", least=1)
    snapshots_memory: int = option(
        64 << 20, size, "memory for snapshot requests, half of it for one network; further requests are dropped"
    )
    timeout: float = option(30.0, duration, "cancel a snapshot whose client has read nothing for this time")

    @property
    def options_for_reference(self) -> str:
        """Return the options that this listener lacks to serve clients of the reference program, as they are typed."""
        options = ["eventbus.subtrees=reference"] if self.subtrees is Syntax.TEXT and not self.recognize else []
        options += ["eventbus.sequence=decimal"] if self.sequence is Dialect.BINARY else []
        return " ".join(f"--option {option}" for option in options)

    def __attrs_post_init__(self) -> None:
        if self.max_payload > MAX_PAYLOAD:
            most, found = exact_size(MAX_PAYLOAD), exact_size(self.max_payload)
            raise ValueError(f"max-payload may be at most {most}, not {found}")
        if self.client_keys and not self.server_key:
            raise ValueError("client-keys requires server-key")
        if self.server_key and not self.client_keys:
            raise ValueError("server-key requires client-keys: a directory, or any to admit every client key")
