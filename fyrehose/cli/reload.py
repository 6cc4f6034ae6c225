"""``fyrehose reload``: make a running server read its files again, and show what has changed."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

import click

from fyrehose.cli.client.values import DURATION
from fyrehose.errors import FyrehoseError
from fyrehose.server.reload_answer import ReloadAnswer, read_answer

#: How often the command looks for the server's answer, in seconds.
LOOK = 0.05


def server_of(directory: Path) -> int:
    """Return the id of the process that has the journal in *directory* open.

    :raises FyrehoseError: no process has it open
    """
    try:
        with (directory / "LOCK").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = lock.readline().strip()
                if holder.isdecimal():
                    return int(holder)
    except FileNotFoundError:
        raise FyrehoseError(f"there is no journal in {directory}; pass --data-dir DIR, as to the server") from None
    raise FyrehoseError(f"no server has the journal {directory} open; start it with: fyrehose serve")


def reloaded(directory: Path, timeout: float) -> ReloadAnswer:
    """Make the server of the journal in *directory* reload, and return its answer.

    :param timeout: how long to wait for the answer, in seconds
    :raises FyrehoseError: the server does not answer
    """
    pid, before = server_of(directory), read_answer(directory)
    os.kill(pid, signal.SIGHUP)
    for _ in range(max(1, int(timeout / LOOK))):
        time.sleep(LOOK)
        answer = read_answer(directory)
        if answer is not None and (before is None or answer[0] != before[0]):
            return answer[1]
    raise FyrehoseError(f"the server (pid {pid}) has not answered within {timeout:g} s; see its log")


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default="data",
    show_default=True,
    help="Its journal.",
)
@click.option("--timeout", type=DURATION, default="30s", show_default=True, help="How long to wait for its answer.")
def reload(data_dir: Path, timeout: float) -> None:
    """Have the server of a journal read its files again.

    Prints what has changed, and which options need a restart. If a file cannot be used or a listener cannot open,
    nothing has changed, and the exit status is 1.

    \b
        fyrehose reload --data-dir /var/lib/fyrehose
    """
    answer = reloaded(data_dir, timeout)
    if answer.error:
        raise FyrehoseError("\n".join(answer.lines()))
    for line in answer.lines():
        click.echo(line)
