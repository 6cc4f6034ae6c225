"""The command ``fyrehose``: publish, tail, and look into journals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fyrehose.imports import lazily

if TYPE_CHECKING:
    from fyrehose.cli.command import main
else:
    # fyrehose-spark imports the modules that it shares with this command, and must not import Twisted.
    __getattr__, __dir__ = lazily(__name__, {"command": "main"})

__all__ = ["main"]
