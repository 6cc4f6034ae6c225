"""``fyrehose forward``: send the records of streams to other programs, as a configuration says."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import click

from fyrehose.cli import running
from fyrehose.cli.console import table, terminal
from fyrehose.errors import ConfigError, FyrehoseError, RemoteProtocolError, os_reason
from fyrehose.forward.config import ForwardConfig, read_config
from fyrehose.imports import ADMIN
from fyrehose.observe.exporting import SUFFIX
from fyrehose.web.blocking_client import BlockingClient

#: The columns of the table of ``--status``, and how many of them are texts.
COLUMNS = ("subscription", "destination", "lag_records", "lag_seconds", "records", "dead", "retries", "lost", "problem")


@click.command(short_help="Send streams to Logstash, Elasticsearch, Kafka and others.")
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--once", is_flag=True, help="End when everything is delivered that is there.")
@click.option("--status", is_flag=True, help="Show how a running `forward` of this file is doing.")
@click.option("--check", is_flag=True, help="Read the file, and do nothing else.")
def forward(config: Path, once: bool, status: bool, check: bool) -> None:
    """Send the records of streams to other programs, as the TOML file CONFIG says.

    Each [[forward]] table is a named subscription, whose position moves when its destination has confirmed the records.
    SIGHUP reads the file again. See `fyrehose help forward`.

    \b
        fyrehose forward forward.toml
        fyrehose forward forward.toml --status
    """
    read = read_config(config)
    if status:
        show(read)
    elif not check:
        sys.exit(running.run(lambda reactor: _run(reactor, config, read, once)))


async def _run(reactor: Any, path: Path, config: ForwardConfig, once: bool) -> int:
    from fyrehose.forward.service import ForwardService

    if config.metrics:
        ADMIN.require("metrics of `fyrehose forward`")
    service = ForwardService(reactor, path, config)
    signal.signal(signal.SIGHUP, lambda number, frame: reactor.callFromThread(service.reload))
    return await service.run(once)


def show(config: ForwardConfig) -> None:
    """Write a table of the metrics of the process that forwards by *config*.

    :raises FyrehoseError: there are none
    """
    from fyrehose.forward.metrics import rows

    if not config.metrics:
        raise ConfigError('--status needs the metrics: add metrics = "127.0.0.1:9118" to the file')
    try:
        if config.metrics.endswith(SUFFIX):
            text = Path(config.metrics).read_text(encoding="utf-8")
        else:
            with BlockingClient(f"http://{config.metrics}", None, None, 10.0) as client:
                text = client.ask("GET", "/metrics", None).body.decode()
    except (OSError, RemoteProtocolError) as error:
        raise FyrehoseError(
            f"no metrics at {config.metrics}: {os_reason(error)}; is `fyrehose forward` running?"
        ) from error
    cells = [[row.get(column, "-") for column in COLUMNS] for row in rows(text)]
    terminal().print(
        table([each.replace("_", " ") for each in COLUMNS], cells, [each.replace("_", " ") for each in COLUMNS[2:-1]])
    )
