"""``fyrehose doctor``: look at a configuration, a journal, its server and the machine, and say what to do."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from fyrehose.cli.console import escaped, table, terminal, write_json
from fyrehose.cli.findings import Finding, Level
from fyrehose.cli.values import DURATION, FORMAT
from fyrehose.options import counted

_STYLES = {Level.OK: "green", Level.NOTE: "blue", Level.WARNING: "yellow", Level.ERROR: "bold red"}


def show(findings: Sequence[Finding], form: str) -> None:
    """Write findings as a table, the worst first, or as JSON, one object a line."""
    ordered = sorted(findings, key=lambda each: -each.level)
    if form == "json":
        write_json(*(each.as_json() for each in ordered))
        return
    console = terminal()
    console.print(table(("", "about", "finding", "what to do"), map(_row, ordered), whole=("", "about")))
    counts = [(level, sum(each.level is level for each in findings)) for level in (Level.ERROR, Level.WARNING)]
    words = " and ".join(counted(count, level.name.lower()) for level, count in counts if count)
    console.print(f"\n{words or 'nothing to do'}", highlight=False)


def _row(finding: Finding) -> tuple[str | Text, ...]:
    what = Text(escaped(finding.what))
    if finding.where:
        what.append(f"\n{escaped(finding.where)}", style="dim")
    return Text(finding.level.name.lower(), style=_STYLES[finding.level]), finding.subject, what, finding.advice


@click.command(short_help="Look for what is wrong, or soon will be.")
@click.option("--config", "file", type=click.Path(dir_okay=False, path_type=Path), help="Configuration file.")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Directory of the journal.")
@click.option("--backup", "backups", multiple=True, metavar="DIR", type=click.Path(path_type=Path))
@click.option("--backup-age", type=DURATION, default="1d", show_default=True, help="How old a backup may be.")
@click.option("--url", metavar="URL", help="Admin listener, if the configuration does not say.")
@click.option("--token-file", type=click.Path(path_type=Path), help="File with its token.")
@click.option("--ca", type=click.Path(path_type=Path), help="PEM file of its certificate authority.")
@FORMAT
@click.option("--json", "form", flag_value="json", help="The same as --format json: one finding a line.")
def doctor(form: str, **options: Any) -> None:
    """Look for what is wrong, or soon will be, with a server: running, or to be started.

    Exit status 1: there is a warning or an error.

    \b
        fyrehose doctor --data-dir /var/lib/fyrehose
        fyrehose doctor --config fyrehose.toml --backup /mnt/backup --json
    """
    from fyrehose.cli.doctor_patient import examine

    findings = list(examine(**options))
    show(findings, form)
    sys.exit(1 if max(each.level for each in findings) >= Level.WARNING else 0)
