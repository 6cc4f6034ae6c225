"""``fyrehose journal export``: write records of a journal to one file, which appears only when it is complete.

    ndjson         one object a line, as ``journal dump --format json`` writes it; needs no other package
    parquet,arrow  the columns of the Spark source; needs pyarrow (the extra ``spark``)

The file is written under a temporary name in the same directory, and renamed when all of it is on disk.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from fyrehose.cli.client.formats import as_json
from fyrehose.errors import ConfigError, FyrehoseError, JournalGap, MissingExtra
from fyrehose.imports import ARROW
from fyrehose.journal.files import Files
from fyrehose.offline.walk import Batch, Damaged, Log, walk
from fyrehose.records import Run
from fyrehose.spark.selection import Selection, bounds

#: Formats by the suffix of the file's name.
FORMATS = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ndjson": "ndjson", ".jsonl": "ndjson"}

_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})")

Progress = Callable[[int, int], object]


@attrs.frozen(slots=True)
class Exported:
    """The number of records that an export wrote, and the size of its file."""

    records: int
    size: int | None  #: of the file, in bytes; None for a device, a pipe, or standard output


def selected(streams: tuple[str, ...], start: str | None, end: str | None) -> Selection:
    """Select the records of streams that match one of the patterns, between two numbers or times.

    :param start: the first number, or the earliest time; None for no bound
    :param end: the last number, or the time before which records were accepted; None for no bound
    :raises ConfigError: a bound is neither a number nor a time
    """
    for option, text in (("--from", start), ("--to", end)):
        if text in ("earliest", "latest"):
            raise ConfigError(f"invalid {option} {text!r}: expected a number or a time; leave it out for no bound")
    begin, stop = bounds(start, "--from"), bounds(end, "--to")
    if stop.time is not None:  # --to excludes the time, but the end of a selection includes it.
        stop = attrs.evolve(stop, time=stop.time - 1)
    return Selection(patterns=streams or None, start=begin, end=stop)


def format_of(path: Path, form: str | None) -> str:
    """Return the format of the file at ``path``: ``form``, or the one of its suffix.

    :raises ConfigError: ``form`` is None, and no format has this suffix
    :raises MissingExtra: the format needs pyarrow, which is not installed
    """
    form = form or FORMATS.get(path.suffix.lower())
    if form is None:
        raise ConfigError(f"unknown format of {path}: expected a name ending with {', '.join(FORMATS)}, or --format")
    if form != "ndjson" and not ARROW.installed:
        raise MissingExtra(f"{ARROW.missing(form)}; or write --format ndjson")
    return form


@attrs.frozen
class Export:
    """The records to export from the journal in ``directory``, and the format.

    :ivar form: ``parquet``, ``arrow`` or ``ndjson``
    :ivar wanted: the records to write
    :ivar skip_gaps: whether numbers that are missing from the journal are ignored
    :ivar progress: called with the bytes of the journal that are done, and their total
    """

    directory: Path
    form: str
    wanted: Selection
    skip_gaps: bool
    progress: Progress


def export(job: Export, path: Path) -> Exported:
    """Write the records of *job* to a file at ``path``, replacing an existing file.

    :raises JournalError: the directory has no journal
    :raises JournalCorrupt: the journal is damaged
    :raises JournalGap: wanted numbers are missing, and ``skip_gaps`` is not set
    :raises BrokenPipeError: the reader of standard output has closed it
    :raises FyrehoseError: the file cannot be written
    """
    Log.of(job.directory)  # If the directory has no journal, this raises an error before the file is touched.
    write = _ndjson if job.form == "ndjson" else _columns
    try:
        with _whole(path) as out:
            records = write(job, out)
        named = _descriptor(path) is None and path.is_file()
        return Exported(records, path.stat().st_size if named else None)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _descriptor(path) is not None:
            raise  # The reader of standard output, such as head, has ended.
        cause = error.strerror or error
        if error.filename is not None and job.directory in Path(os.fsdecode(error.filename)).parents:
            raise FyrehoseError(f"cannot read {error.filename}: {cause}") from error
        raise FyrehoseError(f"cannot write {path}: {cause}") from error


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that is renamed to ``path`` at the end of the context, and deleted on failure.

    A device or a pipe is written directly, because renaming would replace it.  So is standard output, even if that is a
    file: others may have written to it before, and may write to it later.
    """
    descriptor = _descriptor(path)
    if descriptor is not None:
        with os.fdopen(os.dup(descriptor), "wb") as out:
            yield out
        return
    if path.exists() and not path.is_file():
        with path.open("wb") as out:
            yield out
        return
    path = path.resolve()  # Otherwise a symbolic link would be replaced, and not the file to which it points.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _terminated(), temporary.open("wb") as out:
            if path.exists():  # Keep the permissions of the file that is replaced.
                os.fchmod(out.fileno(), path.stat().st_mode & 0o777)
            yield out
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
        Files().sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _descriptor(path: Path) -> int | None:
    """Return the descriptor that ``path`` stands for, such as 1 for ``-`` or ``/dev/stdout``; None for a file."""
    known = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}.get(str(path))
    match = _DESCRIPTOR.fullmatch(str(path))
    return int(match[1]) if match else known


