"""The answer to a reload, and the file by which the server passes it to `fyrehose reload`.

This module is separate from the reload itself, because the command must not import the server.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import attrs

from fyrehose.errors import ConfigError

#: The file in the journal's directory that holds the answer to the last reload, for `fyrehose reload`.
ANSWER = "reload.json"


@attrs.frozen(kw_only=True)
class ReloadAnswer:
    """The result of a reload, which `fyrehose reload` prints.

    :ivar error: why nothing was changed; empty if the changes were made
    :ivar changed: the changes that were made, one line for each option or listener
    :ivar restart: the changes in the files that need a restart
    """

    error: str = ""
    changed: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """Return the answer as lines for people."""
        if self.error:
            yield f"nothing was changed: {self.error}"
            return
        yield from self.changed
        yield from self.restart
        if not self.changed:
            yield "nothing has changed" if not self.restart else "nothing else has changed"


def write_answer(directory: Path, answer: ReloadAnswer) -> None:
    """Write *answer* into the directory of the journal, where `fyrehose reload` waits for it.

    :raises OSError: the file cannot be written
    """
    content = {"time": time.time_ns(), "pid": os.getpid(), **attrs.asdict(answer)}
    part = directory / f"{ANSWER}.part"
    part.write_text(json.dumps(content))
    part.replace(directory / ANSWER)


def read_answer(directory: Path) -> tuple[int, ReloadAnswer] | None:
    """Return the time of the last answer (nanoseconds since 1970 UTC) and the answer; None if there is none."""
    try:
        content = json.loads((directory / ANSWER).read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ConfigError(f"{directory / ANSWER} is damaged: {error}; delete it") from error
    changed, restart = tuple(content["changed"]), tuple(content["restart"])
    return int(content["time"]), ReloadAnswer(error=content["error"], changed=changed, restart=restart)
