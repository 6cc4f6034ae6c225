"""Serialize a link's cursors, so that the link can outlive the server's process.

    u8 version | varint opened | varint count, then for each of the peer's channels:
        varint id << 1 | gone      (gone: nothing follows)
        varint ordinal | varint done + 1 | varint runs, then for each:  varint length << 1 | uncommitted | varint gap
    varint count, then for each of ours:  varint id | varint base

A varint is unsigned LEB128.  A run's gap is the number of messages between its first one and the end of the run before.

A snapshot counts *staged* messages as done, so it must be written in one batch with them.  The peer sends its other
messages again.  Messages of our own channels are not saved: the owner must be able to produce them again (``Link.kept``
is False).
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from fyrehose.errors import LocalProtocolError
from fyrehose.protocols.relink.frames import Ack
from fyrehose.protocols.relink.link import Link
from fyrehose.protocols.relink.receiving import ReceiveChannel, ResultRun

VERSION = 1


def save(link: Link, channels: Iterable[int] | None = None) -> bytes:
    """Return a snapshot of the whole link, or only of the peer's channels in *channels*.

    :raises LocalProtocolError: the link keeps messages of its own, which a snapshot cannot hold
    """
    if link.kept and link.sending:
        raise LocalProtocolError("cannot save a link that keeps messages")
    ids = sorted(link.receiving if channels is None else set(channels))
    fields = [link.opened, len(ids)]
    for id_ in ids:
        _add_channel(fields, id_, link.receiving.get(id_))
    ours = link.sending.values() if channels is None else ()
    fields.append(len(ours))
    for sent in ours:
        fields += sent.id, sent.base
    return _pack(fields)


def restore(link: Link, data: bytes) -> None:
    """Apply the snapshot *data* to the detached *link*; channels that it does not contain stay unchanged.

    Undecided messages are not in a snapshot, so a restored link may lack some that had arrived.

    :raises ValueError: *data* is not a valid snapshot
    """
    if not data or data[0] != VERSION:
        raise ValueError(f"a link's snapshot has version {data[:1].hex() or 'none'}, expected {VERSION}")
    fields = _Fields(data, 1)
    link.opened = fields.read()
    link.forgetful = link.forgetful or link.peer_transactions
    for _ in range(fields.read()):
        _take_channel(fields, link)
    for _ in range(fields.read()):
        sent = link.channel(fields.read())
        sent.base = sent.next = fields.read()
        sent.recv = sent.base - 1
        sent.unsure = True
    if fields.at != len(data):
        raise ValueError(f"a link's snapshot is followed by {len(data) - fields.at} extra bytes")


def _pack(fields: Iterable[int]) -> bytes:
    out = bytearray([VERSION])
    for value in fields:
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out)


@attrs.define
class _Fields:
    data: bytes
    at: int

    def read(self) -> int:
        """Return the next number: 7 bits a byte, the lowest first; bit 7 is set in all bytes but the last.

        :raises ValueError: the data ends within the number, or it has more than 10 bytes
        """
        value = shift = 0
        while self.at < len(self.data) and shift < 70:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ValueError("a link's snapshot is truncated")


def _add_channel(fields: list[int], id_: int, channel: ReceiveChannel | None) -> None:
    if channel is None or channel.leaving:
        fields.append(id_ << 1 | 1)
        return
    fields += id_ << 1, channel.ordinal, channel.done + 1, len(channel.results)
    end = 0
    for run in channel.results:
        fields += run.last - run.first + 1 << 1 | (run.result is Ack.UNCOMMITTED), run.first - end
        end = run.last + 1


def _take_channel(fields: _Fields, link: Link) -> None:
    named = fields.read()
    id_ = named >> 1
    if named & 1:
        link.receiving.pop(id_, None)
        return
    channel = ReceiveChannel(id_, link.peer_transactions, fields.read())
    channel.consumed = channel.done = channel.dec = fields.read() - 1
    channel.next = channel.done + 1
    end = 0
    for _ in range(fields.read()):
        size = fields.read()
        first = end + fields.read()
        end = first + (size >> 1)
        channel.results.append(ResultRun(Ack.UNCOMMITTED if size & 1 else Ack.COMMITTED, first, end - 1))
    link.receiving[id_] = channel
