"""The entries of the shared log, and the rule by which every server decides whether an entry counts.

The shared log hands the bytes of the journal from the leader to the followers.  The service that stores the shared log,
such as NATS JetStream, numbers the entries 1, 2, 3 ...  Integers are little-endian:

    entry       header 72 | name of the writer | data, or the list of the members
    takeover    a server has become the leader, in a new epoch, at the position where the journal ends
    checkpoint  the journal ends at this position; earlier entries may be deleted once the other servers have synced
    them
    data        bytes of the journal that belong at a position: whole batches, or a part of a large one
    members     the list of the members has changed

All entries but data have the list of the members that is valid from there on.  So the first entry that was not deleted,
which is never data, has a list.

A batch that does not fit into one entry is divided into parts; all but the last have the flag PART.  Parts count only
when the last part has arrived: after a take-over the log continues in front of an incomplete batch.  Whole batches may
follow the last part in its entry.  The header of a segment is followed by the segment's first batch in the same entry;
no batch of the previous segment is in it.

A position alone does not say in which log it is: journals of two clusters may have the same length.  So each entry has
the identity of its journal, and the chain, the checksum from which the journal continues at that position.

    in: the bytes of batches      out: entries; entries that count

This module imports neither Twisted nor a clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct

import attrs
from crc32c import crc32c

from fyrehose.cluster.members import Members
from fyrehose.journal.exchange import Batches
from fyrehose.journal.format import SEGMENT_MAGIC, UNKNOWN, Damage, Newer
from fyrehose.records import Buffer

#: The version of the layout that this code writes.  This code also reads version 2, which has no lists of members.
VERSION = 3
OLDEST = 2
MAGIC = b"FYRE"
#: Upper bound of an entry, in bytes: the default limit of a NATS message, minus room for the message's headers.
MAX_ENTRY = (1 << 20) - 4096
#: Upper bound of a writer's name, in bytes of UTF-8.
MAX_WRITER = 128

HEADER = Struct(
    "<"
    "4s"  # magic "FYRE"
    "B"  # version
    "B"  # kind
    "B"  # 1: a part of a batch, and another part follows
    "B"  # length of the writer's name
    "Q"  # epoch: 1, 2, 3 ...; each take-over begins one
    "Q"  # position in the journal
    "Q"  # incarnation: a random number for each start of the writer
    "I"  # length of the data
    "I"  # CRC32C of everything behind the header
    "16s"  # identity of the journal; zeros before it has its first segment
    "I"  # chain: the checksum from which the journal continues at the position; within a batch, that of its beginning
    "I"  # the same behind the data
    "4x"
    "I"  # CRC32C of the 68 bytes before
)
#: Upper bound of the data of an entry, in bytes.
MAX_DATA = MAX_ENTRY - HEADER.size - MAX_WRITER


class EntryKind(IntEnum):
    """The kinds of entries."""

    TAKEOVER = 1
    CHECKPOINT = 2
    DATA = 3
    MEMBERS = 4


@attrs.frozen(slots=True)
class EntryWriter:
    """The server that wrote an entry.

    :ivar name: the name of the server
    :ivar incarnation: a random number for each start of the server
    """

    name: str
    incarnation: int


@attrs.frozen(slots=True)
class LogEntry:
    """One entry of the shared log.

    :ivar position: where the data begins, or where the log ends, in the journal
    :ivar part: whether the batch continues in the next entry
    :ivar identity: the identity of the journal; UNKNOWN before the journal has its first segment
    :ivar chain: the checksum from which the journal continues at *position*; within a batch, at the batch's beginning
    :ivar after: the checksum from which the journal continues behind the data
    :ivar members: the members of the cluster from this entry on; None in data, and if no list was made yet
    """

    kind: EntryKind
    epoch: int
    writer: EntryWriter
    position: int
    data: bytes = b""
    part: bool = False
    identity: bytes = UNKNOWN
    chain: int = 0
    after: int = 0
    members: Members | None = None

    @property
    def end(self) -> int:
        """Return the position behind the data."""
        return self.position + len(self.data)

    @property
    def may_begin(self) -> bool:
        """Return whether the shared log may begin with this entry: take-overs and checkpoints need no earlier one."""
        return self.kind not in _FILLED

    @property
    def ident(self) -> str:
        """Return a name for this entry that no other entry has."""
        what = self.kind.name.lower()
        if self.kind is EntryKind.MEMBERS and self.members is not None:
            what = f"{what} {self.members.version}"  # several lists may be at the same position
        return f"{self.epoch}/{what}/{self.position}/{self.writer.name}/{self.writer.incarnation:x}"

    def pack(self) -> bytes:
        """Encode the entry for the shared log: a header with two checksums, the writer's name, the data."""
        name = self.writer.name.encode()
        data = self.data if self.members is None else self.members.pack()
        head = HEADER.pack(
            MAGIC,
            VERSION,
            self.kind,
            self.part,
            len(name),
            self.epoch,
            self.position,
            self.writer.incarnation,
            len(data),
            crc32c(data, crc32c(name)),
            self.identity,
            self.chain,
            self.after,
            0,
        )
        return b"".join((head[:-4], crc32c(head[:-4]).to_bytes(4, "little"), name, data))

    @classmethod
    def unpack(cls, data: Buffer) -> LogEntry:
        """Decode an entry.

        :raises Damage: *data* is damaged, or no entry at all
        :raises Newer: a newer version has written it
        """
        if len(data) < HEADER.size:
            raise Damage(f"{len(data)} bytes are too few for an entry of the shared log: the header has {HEADER.size}")
        (
            magic,
            version,
            kind,
            part,
            size,
            epoch,
            position,
            incarnation,
            length,
            body,
            identity,
            chain,
            after,
            crc,
        ) = HEADER.unpack_from(data)
        if magic != MAGIC or (OLDEST <= version <= VERSION and crc != crc32c(data[: HEADER.size - 4])):
            raise Damage("the header of an entry of the shared log is damaged")
        if not OLDEST <= version <= VERSION:
            age = Newer if version > VERSION else Damage
            raise age(f"another version wrote an entry of the shared log (version {version}, this reads {VERSION})")
        if len(data) != HEADER.size + size + length or crc32c(memoryview(data)[HEADER.size :]) != body:
            raise Damage("an entry of the shared log is damaged")
        if kind not in _KINDS or (not length and kind in _FILLED) or (part and kind != EntryKind.DATA):
            raise Damage(
                f"an entry of the shared log has kind {kind}, part {part} and {length} bytes: these do not agree"
            )
        try:
            name = bytes(data[HEADER.size : HEADER.size + size]).decode()
        except UnicodeDecodeError as error:
            raise Damage("the writer of an entry of the shared log is not UTF-8") from error
        rest, members = bytes(data[HEADER.size + size :]), None
        if kind != EntryKind.DATA and rest:
            rest, members = b"", Members.unpack(rest)
        writer = EntryWriter(name, incarnation)
        return cls(EntryKind(kind), epoch, writer, position, rest, bool(part), identity, chain, after, members)


