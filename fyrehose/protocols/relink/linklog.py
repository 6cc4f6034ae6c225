"""Links on disk: a stream holds the state of each link, written in one batch with the messages that changed it.

    u8 version | u8 kind | u64 epoch | u64 seq of the first record of the last checkpoint | body

    ENTRY       an entry                         a link is new, has another anchor, or is part of a checkpoint
    DELTA       name | snapshot of some channels     messages were published or rolled back
    GONE        name x n                         links have ended, or were lost; none: the end of a checkpoint

    entry: name | u8 size of the identity | identity | u16 size of the hello | hello | u16 anchors |
           (u64 channel seq | u64 stream seq) x anchors | snapshot

All integers are little-endian.  A name is a one-way hash of epoch and link id, so that a reader of the stream cannot
take a link over.  :mod:`~fyrehose.broker.state_stream` explains how such a stream is replayed.  If a record
behind the last checkpoint is missing or damaged, all links are lost: the listener takes a new epoch, which tells the
connectors.

A snapshot has the cursors of a link, so that the link can outlive the server's process:

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
from enum import IntEnum
from hashlib import blake2b
from struct import Struct, error

import attrs

from fyrehose.errors import LocalProtocolError, ProtocolError
from fyrehose.protocols.relink.channels import ReceiveChannel, ResultRun
from fyrehose.protocols.relink.frames import Ack, Hello, Terms, unpack_hello
from fyrehose.protocols.relink.link import Link
from fyrehose.records import Record

#: Source of our records.
SOURCE = "relink-links"
#: Versions of the layouts of a record and of a snapshot.
VERSION, SNAPSHOT_VERSION = 1, 1
NAME_SIZE = 8

HEADER = Struct(
    "<"
    "B"  # version
    "B"  # kind
    "Q"  # epoch
    "Q"  # seq of the first record of the last checkpoint
)
_U16 = Struct("<H")
_ANCHOR = Struct("<QQ")

#: The records at which a channel continues after a gap (anchors): number on the channel, number in the stream;
#: ascending.  From one anchor to the next both numbers increase by one with each message.
Anchors = list[tuple[int, int]]


class RecordKind(IntEnum):
    """The kind of a record in the stream of links."""

    ENTRY = 1
    DELTA = 2
    GONE = 3


@attrs.frozen(kw_only=True)
class Saved:
    """The durable state of one link."""

    name: bytes
    terms: Terms
    identity: bytes
    anchors: Anchors
    #: the snapshot of the whole link, and later snapshots of some channels, in order
    snapshots: list[bytes]


@attrs.define
class SavedLinks:
    """The links that a stream holds, by name (a state of :mod:`~fyrehose.broker.state_stream`).

    :ivar epoch: the last epoch that was used; 0: none
    """

    epoch: int = 0
    links: dict[bytes, Saved] = attrs.field(factory=dict)

    def clear(self) -> None:
        self.epoch, self.links = 0, {}

    def begin(self, newest: Record) -> int:
        """Return the seq at which the last checkpoint begins; take the epoch from *newest*, the last record.

        :raises ValueError: the record is shorter than its header
        """
        try:
            _, _, epoch, checkpoint = HEADER.unpack_from(newest.payload)
        except error as damage:
            raise ValueError(f"the record is too short: {damage}") from damage
        self.epoch = epoch
        begin: int = checkpoint
        return begin

    def apply(self, record: Record) -> None:
        try:
            _apply(record.payload, self.epoch, self.links)
        except error as damage:
            raise ValueError(f"the record is too short: {damage}") from damage


def name_of(epoch: int, link_id: int) -> bytes:
    """Return a link's public name: a one-way hash, from which nobody can take the link over."""
    return blake2b(epoch.to_bytes(8, "little") + link_id.to_bytes(8, "little"), digest_size=NAME_SIZE).digest()


