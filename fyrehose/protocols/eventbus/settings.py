"""The options of the event bus server; docs/protocols/eventbus.md explains the limits."""

from __future__ import annotations

import attrs

from fyrehose.net.tcp import TCPSettings
from fyrehose.options import FilePath, boolean, count, exact_size, file_path, name, option, size
from fyrehose.protocols.eventbus.frames import Dialect
from fyrehose.records import MAX_PAYLOAD


def _dialect(text: str) -> Dialect:
    try:
        return Dialect(text.strip().lower())
    except ValueError:
        raise ValueError(" or ".join(Dialect)) from None


@attrs.frozen(kw_only=True)
class EventBusSettings(TCPSettings):
    """The options ``--option eventbus.NAME=VALUE``."""

    stream: str = option("eventbus", name, "the stream to publish to and broadcast from")
    server_key: str = option(
        "", file_path, "file of the server's CURVE key pair (NAME.key_secret); turns encryption on"
    )
    client_keys: str = option(
        "", FilePath(("any",)), "directory of the public keys (NAME.key) of permitted clients, or any"
    )
    dialect: Dialect = option(
        Dialect.BINARY, _dialect, "dialect of clients that do not show theirs: binary, or decimal as the reference bus"
    )
    dedup: bool = option(False, boolean, "drop an event whose UUID was seen in the last 10 minutes (100,000 are kept)")
    max_payload: int = option(MAX_PAYLOAD, size, "maximum size of an event's data", least=1)
    max_connections: int = option(16_000, count, "maximum number of connections, all three ports together", least=1)
    max_per_host: int = option(8_000, count, "maximum number of connections from one address or IPv6 /64", least=1)

    def __attrs_post_init__(self) -> None:
        if self.max_payload > MAX_PAYLOAD:
            most, found = exact_size(MAX_PAYLOAD), exact_size(self.max_payload)
            raise ValueError(f"max-payload may be at most {most}, not {found}")
        if self.client_keys and not self.server_key:
            raise ValueError("client-keys requires server-key")
        if self.server_key and not self.client_keys:
            raise ValueError("server-key requires client-keys: a directory, or any to admit every client key")
