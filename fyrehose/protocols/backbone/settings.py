"""The backbone server's options: limits with their reasons (docs/protocols/backbone.md has the table)."""

from __future__ import annotations

import attrs

from fyrehose.options import boolean, count, name, option, size


@attrs.frozen(kw_only=True)
class Settings:
    """What the protocol takes as ``--option backbone.NAME=VALUE``."""

    stream: str = option("backbone", name, "the stream that is published into and delivered")
    subscribers: int = option(1_024, count, "clients at a time; a keepalive beyond them is not acknowledged", least=1)
    push_rate: int = option(50_000, count, "PUSH datagrams a second from one address", least=1)
    request_rate: int = option(10, count, "REQUEST datagrams a second from one client", least=1)
    forward_rate: int = option(1_000, count, "FORWARD datagrams a second to all clients together", least=1)
    destination_rate: int = option(64 << 20, size, "bytes a second to one address", least=1)
    receive_buffer: int = option(4 << 20, size, "the socket's receive buffer, in bytes")
    batching: bool = option(True, boolean, "send and receive many datagrams a call where the kernel can")
    total_length: bool = option(False, boolean, "take PUSH datagrams whose LENGTH counts the header, too")
