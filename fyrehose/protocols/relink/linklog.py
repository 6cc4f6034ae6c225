"""Links on disk: a stream holds their state, written in one batch with the messages concerned.

    u8 version | u8 kind | u64 epoch | u64 seq of the first record of the last checkpoint | body

    CHECKPOINT  u32 index | u32 count | entries, each after its u32 size     all links, in ``count`` records
    ENTRY       an entry                                                     a link is new, or has another anchor
    DELTA       name | snapshot of some channels                             messages were published or rolled back
    GONE        name x n                                                     links have ended, or were lost

    entry: name | u8 size of the identity | identity | u16 size of the hello | hello | u16 anchors |
           (u64 channel seq | u64 stream seq) x anchors | snapshot

All integers are little-endian.  A name is a one-way hash of epoch and link id, so that a reader of the stream cannot
take a link over.  Only this module writes records with source :data:`SOURCE`; others are skipped.

Recovery begins at the last checkpoint, to which every record refers, so only the records behind it are needed.  If any
of them is missing or damaged, all links are lost: the listener takes a new epoch, which tells the connectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from hashlib import blake2b
from struct import Struct, error

import attrs

from fyrehose import ownlog
from fyrehose.errors import ProtocolError
from fyrehose.protocols.relink import handshake
from fyrehose.protocols.relink.handshake import Hello, Terms

#: Source of our records.
SOURCE = "relink-links"
VERSION = 1
NAME_SIZE = 8
#: A checkpoint begins a new record when the last one is larger than this, in bytes.
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
    #: its full snapshot, and the later snapshots of some channels, in order
    snapshots: list[bytes]


@attrs.frozen(kw_only=True)
class SavedLinks:
    """The links that a stream holds."""

    epoch: int = 0  #: the last epoch that was used; 0: none
    links: dict[bytes, Saved] | None = None  #: by name; None: lost


def name_of(epoch: int, link_id: int) -> bytes:
    """Return a link's public name."""
    return blake2b(epoch.to_bytes(8, "little") + link_id.to_bytes(8, "little"), digest_size=NAME_SIZE).digest()


def pack_entry(name: bytes, terms: Terms, identity: bytes, anchors: Anchors, snapshot: bytes) -> bytes:
    """Return the bytes of an entry."""
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


def recover(read: ownlog.Read, stream: str, bounds: tuple[int, int]) -> SavedLinks:
    """Read the links from *stream*.

    :param read: the journal's ``read``: stream, first number, size in bytes -> runs
    :param bounds: the oldest and the last number of the stream
    :raises JournalCorrupt: the stream cannot be read
    """
    last = bounds[1]
    newest = ownlog.last_record(read, stream, bounds, SOURCE)
    if newest is None:
        return SavedLinks()
    try:
        _, kind, epoch, checkpoint = HEADER.unpack_from(newest.payload)
        if kind == RecordKind.CHECKPOINT:
            checkpoint = newest.seq - PLACE.unpack_from(newest.payload, HEADER.size)[0]
    except error:
        return SavedLinks()
    links: dict[bytes, Saved] = {}
    expected = checkpoint
    try:
        for record in ownlog.records(read, stream, checkpoint, last):
            if record.seq != expected:
                return SavedLinks(epoch=epoch)
            expected += 1
            if record.source == SOURCE:
                _apply(record.payload, epoch, links)
    except (ValueError, error):
        return SavedLinks(epoch=epoch)
    return SavedLinks(epoch=epoch, links=links if expected == last + 1 else None)


def _apply(data: bytes, epoch: int, links: dict[bytes, Saved]) -> None:
    """Apply one record to *links*.

    :raises ValueError: the record is invalid, or belongs to another version or epoch
    """
    version, kind, its_epoch, _ = HEADER.unpack_from(data)
    if version != VERSION or its_epoch != epoch:
        raise ValueError(f"a record has version {version} and epoch {its_epoch}, expected {VERSION} and {epoch}")
    body = data[HEADER.size :]
    if kind == RecordKind.CHECKPOINT:
        if PLACE.unpack_from(body)[0] == 0:
            links.clear()
        for entry in _pieces(body[PLACE.size :]):
            links[entry.name] = entry
    elif kind == RecordKind.ENTRY:
        entry = unpack_entry(body)
        links[entry.name] = entry
    elif kind == RecordKind.DELTA:
        name = body[:NAME_SIZE]
        if name in links:
            links[name].snapshots.append(body[NAME_SIZE:])
    else:
        for at in range(0, len(body), NAME_SIZE):
            links.pop(body[at : at + NAME_SIZE], None)


def _pieces(data: bytes) -> Iterator[Saved]:
    at = 0
    while at < len(data):
        size = _U32.unpack_from(data, at)[0]
        at += _U32.size + size
        yield unpack_entry(data[at - size : at])