@contextmanager
def _terminated() -> Iterator[None]:
    """Let SIGTERM raise :class:`SystemExit` in this context, so that ``finally`` clauses run."""
    if threading.current_thread() is not threading.main_thread():  # Python handles signals in the main thread only.
        yield
        return

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ndjson(job: Export, out: BinaryIO) -> int:
    records, last = 0, dict[str, int]()
    for run in _runs(job):
        before = last.get(run.stream)
        if before is not None and run.first_seq > before + 1 and not job.skip_gaps:
            raise JournalGap(
                f"records {before + 1}-{run.first_seq - 1} of stream {run.stream!r} are missing from the journal; "
                "pass --skip-gaps to export the others"
            )
        last[run.stream] = run.last_seq
        out.write(as_json(run))
        records += len(run)
    return records


def _runs(job: Export) -> Iterator[Run]:
    log, wanted = Log.of(job.directory), job.wanted
    start = log.segments[0].base
    for found in walk(log):
        if isinstance(found, Damaged):
            raise found.error()
        if not isinstance(found, Batch):
            continue
        job.progress(found.header.end - start, max(log.durable - start, 0))
        for run in found.runs() if wanted.accepts(found.header.time) else ():
            if wanted.wants(run.stream):
                first, stop = wanted.seqs(run.stream)
                part = run.slice(max(0, first - run.first_seq), max(0, stop + 1 - run.first_seq))
                if len(part):
                    yield part


def _columns(job: Export, out: BinaryIO) -> int:
    """Write the records as Parquet or Arrow, with all columns of the Spark source; return the number of records."""
    import pyarrow as pa

    from fyrehose.offline.places import place
    from fyrehose.spark.columns import COLUMNS, arrow_schema
    from fyrehose.spark.plan import Planner
    from fyrehose.spark.reading import PartReader

    schema = arrow_schema(tuple(COLUMNS))
    where = place(str(job.directory))
    parts = Planner(where, job.wanted, skip_gaps=job.skip_gaps).parts()
    records = 0
    writer: Any
    if job.form == "parquet":
        import pyarrow.parquet as pq

        writer = pq.ParquetWriter(out, schema, compression="zstd")
    else:
        writer = pa.ipc.new_file(out, schema)
    done, total = 0, sum(part.size for part in parts)
    with writer:
        for part in parts:
            for batch in PartReader(where, part, job.wanted, schema, skip_gaps=job.skip_gaps).read():
                writer.write_batch(batch)
                records += batch.num_rows
            done += part.size
            job.progress(done, total)
    return records
