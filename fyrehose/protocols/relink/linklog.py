"""Links on disk: a stream holds the state of each link, written in one batch with the messages that changed it.

    u8 version | u8 kind | u64 epoch | u64 seq of the first record of the last checkpoint | body

    CHECKPOINT  u32 index | u32 count | entries, each after its u32 size     all links, in ``count`` records
    ENTRY       an entry                                                     a link is new, or has another anchor
    DELTA       name | snapshot of some channels                             messages were published or rolled back
    GONE        name x n                                                     links have ended, or were lost

    entry: name | u8 size of the identity | identity | u16 size of the hello | hello | u16 anchors |
           (u64 channel seq | u64 stream seq) x anchors | snapshot

All integers are little-endian.  A name is a one-way hash of epoch and link id, so that a reader of the stream cannot
take a link over.  :mod:`~fyrehose.broker.state_stream` explains how such a stream is replayed.  If a record
behind the last checkpoint is missing or damaged, all links are lost: the listener takes a new epoch, which tells the
connectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from hashlib import blake2b
from struct import Struct, error

import attrs

from fyrehose.errors import ProtocolError
from fyrehose.protocols.relink import handshake
from fyrehose.protocols.relink.handshake import Hello, Terms
from fyrehose.records import Record

#: Source of our records.
SOURCE = "relink-links"
VERSION = 1
NAME_SIZE = 8
#: A checkpoint is divided into records of about this size, in bytes: a larger record is followed by another.
RECORD_SIZE = 1 << 20

HEADER = Struct(
    "<"
    "B"  # version
    "B"  # kind
    "Q"  # epoch
    "Q"  # seq of the first record of the last checkpoint; in a checkpoint 0
)
PLACE = Struct(
    "<"
    "I"  # index of this record of the checkpoint
    "I"  # number of records of the checkpoint
)
_U16 = Struct("<H")
_U32 = Struct("<I")
_ANCHOR = Struct("<QQ")

#: (number on the channel, number in the stream), ascending; from one anchor to the next both numbers increase by one
Anchors = list[tuple[int, int]]


class RecordKind(IntEnum):
    """Kind of a record."""

    CHECKPOINT = 0
    ENTRY = 1
    DELTA = 2
    GONE = 3


@attrs.frozen(kw_only=True)
class Saved:
    """The state of one link on disk."""

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
            _, kind, epoch, checkpoint = HEADER.unpack_from(newest.payload)
            if kind == RecordKind.CHECKPOINT:
                checkpoint = newest.seq - PLACE.unpack_from(newest.payload, HEADER.size)[0]
        except error as damage:
            raise ValueError(f"it is too short: {damage}") from damage
        self.epoch = epoch
        begin: int = checkpoint
        return begin

    def apply(self, record: Record) -> bool:
        try:
            return _apply(record.payload, self.epoch, self.links)
        except error as damage:
            raise ValueError(f"it is too short: {damage}") from damage


def name_of(epoch: int, link_id: int) -> bytes:
    """Return a link's public name: a one-way hash, from which nobody can take the link over."""
    return blake2b(epoch.to_bytes(8, "little") + link_id.to_bytes(8, "little"), digest_size=NAME_SIZE).digest()


def pack_entry(name: bytes, terms: Terms, identity: bytes, anchors: Anchors, snapshot: bytes) -> bytes:
    """Return the bytes of an entry, which describes one link."""
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
        hello = handshake.unpack_hello(bytearray(data[at + 2 : at + 2 + size]))
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


def pack_checkpoint(epoch: int, entries: Iterable[bytes]) -> list[bytes]:
    """Return the payloads of a checkpoint's records, of which there is at least one."""
    pieces: list[list[bytes]] = [[]]
    filled = 0
    for entry in entries:
        if filled > RECORD_SIZE:
            pieces.append([])
            filled = 0
        pieces[-1] += (_U32.pack(len(entry)), entry)
        filled += len(entry)
    return [
        pack(RecordKind.CHECKPOINT, epoch, 0, PLACE.pack(index, len(pieces)) + b"".join(piece))
        for index, piece in enumerate(pieces)
    ]


def _apply(data: bytes, epoch: int, links: dict[bytes, Saved]) -> bool:
    """Apply one record to *links*; return whether the record begins a checkpoint.

    :raises ValueError: the record is invalid, or belongs to another version or epoch
    """
    version, kind, its_epoch, _ = HEADER.unpack_from(data)
    if version != VERSION or its_epoch != epoch:
        raise ValueError(f"the record has version {version} and epoch {its_epoch}, expected {VERSION} and {epoch}")
    body = data[HEADER.size :]
    if kind == RecordKind.CHECKPOINT:
        begins: bool = PLACE.unpack_from(body)[0] == 0
        if begins:
            links.clear()
        for entry in _pieces(body[PLACE.size :]):
            links[entry.name] = entry
        return begins
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
    return False


def _pieces(data: bytes) -> Iterator[Saved]:
    at = 0
    while at < len(data):
        size = _U32.unpack_from(data, at)[0]
        at += _U32.size + size
        yield unpack_entry(data[at - size : at])
