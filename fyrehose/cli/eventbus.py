"""``fyrehose eventbus import``: read the events of the reference event bus into a journal.

a dump of MongoDB -> numbered runs -> the journal of a server that does not run
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fyrehose import plugins
from fyrehose.cli.console import escaped, progress_bar
from fyrehose.errors import ConfigError, FyrehoseError
from fyrehose.interfaces import IDumpPlugin
from fyrehose.options import counted, name


@click.group()
def eventbus() -> None:
    """Move from the reference event bus to this server.

    \b
        fyrehose eventbus import --data-dir data events.bson
    """


@eventbus.command("import", short_help="Import the MongoDB dump of the reference event bus.")
@click.option("--data-dir", "directory", required=True, metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--stream", default="eventbus", show_default=True, metavar="NAME", help="Stream to import into.")
@click.option("--skip-invalid", is_flag=True, help="Report documents that are no events, and continue.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def import_(directory: Path, stream: str, skip_invalid: bool, file: Path) -> None:
    """Import FILE, a dump of the reference event bus, with its numbers and times.

    FILE is what mongodump (events.bson, also .gz) or mongoexport (one JSON
    document a line) has written. Stop the server of DIR first. Events that DIR
    has already are compared and not imported again; run the same command again
    to continue an interrupted import. Missing numbers become gaps.

    \b
        fyrehose eventbus import --data-dir data events.bson
        fyrehose serve --data-dir data --listen eventbus=tcp:5556
    """
    from fyrehose.offline.importing import Importer

    try:
        stream = name(stream)
    except ValueError as expected:
        raise ConfigError(f"invalid --stream {stream!r}: expected {expected}") from None
    invalid = 0

    def refuse(where: str, reason: str) -> None:
        """Report an invalid document of the dump: count it if --skip-invalid is set, otherwise end the import."""
        nonlocal invalid
        if not skip_invalid:
            raise FyrehoseError(
                f"{file}, {escaped(where)}: {escaped(reason)}; correct the file, or continue without such documents: "
                "--skip-invalid"
            )
        invalid += 1
        click.echo(f"skipped: {escaped(where)}: {escaped(reason)}", err=True)

    plugin: Any = IDumpPlugin(plugins.load("eventbus"))
    with progress_bar(f"importing {file}") as progress, Importer(directory, stream) as importer:
        dump = plugin.dump(file, stream, refuse, progress)
        for run in dump.runs():
            importer.add(run)
    there = f", {importer.present:,} were there already" if importer.present else ""
    gone = f", {importer.gone:,} have numbers that the journal noted as missing, or deleted" if importer.gone else ""
    repeated = f", {dump.repeated:,} were repeated" if dump.repeated else ""
    skipped = f", {counted(invalid, 'document')} skipped" if invalid else ""
    missing = f", {counted(importer.missing, 'number')} missing" if importer.missing else ""
    notes = f"{there}{gone}{repeated}{skipped}{missing}"
    click.echo(f"{counted(importer.added, 'event')} imported into stream {escaped(stream)}{notes}")