_KINDS = frozenset(EntryKind)
#: The kinds of entries that have data.
_FILLED = (EntryKind.DATA, EntryKind.MEMBERS)


@attrs.define
class Validity:
    """The rule which entries of the shared log count, with the same result on every server (rule 1).

    An entry counts if it has the current epoch (a take-over: a greater one), begins where the log ends, and is of the
    same journal.

    :ivar epoch: the epoch of the last take-over that counted; 0 before the first
    :ivar end: the position where the log ends; parts of an incomplete batch are not included
    :ivar reached: the position behind the last part of an incomplete batch; equal to *end* if no batch is incomplete
    :ivar identity: the identity of the log; UNKNOWN before the first entry that states it
    :ivar chain: the checksum from which the log continues at *end*
    :ivar members: the members of the cluster; None before the first entry that lists them
    """

    epoch: int = 0
    end: int = 0
    reached: int = 0
    identity: bytes = UNKNOWN
    chain: int = 0
    members: Members | None = None

    def begin(self, entry: LogEntry) -> None:
        """Start in front of *entry*, the first entry that the shared log still has, so that it counts.

        :raises Damage: the shared log cannot begin with such an entry
        """
        if not entry.may_begin:
            raise Damage(f"the shared log begins with {entry.kind.name.lower()} instead of a checkpoint or a take-over")
        self.epoch = entry.epoch - (entry.kind is EntryKind.TAKEOVER)
        self.end = self.reached = entry.position
        self.identity, self.chain, self.members = entry.identity, entry.chain, entry.members

    def counts(self, entry: LogEntry) -> bool:
        """Return whether *entry*, the next entry of the shared log, counts; if so, move behind it."""
        if entry.chain != self.chain or self.identity not in (entry.identity, UNKNOWN):
            return False  # the entry is of another journal than the earlier entries
        if not self._continues(entry):
            return False
        self.identity = entry.identity
        self.members = entry.members or self.members
        return True

    def _continues(self, entry: LogEntry) -> bool:
        if entry.kind is EntryKind.TAKEOVER:
            if entry.epoch <= self.epoch or entry.position != self.end:
                return False
            self.epoch, self.reached = entry.epoch, self.end
            return True
        if entry.epoch != self.epoch or entry.position != self.reached:
            return False
        if entry.kind is not EntryKind.DATA:
            return self.reached == self.end
        self.reached = entry.end
        if not entry.part:
            self.end, self.chain = entry.end, entry.after
        return True


@attrs.frozen(slots=True)
class Piece:
    """The content of an entry that is not appended yet; its fields are like those of :class:`LogEntry`."""

    position: int
    data: bytes
    part: bool
    chain: int
    after: int
    kind: EntryKind = EntryKind.DATA
    members: Members | None = None

    @property
    def begins_segment(self) -> bool:
        """Return whether the data begins with the header of a segment."""
        return self.data.startswith(SEGMENT_MAGIC)


def divide(position: int, chain: int, batches: Sequence[Batches], most: int = MAX_DATA) -> Iterator[Piece]:
    """Distribute consecutive batches over entries.

    :param position: the position of the first batch
    :param chain: the checksum from which the journal continues there
    :param batches: whole batches; if an item contains a segment's header, it begins with it, and the segment's first
        batch follows
    :param most: upper bound of the data of an entry, in bytes
    """
    pieces: list[Buffer] = []
    size, after = 0, chain
    for each in batches:
        batch = each.data
        new_segment = bytes(batch[: len(SEGMENT_MAGIC)]) == SEGMENT_MAGIC
        if pieces and (size + len(batch) > most or new_segment):
            yield Piece(position, joined(pieces), False, chain, after)
            position += size
            pieces, size, chain = [], 0, after
        if len(batch) <= most:
            pieces.append(batch)
            size += len(batch)
            after = each.chain
            continue
        view = memoryview(batch)
        while len(view) > most:
            yield Piece(position, bytes(view[:most]), True, chain, chain)
            position += most
            view = view[most:]
        yield Piece(position, bytes(view), False, chain, each.chain)
        position += len(view)
        chain = after = each.chain
    if pieces:
        yield Piece(position, joined(pieces), False, chain, after)


def joined(pieces: Sequence[Buffer]) -> bytes:
    """Return *pieces* joined; a single piece, which is the most frequent case, is not copied."""
    return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
