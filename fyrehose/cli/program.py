"""End each command-line program of Fyrehose with an exit status, and after an error with one line about it.

0    the command succeeded
1    it failed, or did only a part
2    an option, an argument or a configuration file is invalid
3-7  the status of the error, see :mod:`fyrehose.errors`
128 plus a signal  the signal ended it; 141 (SIGPIPE): the reader of its output, such as ``head``, has closed it
"""

from __future__ import annotations

import io
import os
import select
import signal
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar

import click

from fyrehose.errors import FyrehoseError

#: The exit status after the reader of the output, such as ``head``, has closed the pipe: as after SIGPIPE.
UNREAD = 128 + signal.SIGPIPE


class Commands(MutableMapping[str, click.Command]):
    """The commands of a group, by name; the module of a command is imported when the command is first used.

    The import of all modules takes several times as long as that of one, and every command would wait for it.

    :param package: the package of the modules
    :param modules: the commands that each module defines, separated by spaces
    """

    def __init__(self, package: str, modules: Mapping[str, str]) -> None:
        self._modules = {name: f"{package}.{module}" for module, names in modules.items() for name in names.split()}
        self._commands: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._commands and name in self._modules:
            self._commands[name] = vars(import_module(self._modules[name]))[name]
        return self._commands[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        self._modules.pop(name, None)
        del self._commands[name]

    def __contains__(self, name: object) -> bool:
        return name in self._commands or name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter({**self._modules, **self._commands})

    def __len__(self) -> int:
        return len({**self._modules, **self._commands})


class Program(click.Group):
    """The outermost group of commands, which reports each error as one line and an exit status."""

    #: the name of the program in front of its errors
    program: ClassVar[str] = "fyrehose"

    def explained(self, error: Exception) -> FyrehoseError | None:
        """Return *error* as a FyrehoseError with a text for the user; None for a bug, whose traceback is shown."""
        return error if isinstance(error, FyrehoseError) else None

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the program."""
        _occupy_standard_descriptors()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # A stream's name may have characters that the terminal's encoding lacks.
                stream.reconfigure(errors="backslashreplace")
        return super().main(*args, **extra)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the options, and report errors as for the command itself; ``--help`` prints its text here."""
        with self._reported():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with self._reported():
            return super().invoke(ctx)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except Exception as error:
            status = self._status_after(error)
            if status is None:
                raise
            _forget_output()
            sys.exit(status)

    def _status_after(self, error: Exception) -> int | None:
        """Report *error*, and return the exit status; None if the error is a bug."""
        if isinstance(error, BrokenPipeError) and _unread():
            return UNREAD
        explained = self.explained(error)
        if explained is not None:
            click.echo(f"{self.program}: {explained}", err=True)
            return explained.exit_status
        if isinstance(error, OSError):
            place = f"{error.filename}: " if error.filename else ""
            click.echo(f"{self.program}: {place}{error.strerror or error}", err=True)
            return 1
        return None


def _unread() -> bool:
    """Return whether the broken pipe is standard output or standard error, not a socket."""
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _occupy_standard_descriptors() -> None:
    """Open /dev/null for each of the descriptors 0 to 2 that is closed, in the mode that makes its use fail.

    Otherwise a socket would get one of these numbers, and output would be written to it.
    """
    for descriptor, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)


def _forget_output() -> None:
    """Discard output that could not be written; otherwise the interpreter would try to write it again when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
