"""Offsets: positions that are bound to their journal, for programs that remember how far they have read.

    in: a source (see places.py), a position      out: {position, identity, chain}, and whether a journal has it

A position is a number of bytes, which any journal may have.  The identity tells one journal from another, and the chain
- the checksum of all batches before the position - tells a journal from a copy to which other batches were appended.
"""

from __future__ import annotations

from typing import Any

import attrs

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal.scan import SegmentReader
from fyrehose.offline.places import Missing, Place
from fyrehose.offline.view import Extent, View, differ


@attrs.frozen(slots=True)
class Offset:
    """A position of one journal.

    :ivar identity: of the journal, 16 bytes
    :ivar chain: the checksum from which the log continues at this position; None if it is unknown
    """

    position: int
    identity: bytes = fmt.UNKNOWN
    chain: int | None = None

    @classmethod
    def parse(cls, fields: Any) -> Offset:
        """Return the offset that *fields*, a result of :meth:`fields`, describes.

        :raises ValueError: *fields* is not an offset
        """
        try:
            position, identity, chain = fields["position"], bytes.fromhex(fields["identity"]), fields["chain"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"invalid offset {fields!r}: expected position, identity and chain") from error
        if type(position) is not int or position < 0 or (chain is not None and type(chain) is not int):
            raise ValueError(
                f"invalid offset {fields!r}: expected a position of 0 or more, and a number or null as the chain"
            )
        return cls(position, identity, chain)

    @property
    def fields(self) -> dict[str, Any]:
        """Return this offset as an object for JSON."""
        return {"position": self.position, "identity": self.identity.hex(), "chain": self.chain}


@attrs.define(eq=False)
class Offsets:
    """A maker of offsets for one journal, which also checks offsets that programs have remembered.

    The chain at a position is in the header of the next batch.  Behind the last batch, the chain is found by reading
    the headers of the last segment, beginning where the previous such search ended.
    """

    place: Place
    #: A position behind a batch, and the chain at that position; the next search begins there.
    _behind: tuple[int, int | None] = attrs.field(default=(0, None), init=False)

    def at(self, position: int, view: View | None = None) -> Offset:
        """Return the offset for *position*."""
        view = self.place.view() if view is None else view
        return Offset(position, view.identity, self._chain(view, position))

    def check(self, offset: Offset, view: View, remedy: str) -> None:
        """Check that the journal has the batches that were in front of *offset* when the offset was made.

        :param remedy: for the error: what the user can do if the journal does not have these batches
        :raises JournalCorrupt: the offset is of another journal, or of another copy of this one
        """
        if differ(offset.identity, view.identity):
            raise JournalCorrupt(
                f"{self.place} is another journal (identity {view.identity.hex()}) than the one that was read up to "
                f"position {offset.position} ({offset.identity.hex()}): {remedy}"
            )
        found = self._chain(view, offset.position)
        if None not in (found, offset.chain) and found != offset.chain:
            raise JournalCorrupt(
                f"{self.place} does not continue at position {offset.position} where reading ended (chain {found}, not "
                f"{offset.chain}): it was put back from another copy; {remedy}"
            )

    def _chain(self, view: View, position: int) -> int | None:
        """Return the chain at *position*; None if no batch begins or ends there, or if damage was replaced there."""
        for extent in view.segments:
            if not extent.base <= position <= extent.end or (position == extent.end and extent != view.segments[-1]):
                continue
            try:
                with self.place.open(extent.base, extent.end) as reader:
                    return self._chain_in(reader, extent, position)
            except (Missing, fmt.Damage):
                return None  # the reader of the batches gets the error about the damage
        return None

    def _chain_in(self, reader: SegmentReader, extent: Extent, position: int) -> int | None:
        first = extent.base + fmt.SEGMENT_HEADER.size
        if position <= first:
            header = reader.header()
            # If --quarantine has replaced the header and the first batch, neither has the chain from before; an earlier
            # version replaced headers without a time of creation.
            replaced = not header.created or (first < extent.end and reader.header_ahead(first).mended)
            return header.chain if position in (extent.base, first) and not replaced else None
        if position < extent.end:
            batch = reader.header_ahead(position)
            return None if batch.mended else batch.chain
        return self._at_end(reader, first, extent)

    def _at_end(self, reader: SegmentReader, first: int, extent: Extent) -> int | None:
        reader.ahead = self.place.for_headers
        position, chain = self._behind
        if not first < position <= extent.end:
            position, chain = first, None
        while position < extent.end:
            header = reader.header_ahead(position)
            position, chain = header.end, None if header.mended else header.checksum
        self._behind = position, chain
        return chain
