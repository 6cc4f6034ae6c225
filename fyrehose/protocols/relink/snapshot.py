"""A link's cursors as bytes, so that it can outlive its process.

    u8 version | varint opened | varint count, then for each of the peer's channels:
        varint id << 1 | gone      (gone: nothing follows)
        varint ordinal | varint done + 1 | varint runs, then for each:  varint length << 1 | uncommitted | varint gap
    varint count, then for each of ours:  varint id | varint base

A varint is unsigned LEB128.  A run's gap is that between its first message and the end of the run before it.

What is saved is what is *staged*: whoever writes the snapshot together with what became of those messages has both or
none.  Of the peer's channels the rest - messages that are not finished - comes again; our own have to be ones that the
owner can make again (``Link.kept`` is False).
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
    """The whole link, or what became of some of the peer's ``channels``.

    :raises LocalProtocolError: the link keeps messages of ours, which are no cursors
    """
    if link.kept and link.sending:
        raise LocalProtocolError("a link that keeps messages cannot be saved")
    ids = sorted(link.receiving if channels is None else set(channels))
    fields = [link.opened, len(ids)]
    for id_ in ids:
        _add_channel(fields, id_, link.receiving.get(id_))
    ours = link.sending.values() if channels is None else ()
    fields.append(len(ours))
    for sent in ours:
        fields += sent.id, sent.base
    return _packed(fields)


def restore(link: Link, data: bytes) -> None:
    """Bring ``link``, which is detached, to where ``data`` says; channels that it does not name stay as they are.

    :raises ValueError: it is not what :func:`save` makes
    """
    if not data or data[0] != VERSION:
        raise ValueError(f"a link's snapshot of version {data[:1].hex() or 'none'}, not {VERSION}")
    fields = _Fields(data, 1)
    link.opened = fields.take()
    for _ in range(fields.take()):
        _take_channel(fields, link)
    for _ in range(fields.take()):
        sent = link.channel(fields.take())
        sent.base = sent.next = fields.take()
        sent.recv = sent.base - 1
        sent.unsure = True
    if fields.at != len(data):
        raise ValueError("a link's snapshot has bytes too many")


def _packed(fields: Iterable[int]) -> bytes:
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

    def take(self) -> int:
        value = shift = 0
        while self.at < len(self.data) and shift < 70:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ValueError("a link's snapshot ends within a number")


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
    named = fields.take()
    id_ = named >> 1
    if named & 1:
        link.receiving.pop(id_, None)
        return
    channel = ReceiveChannel(id_, link.peer_transactions, fields.take())
    channel.consumed = channel.done = channel.dec = fields.take() - 1
    channel.next = channel.done + 1
    end = 0
    for _ in range(fields.take()):
        size = fields.take()
        first = end + fields.take()
        end = first + (size >> 1)
        channel.results.append(ResultRun(Ack.UNCOMMITTED if size & 1 else Ack.COMMITTED, first, end - 1))
    link.receiving[id_] = channel
