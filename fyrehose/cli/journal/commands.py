"""``fyrehose journal``: inspect a journal's files, whether or not a server has them open."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import attrs
import click

from fyrehose.cli.client.values import FORMAT, WholeNumber
from fyrehose.cli.console import WIDE, escaped, moment, progress_bar, table, terminal, write_json
from fyrehose.cli.journal.backup import backup, restore
from fyrehose.cli.journal.standby import follow, promote
from fyrehose.errors import JournalCorrupt, JournalEndUnknown, NoSuchSubscription
from fyrehose.options import counted, shown_size
from fyrehose.records import LAST_SEQ

#: How many bytes of a payload `dump` shows at most in a line of text.
SHOWN = 200
#: The largest number of problems that `verify` lists one by one.
LISTED = 50

_DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
_EVERYTHING = click.option("--all", "everything", is_flag=True, help="Also include data not yet known to be durable.")


@click.group(short_help="Verify, count, export and back up a journal.")
def journal() -> None:
    """Verify, show, count, export and back up the journal in DIR, the server's --data-dir.

    A server may write to DIR meanwhile; no command changes its files. Status 3
    means damage, and status 7 of verify that the end is unknown.

    \b
        fyrehose journal stats data
    """


@journal.command()
@_EVERYTHING
@_DIRECTORY
def verify(directory: Path, everything: bool) -> None:
    """Check all checksums, indexes, and record numbers.

    \b
        fyrehose journal verify data
    """
    from fyrehose.offline.verify import verify as verified

    with progress_bar(f"verifying {directory}") as progress:
        report = verified(directory, progress, everything)
    for note in report.notes:
        click.echo(f"note: {note}")
    for gap in report.gaps[:LISTED]:
        click.echo(f"gap: {escaped(gap.stream) or 'every other stream'} has no {gap.first} to {gap.last}")
    if len(report.gaps) > LISTED:
        click.echo(f"gap: and {len(report.gaps) - LISTED} more")
    for problem in report.problems[:LISTED]:
        click.echo(f"damaged: {problem}")
    state = "DAMAGED" if report.problems else "OK" if report.mark else "END UNKNOWN"
    click.echo(
        f"{state}: {counted(report.records, 'record')} of "
        f"{counted(report.streams, 'stream')} verified, in {counted(report.batches, 'batch', 'batches')} and "
        f"{counted(report.segments, 'segment')}, {counted(report.size, 'byte')} up to position {report.end}"
        f"{f' ({report.allocated >> 20} MiB preallocated)' if report.allocated >> 20 else ''}"
    )
    if report.problems:
        raise JournalCorrupt(
            f"{directory} is damaged in {counted(len(report.problems), 'place')}; restore it from a backup"
        )
    if not report.mark:
        raise JournalEndUnknown(
            f"{directory} is undamaged up to position {report.end}, but nothing vouches for its end, so newer records "
            "may be missing; a finished backup has a file END, and a server's next start writes MARK"
        )


@journal.command(short_help="Write the records to standard output.")
@click.option("--stream", metavar="NAME", help="Show this stream only.")
@click.option("--from", "first", type=WholeNumber(1, LAST_SEQ), default=1, help="First number of the stream.")
@click.option("--limit", type=WholeNumber(0), help="Most records, runs or batches to show.")
@FORMAT
@click.option("--what", type=click.Choice(["records", "runs", "batches"]), default="records", show_default=True)
@_EVERYTHING
@_DIRECTORY
def dump(
    directory: Path, stream: str | None, first: int, limit: int | None, form: str, what: str, everything: bool
) -> None:
    """Write the journal's records to standard output, in the order in which they were accepted.

    \b
        fyrehose journal dump data --stream log --from 1000 --limit 10
        fyrehose journal dump data --format json | jq -r .payload
        fyrehose journal dump data --what batches
    """
    from fyrehose.offline import dump as dumping

    if first > 1 and stream is None:
        raise click.UsageError("--from is a number of one stream; add --stream NAME")
    if what == "batches" and stream is not None:
        raise click.UsageError("a batch has many streams; use --stream with --what records or runs")
    if what == "batches":
        lines = (_batch_line(batch, form) for batch in dumping.batches(directory, everything))
    elif what == "runs":
        lines = (_run_line(run, form) for run in dumping.runs(directory, stream, first, None, everything))
    else:
        found = dumping.runs(directory, stream, first, limit, everything)
        lines, limit = (_records(run, form) for run in found), None
    out, written = sys.stdout.buffer, False
    for line in lines if limit is None else itertools.islice(lines, limit):
        written = True
        out.write(line)
    out.flush()
    if stream is not None and not written and limit != 0:
        begin = f" from number {first} on" if first > 1 else ""
        advice = f"`fyrehose journal stats {directory}` lists the streams"
        click.echo(f"fyrehose: the journal has no records of stream {stream!r}{begin}; {advice}", err=True)


@journal.command()
@FORMAT
@_EVERYTHING
@_DIRECTORY
def stats(directory: Path, form: str, everything: bool) -> None:
    """Count segments, bytes, and the records of every stream.

    \b
        fyrehose journal stats data --format json | jq .records
    """
    from fyrehose.offline.dump import stats as counted

    with progress_bar(f"reading {directory}") as progress:
        found = counted(directory, progress, everything)
    if form == "json":
        write_json(_as_json(found))
    else:
        _show(found)
    if found.damaged:
        raise found.damaged[0].error()


@journal.command(short_help="Write the records as Parquet, Arrow or NDJSON.")
@click.option(
    "--stream",
    "streams",
    multiple=True,
    metavar="PATTERN",
    help="Only matching streams, such as 'log.*'.",
)
@click.option("--from", "start", metavar="SEQ|TIME", help="Export from this number or this time (UTC) on.")
@click.option("--to", "end", metavar="SEQ|TIME", help="Export up to this number, or before this time (UTC).")
@click.option(
    "--format", "form", type=click.Choice(["parquet", "arrow", "ndjson"]), help="Format; default: by FILE's suffix."
)
@click.option("--skip-gaps", is_flag=True, help="Ignore numbers that are missing from the journal.")
@_DIRECTORY
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def export(
    directory: Path,
    file: Path,
    streams: tuple[str, ...],
    start: str | None,
    end: str | None,
    form: str | None,
    skip_gaps: bool,
) -> None:
    """Write records of the journal in DIR into FILE as Parquet, Arrow or NDJSON.

    FILE appears when it is complete; - is standard output. Parquet and Arrow need pyarrow.

    \b
        fyrehose journal export data all.parquet
        fyrehose journal export data a.ndjson --stream 'log.*' --from 2026-01-31
    """
    from fyrehose.cli.journal.export import Export, format_of, selected
    from fyrehose.cli.journal.export import export as write

    chosen, wanted = format_of(file, form), selected(streams, start, end)
    with progress_bar(f"exporting {directory}") as progress:
        written = write(Export(directory, chosen, wanted, skip_gaps, progress), file)
    size = "" if written.size is None else f", {counted(written.size, 'byte')}"
    click.echo(f"{counted(written.records, 'record')}{size} in {file}", err=written.size is None)


@journal.command(short_help="Serve the journal to other machines over HTTP.")
@click.option("--listen", "place", default="127.0.0.1:8120", show_default=True, metavar="HOST:PORT")
@click.option(
    "--token-file",
    default="",
    metavar="FILE",
    help="File with the token that clients must send.",
    type=click.Path(),
)
@click.option(
    "--hosts",
    default="",
    metavar="NAME,...",
    help="Host names that requests may use, besides localhost on loopback.",
)
@_DIRECTORY
def serve(directory: Path, place: str, token_file: str, hosts: str) -> None:
    """Serve the journal's files over HTTP, from a process of its own beside the server.

    Spark reads them: spark.read.format("fyrehose").load("http://HOST:PORT").  Every client that can connect can read
    everything, so an address that other machines can reach requires a token.  The token is sent unencrypted: on an
    untrusted network, put a TLS proxy in front.

    \b
        fyrehose journal serve data --listen 127.0.0.1:8120
        fyrehose journal serve data --listen 10.0.0.5:8120 --token-file token
    """
    from fyrehose.cli import running
    from fyrehose.cli.journal.serve import serve as serving

    names = tuple(name.strip().lower() for name in hosts.split(",") if name.strip())
    sys.exit(running.run(lambda reactor: serving(reactor, directory, place, token_file, names)))


@journal.command(short_help="List the named subscriptions, and their lag.")
@click.option(
    "--delete",
    metavar="NAME",
    help="Delete that of a program that reads the files.",
)
@FORMAT
@_DIRECTORY
def subscriptions(directory: Path, delete: str | None, form: str) -> None:
    """List the named subscriptions in the journal's files, and how far each is behind.

    A program that reads the files, such as an archive or a backup, registers a subscription to them, so that retention
    keeps what it has not read. With a running server, `fyrehose subscriptions` is faster, and changes the others, too.

    \b
        fyrehose journal subscriptions data
        fyrehose journal subscriptions data --delete archive
    """
    from fyrehose.cli.client.subscriptions import show
    from fyrehose.journal.subscriptions import delete as forget
    from fyrehose.offline.subscriptions import subscriptions as read

    if delete is not None:
        if not forget(directory, delete):
            raise NoSuchSubscription(
                f"no program that reads the files of {directory} has the subscription {delete!r}; delete one of a "
                "stream with `fyrehose subscriptions delete`"
            )
        click.echo(f"subscription {escaped(delete)} deleted")
        return
    with progress_bar(f"reading {directory}") as progress:
        found = read(directory, progress)
    show(found, form)


def _records(run: Any, form: str) -> bytes:
    from fyrehose.cli.client.formats import as_json

    if form == "json":
        return as_json(run)
    return b"".join(_record_line(record) for record in run.records())


def _record_line(record: Any) -> bytes:
    payload = escaped(record.payload[:SHOWN].decode(errors="backslashreplace"))
    more = f" ... ({len(record.payload)} bytes)" if len(record.payload) > SHOWN else ""
    labels = " ".join(escaped(label) for label in (record.source, record.producer, record.topic) if label)
    return f"{escaped(record.stream)} {record.seq} {moment(record.time)} [{labels}] {payload}{more}\n".encode()


def _run_line(run: Any, form: str) -> bytes:
    known = {
        "stream": run.stream,
        "first": run.first_seq,
        "last": run.last_seq,
        "time": run.time,
        "source": run.source,
        "producer": run.producer,
        "topic": run.topic,
        "content_type": run.content_type,
        "size": len(run.payload),
    }
    return _line(known, form)


def _batch_line(batch: Any, form: str) -> bytes:
    header = batch.header
    known = {
        "position": header.position,
        "kind": header.kind.name.lower(),
        "end": header.end,
        "parts": header.parts,
        "records": header.records,
        "durable": header.durable,
        "time": header.time,
        "mended": header.mended or None,
    }
    if form == "json" and (entries := batch.entries()):
        known["entries"] = [[entry.stream, entry.first, entry.last] for entry in entries]
    return _line(known, form)


def _line(known: dict[str, Any], form: str) -> bytes:
    known = {name: value for name, value in known.items() if value is not None}
    if form == "json":
        return json.dumps(known, ensure_ascii=False).encode() + b"\n"
    shown = {name: moment(value) if name == "time" else escaped(str(value)) for name, value in known.items()}
    return " ".join(f"{name}={value}" for name, value in shown.items()).encode() + b"\n"


def _as_json(found: Any) -> dict[str, Any]:
    streams = {name: {**attrs.asdict(of), "missing": of.missing} for name, of in sorted(found.streams.items())}
    whole = attrs.asdict(found, recurse=False)
    return {**whole, "records": found.records, "damaged": len(found.damaged), "streams": streams}


def _show(found: Any) -> None:
    console = terminal()
    times = ("from", "to") if console.width >= WIDE else ()
    numbers = ("records", "first", "last", "missing", "size")
    rows = []
    for name, of in sorted(found.streams.items()):
        cells = [*map(str, (of.records, of.first, of.last, of.missing)), shown_size(of.size)]
        rows.append((name, *cells, *(moment(time)[:19] for time in (of.began, of.ended) if times)))
    if rows:
        console.print(table(("stream", *numbers, *times), rows, right=numbers, whole=times))
        console.print()
    state = "closed cleanly" if found.closed else "in use, or not closed cleanly"
    console.print(
        f"{counted(found.segments, 'segment')}, {shown_size(found.size)}, "
        f"{counted(found.batches, 'batch', 'batches')}, {counted(found.records, 'record')}, "
        f"{counted(len(found.streams), 'stream')}; read up to position {found.end} ({state})",
        highlight=False,
        soft_wrap=True,
    )


for command in (backup, restore, follow, promote):
    journal.add_command(command)