def pack_entry(name: bytes, terms: Terms, identity: bytes, anchors: Anchors, snapshot: bytes) -> bytes:
    """Return the entry that describes one link, as bytes for a record."""
    hello = Hello(terms=terms).serialize()
    places = b"".join(_ANCHOR.pack(*anchor) for anchor in anchors)
    sizes = bytes([len(identity)]), _U16.pack(len(hello)), _U16.pack(len(anchors))
    return b"".join((name, sizes[0], identity, sizes[1], hello, sizes[2], places, snapshot))


def unpack_entry(data: bytes) -> Saved:
    """Return the link that an entry from :func:`pack_entry` describes.

    :raises ValueError: the bytes are not a valid entry
    """
    try:
        at = NAME_SIZE + 1 + data[NAME_SIZE]
        identity = data[NAME_SIZE + 1 : at]
        size = _U16.unpack_from(data, at)[0]
        hello = unpack_hello(bytearray(data[at + 2 : at + 2 + size]))
        at += 2 + size
        count = _U16.unpack_from(data, at)[0]
        at += 2
        anchors: Anchors = [_ANCHOR.unpack_from(data, at + _ANCHOR.size * i) for i in range(count)]
    except (error, IndexError, ProtocolError) as damage:
        raise ValueError(f"invalid entry of a link: {damage}") from damage
    snapshot = data[at + _ANCHOR.size * count :]
    return Saved(name=data[:NAME_SIZE], terms=hello.terms, identity=identity, anchors=anchors, snapshots=[snapshot])


def pack(kind: RecordKind, epoch: int, checkpoint: int, body: bytes) -> bytes:
    """Return the payload of a record of the link log: its header and *body*.

    :param checkpoint: seq of the first record of the last checkpoint
    """
    return HEADER.pack(VERSION, kind, epoch, checkpoint) + body


def _apply(data: bytes, epoch: int, links: dict[bytes, Saved]) -> None:
    """Apply one record to *links*.

    :raises ValueError: the record is invalid, or belongs to another version or epoch
    """
    version, kind, its_epoch, _ = HEADER.unpack_from(data)
    if version != VERSION or its_epoch != epoch:
        raise ValueError(f"the record has version {version} and epoch {its_epoch}, expected {VERSION} and {epoch}")
    body = data[HEADER.size :]
    if kind == RecordKind.ENTRY:
        entry = unpack_entry(body)
        links[entry.name] = entry
    elif kind == RecordKind.DELTA:
        name = body[:NAME_SIZE]
        if name in links:
            links[name].snapshots.append(body[NAME_SIZE:])
    else:
        for at in range(0, len(body), NAME_SIZE):
            links.pop(body[at : at + NAME_SIZE], None)


def save_snapshot(link: Link, channels: Iterable[int] | None = None) -> bytes:
    """Return a snapshot of the whole link, or only of the peer's channels in *channels*.

    :raises LocalProtocolError: the link keeps messages of its own, which a snapshot cannot hold
    """
    if link.kept and link.sending:
        raise LocalProtocolError("cannot save a link that keeps its own messages")
    ids = sorted(link.receiving if channels is None else set(channels))
    fields = [link.opened, len(ids)]
    for id_ in ids:
        _add_channel(fields, id_, link.receiving.get(id_))
    ours = link.sending.values() if channels is None else ()
    fields.append(len(ours))
    for sent in ours:
        fields += sent.id, sent.base
    return _pack_fields(fields)


def restore_snapshot(link: Link, data: bytes) -> None:
    """Apply the snapshot *data* to the detached *link*; channels that it does not contain stay unchanged.

    Undecided messages are not in a snapshot, so a restored link may lack some that had arrived.

    :raises ValueError: *data* is not a valid snapshot
    """
    if not data or data[0] != SNAPSHOT_VERSION:
        raise ValueError(f"a link's snapshot has version {data[:1].hex() or 'none'}, expected {SNAPSHOT_VERSION}")
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


def _pack_fields(fields: Iterable[int]) -> bytes:
    out = bytearray([SNAPSHOT_VERSION])
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
