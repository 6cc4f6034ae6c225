"""The command ``fyrehose``: publish, tail, and look into journals."""

from fyrehose.cli.command import main

__all__ = ["main"]
