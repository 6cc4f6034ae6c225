"""``fyrehose serve``: run the server in this process, with twistd's machinery and the options of ``twistd fyrehose``.

    arguments -> ServeOptions -> twistd's own options + the server's -> twistd's runner, without its search for plugins

The server stays in the foreground and writes no pid file, unless the options say otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from twisted.application.app import ReactorSelectionMixin
from twisted.application.service import ServiceMaker
from twisted.python.usage import UsageError
from twisted.python.util import gidFromString, uidFromString
from twisted.scripts import twistd

from fyrehose.server import tap

#: The log and the pid file of a server that ``--daemon`` puts into the background.
LOG, PID = "fyrehose.log", "fyrehose.pid"


def _umask(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError:
        raise UsageError(f"invalid --umask {text!r}: expected an octal number, such as 027") from None


def _uid(text: str) -> int:
    try:
        return uidFromString(text)  # type: ignore[no-any-return]
    except KeyError:
        raise UsageError(f"invalid --uid {text!r}: there is no such user") from None


def _gid(text: str) -> int:
    try:
        return gidFromString(text)  # type: ignore[no-any-return]
    except KeyError:
        raise UsageError(f"invalid --gid {text!r}: there is no such group") from None


class ServeOptions(ReactorSelectionMixin, tap.Options):
    """The options of ``fyrehose serve``: those of ``twistd fyrehose``, and the options of twistd that a server needs.

    :ivar parent: the options that twistd's runner reads
    """

    command = "fyrehose serve"
    example = "fyrehose serve --data-dir data"

    optFlags: ClassVar[list[list[Any]]] = [
        ["daemon", None, f"Run in the background; log to {LOG} and write {PID}, unless other options name them."],
        ["nodaemon", "n", "Stay in the foreground, which is the default."],
        ["syslog", None, "Log to syslog."],
        ["euid", None, "Change only the effective user id."],
        ["savestats", None, "Write the profile as statistics, not as text."],
    ]
    optParameters: ClassVar[list[list[Any]]] = [
        ["logfile", None, None, "Log to this file, and rotate it; - is standard output."],
        ["logger", None, None, "Log to this observer factory, a fully qualified name."],
        ["prefix", None, "fyrehose", "Prefix of lines in syslog."],
        ["pidfile", None, None, "Write the process id to this file."],
        ["rundir", None, ".", "Change to this directory first."],
        ["chroot", None, None, "Change the root directory to this one."],
        ["uid", "u", None, "User to run as.", _uid],
        ["gid", "g", None, "Group to run as; without it, that of --uid.", _gid],
        ["umask", None, None, "Mask of the permissions of new files, octal.", _umask],
        ["profile", None, None, "Write a profile of the run to this file."],
        ["profiler", None, "cprofile", "Profiler to use: profile or cprofile."],
    ]

    def __init__(self) -> None:
        tap.Options.__init__(self)
        self.parent: Any = twistd.ServerOptions()  # type: ignore[attr-defined,no-untyped-call]

    def opt_help(self) -> None:
        """Print this help and exit."""
        tap.Options.opt_help(self)  # type: ignore[no-untyped-call]

    opt_h = opt_help

    def getSynopsis(self) -> str:
        return f"Usage: {self.command} [options]"

    def postOptions(self) -> None:
        """Set the options of twistd, for a server in the foreground by default, and check those of the server."""
        for name in self.keys() & self.parent.keys():
            self.parent[name] = self[name]
        daemon = bool(self["daemon"]) and not self["nodaemon"]
        self.parent["nodaemon"] = not daemon
        self.parent["pidfile"] = self["pidfile"] if self["pidfile"] is not None else PID if daemon else ""
        if daemon and self["logfile"] is None:
            self.parent["logfile"] = LOG
        self._check_files(daemon)
        self.parent.subCommand, self.parent.subOptions = "fyrehose", self
        self.parent.loadedPlugins = {
            "fyrehose": ServiceMaker("fyrehose", "fyrehose.server.tap", "A durable message server.", "fyrehose")
        }
        self.parent.postOptions()
        tap.Options.postOptions(self)

    def _check_files(self, daemon: bool) -> None:
        """Check the files that twistd uses, whose own errors take several lines, or none on standard error.

        :raises UsageError: a directory is missing, or another server runs in the background
        """
        rundir = Path(self["rundir"])
        for name in ("rundir", "chroot"):
            if self[name] and not Path(self[name]).is_dir():
                raise UsageError(f"invalid --{name} {self[name]!r}: there is no such directory")
        for name, folder in (("logfile", Path()), ("pidfile", rundir), ("profile", rundir)):
            file = self.parent[name]
            if not file or file == "-":
                continue
            if not (parent := (folder / file).parent).is_dir():
                raise UsageError(f"cannot write --{name} {file}: there is no directory {parent}")
            if (folder / file).is_dir():
                raise UsageError(f"cannot write --{name} {file}: it is a directory; name a file in it")
        file = rundir / self.parent["pidfile"]
        if not daemon or not file.is_file():
            return
        found = file.read_text(errors="replace").strip()
        if not found.isdecimal():
            raise UsageError(f"cannot use --pidfile {file}: it has {found[:20]!r}, no process id; remove the file")
        if Path("/proc", found).exists():
            advice = f"stop it with `kill {found}`, use another --pidfile, or remove the file if it is another program"
            raise UsageError(f"a server runs in the background already: {file} has the process id {found}; {advice}")


def serve(arguments: Sequence[str]) -> None:
    """Run the server until a signal stops it; invalid arguments end the process with status 2 and one line."""
    options = ServeOptions()
    options.parseOptions(list(arguments))
    twistd.runApp(options.parent)
