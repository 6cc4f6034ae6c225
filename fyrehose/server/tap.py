"""``fyrehose serve`` and ``twistd fyrehose``: their options, and the service that they run.

Besides the command line, only this module imports the reactor.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TextIO, cast

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import ILogObserver, Logger, LogLevel
from twisted.python import usage
from twisted.python.components import Componentized
from twisted.python.failure import Failure

from fyrehose import __version__, kernels, plugins
from fyrehose.errors import ConfigError, FyrehoseError, JournalFull
from fyrehose.journal.copies import refuse_other_files
from fyrehose.journal.journal import FileJournal
from fyrehose.observe.counters import Counters
from fyrehose.observe.meters import Stalls
from fyrehose.options import counted, suggestion
from fyrehose.server import logs, process
from fyrehose.server.config import (
    Config,
    FromFile,
    applies,
    merged,
    parse_listen,
    parse_option,
    read_file,
    resolve,
)
from fyrehose.server.logs import LevelObserver
from fyrehose.server.notify import ServiceManager, waits_for_stop
from fyrehose.server.process import OwnProcess
from fyrehose.server.reload_answer import ReloadAnswer, write_answer
from fyrehose.server.reloading import Reloading
from fyrehose.server.service import Fyrehose
from fyrehose.server.stack import Stack
from fyrehose.server.watchdog import Watchdog

log = Logger()

#: How long a server under systemd or in Kubernetes drains by default, in seconds.
DRAIN = 10.0
#: How long a server waits before it tries again to open its journal, if the disk was full, in seconds.
RETRY = 1.0
#: getopt's error about an option that does not exist.
_UNKNOWN = re.compile(r"option --(\S+) not recognized")
#: The guarantee of each durability mode, for the log.
_GUARANTEES = {
    "batch": "acknowledged messages are on disk",
    "interval": "acknowledged messages are in the kernel, and on disk after that time; a power cut may lose them",
    "never": "acknowledged messages are in the kernel, and on disk at some later time; a power cut may lose them",
}


class Options(usage.Options):
    """The options that ``twistd fyrehose`` and ``fyrehose serve`` have in common.

    After parsing, ``data-dir``, ``listen`` (pairs), ``option`` (by scope) and ``config`` hold the options as given, and
    ``resolved`` holds the resulting configuration.
    """

    optParameters: ClassVar[list[list[Any]]] = [
        ["data-dir", "d", None, "Directory of the journal.  [default: data]"],
        [
            "config",
            "c",
            None,
            "Configuration file (TOML); options on the command line override it.",
        ],
        ["policy", "p", None, "Access policy (TOML); without one, only clients on this machine have access."],
        ["log-format", None, None, "Format of the log: text, or json with one object per line.  [default: text]"],
        ["log-level", None, None, "Least level that is logged: debug, info, warn, error or critical.  [default: info]"],
        ["durability", None, None, "When the journal is synced: batch, interval:MS or never.  [default: batch]"],
        ["max-streams", None, None, "Most streams that the server holds.  [default: 100000]"],
    ]
    optFlags: ClassVar[list[list[Any]]] = [
        ["quarantine", None, "Move damaged parts of the journal aside and start; subscribers are notified of the gap."],
    ]

    resolved: Config
    #: The command that the user has typed, for error messages and help.
    command = "twistd fyrehose"
    example = "twistd -n fyrehose --data-dir data"

    def __init__(self) -> None:
        usage.Options.__init__(self)
        self["listen"] = []
        self["option"] = {}

    @property
    def longdesc(self) -> str:
        listeners = "; ".join(f"{name} at {plugins.load(name).default_endpoint}" for name in plugins.names())
        return textwrap.dedent(f"""\
            A durable message server with seven protocols and one journal.  Without --listen it opens a listener of each
            protocol on loopback: {listeners}.  `fyrehose protocols` lists the options of each.""")

    def getUsage(self, width: int | None = None) -> str:
        """Return the help, which ends with an example; Twisted would break its lines at hyphens."""
        words = "--listen figg=tcp:8119:interface=127.0.0.1 --option figg.max-connections=500"
        return f"{super().getUsage(width)}\nExample:\n  {self.example} \\\n    {words}\n"

    def opt_listen(self, text: str) -> None:
        """Open a listener: PROTOCOL=ENDPOINT, such as figg=tcp:8119:interface=127.0.0.1; may be repeated."""
        self["listen"].append(_usage(parse_listen, text))

    def opt_option(self, text: str) -> None:
        """Set an option of a protocol, the journal or the server: SCOPE.NAME=VALUE, such as journal.keep-bytes=100G."""
        scope, name, value = _usage(parse_option, text)
        self["option"].setdefault(scope, {})[name] = value

    opt_l = opt_listen
    opt_o = opt_option

    def parseArgs(self, *args: str) -> None:
        if args:
            option = "--listen PROTOCOL=ENDPOINT" if "=" in args[0] else "--data-dir DIR"
            raise usage.UsageError(f"unexpected argument {args[0]!r}; every value follows an option, such as {option}")

    def opt_version(self) -> NoReturn:
        """Print the version and exit."""
        print(f"fyrehose {__version__}")
        sys.exit(0)

    def postOptions(self) -> None:
        """Check the options, and the configuration file."""
        flags: dict[str, dict[str, Any]] = {}
        if self["durability"] is not None:
            flags["journal"] = {"durability": self["durability"]}
        if self["quarantine"]:
            flags.setdefault("journal", {})["quarantine"] = "yes"
        if self["max-streams"] is not None:
            flags["server"] = {"max_streams": self["max-streams"]}
        self["option"] = merged(self["option"], flags)
        for name in ("config", "policy", "data-dir"):
            if self[name]:
                self[name] = str(Path(self[name]).absolute())  # a daemon may change its directory
        self.resolved = _usage(self.resolve)
        if self.parent is not None and self.parent.get("syslog"):
            for name, default in (("log-format", "text"), ("log-level", "info")):
                value = {"log-format": self.resolved.log_format, "log-level": self.resolved.log_level}[name]
                if value != default:
                    advice = "log to a file or standard output"
                    raise usage.UsageError(f"--{name} {value} cannot be used with --syslog; {advice}")

    def resolve(self) -> Config:
        """Read the configuration file, and merge it with the command line, whose options take precedence.

        :raises ConfigError: a part of the configuration is invalid
        """
        file = FromFile() if self["config"] is None else read_file(Path(self["config"]))
        listen = self["listen"] or file.listen
        for scope in self["option"]:
            if listen and not applies(scope, listen):
                raise ConfigError(f"options of {scope!r} without a listener; add --listen {scope}=ENDPOINT")
        config = resolve(
            file.data_dir or "data" if self["data-dir"] is None else self["data-dir"],
            listen,
            merged(file.options, self["option"]),
            self["policy"] or file.policy,
            self["log-format"] or file.log_format or "text",
            file.streams,
            file.replication,
            self["log-level"] or file.log_level or "info",
        )
        scopes = {*file.options, *(name for name, _ in (() if self["listen"] else file.listen))}
        listeners = [
            attrs.evolve(each, file=self["config"]) if scopes & {each.name, each.plugin.name} else each
            for each in config.listeners
        ]
        return attrs.evolve(config, listeners=tuple(listeners))

    @property
    def log_observer(self) -> Callable[[], LevelObserver] | None:
        """Return a factory of the observer that writes the log; None if options of twistd choose another observer."""
        twistd = self.parent
        if twistd is None or twistd.get("logger") or twistd.get("syslog"):
            return None
        return partial(_log_observer, self.command, self.resolved, twistd)

    def parseOptions(self, options: Any = None) -> None:
        """Parse the options of the command line; suggest the nearest name for an unknown one.

        :raises usage.UsageError: an option is invalid, and this is not a command of twistd
        """
        try:
            usage.Options.parseOptions(self, options)
        except usage.UsageError as error:
            text = str(error)
            if unknown := _UNKNOWN.fullmatch(text):
                long = [f"--{name.rstrip('=')}" for name in self.longOpt]
                text = f"unknown option --{unknown[1]}{suggestion(unknown[1], long)}"
            if self.parent is None:
                raise usage.UsageError(text) from error
            # twistd would print its whole help and the error, and would not use standard error.
            _exit(self.command, ConfigError(text))


def _exit(command: str, error: FyrehoseError) -> NoReturn:
    """Report *error* as one line, and end the process with its status."""
    print(f"{command}: {error}", file=sys.stderr)
    sys.exit(error.exit_status)


def _usage(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except ConfigError as error:
        raise usage.UsageError(str(error)) from error


def _log_observer(command: str, config: Config, twistd: Any) -> LevelObserver:
    """Return an observer that writes to twistd's log file in the format of *config*; SIGUSR1 rotates the file."""
    from twisted.internet import reactor

    name = twistd.get("logfile")
    if name == "-" or (twistd.get("nodaemon") and not name):
        if not twistd.get("nodaemon"):
            _exit(command, ConfigError("a daemon cannot log to standard output; use --logfile FILE, or -n"))
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # the default handler would end the process
        return logs.LevelObserver(config.log_format, sys.stdout, config.log_level)
    file = logs.RotatedFile(Path(name or "twistd.log"))
    signal.signal(signal.SIGUSR1, lambda number, frame: reactor.callFromThread(file.rotate))  # type: ignore[attr-defined]
    return logs.LevelObserver(config.log_format, cast("TextIO", file), config.log_level)


def makeService(options: Options) -> ServerProcess:
    """Return the server that *options* describe; it creates no file and opens no port before it starts."""
    from twisted.internet import reactor

    # Timers must not depend on the wall clock, which may be set.  This line has to come before the first timer.
    reactor.seconds = time.monotonic  # type: ignore[method-assign]
    try:
        refuse_other_files(options.resolved.data_dir)
        return ServerProcess(reactor, options.resolved, options.log_observer, options.command, options.resolve)
    except FyrehoseError as error:
        _exit(options.command, error)


class ServerProcess(Service):
    """The top-level service of the process, which ends with a distinct exit status when the server cannot continue.

    A server of a cluster sometimes has to open its journal again, for example when another server has taken over.  Then
    it closes its stack, and opens another one with the same configuration, in the same process.

    :param command: the command that was started, for errors
    :param reread: returns the configuration as its files are now; None: the configuration cannot be reloaded
    :param own: the functions by which it changes and ends the process
    :param make_journal: makes the journal, see :attr:`.Stack.make_journal`
    """

    def __init__(
        self,
        reactor: Any,
        config: Config,
        log_observer: Callable[[], LevelObserver] | None = None,
        command: str = Options.command,
        reread: Callable[[], Config] | None = None,
        own: OwnProcess | None = None,
        make_journal: Callable[..., FileJournal] = FileJournal,
    ) -> None:
        self._own, self._make_journal = own or OwnProcess(), make_journal
        self.command = command
        self.log_observer = log_observer
        self._observer: LevelObserver | None = None
        self.reactor = reactor
        self._reread = (lambda: config) if reread is None else reread
        self._counters, self._stalls = Counters(), Stalls()
        self.manager = ServiceManager.from_environment(reactor, os.environ)
        self.watchdog = Watchdog(
            reactor, self._stalls, self.manager, write_age=lambda: self.stack.journal.meters.write_age
        )
        self._pauses = process.CollectionPauses(lambda: self._counters.add("server", "long-turn-garbage"))
        self._ended = False
        self._serving = False
        self._reopening = False
        self._reopened = False  #: whether this stack is not the first one
        self._retry: IDelayedCall | None = None
        # Fires when the reload or the new stack in progress is complete, so that they run one after the other.
        self._changes: Deferred[Any] = succeed(None)
        self._build(config)

    def _build(self, config: Config) -> None:
        """Make a stack with the configuration *config*; it creates no file and opens no port before it starts."""
        self.stack = Stack(
            self.reactor,
            config,
            self._counters,
            self._stalls,
            self._end_process,
            self._reopen,
            self._own.descriptors,
            self._make_journal,
        )
        self.reloading = Reloading(config, self._reread, self.stack, self._log_from)

    @property
    def fyrehose(self) -> Fyrehose:
        """Return the journal, broker and listeners that are in use now."""
        return self.stack.fyrehose

    @property
    def config(self) -> Config:
        """Return the configuration in force."""
        return self.reloading.config

    def setServiceParent(self, parent: Any) -> None:
        Service.setServiceParent(self, parent)
        if self.log_observer is not None and isinstance(parent, Componentized):
            self._observer = self.log_observer()
            parent.setComponent(
                ILogObserver, self._observer
            )  # twistd looks for the observer there when it starts to log

    def startService(self) -> None:
        Service.startService(self)
        self.reactor.callWhenRunning(self._run)

    def stopService(self) -> Deferred[None]:
        Service.stopService(self)
        self._serving = False
        if self._retry is not None and self._retry.active():
            self._retry.cancel()
        self.watchdog.stop()
        self._pauses.stop()
        self.manager.stopping()
        return self._changes.addCallback(lambda _: self.fyrehose.stopService())

    def reload(self) -> Deferred[ReloadAnswer]:
        """Read the configuration files again; apply all differences, or none if one of them cannot be applied."""
        if self._serving:  # a server that is still starting reports when it is ready
            self.manager.reloading()
        self._changes = self._changes.addCallback(lambda _: Deferred.fromCoroutine(self.reloading.reload()))
        answered: Deferred[ReloadAnswer] = Deferred()
        self._changes.addErrback(self._reload_failed).addCallback(self._reloaded).addCallback(answered.callback)
        return answered

    def _reload_failed(self, failure: Failure) -> ReloadAnswer:
        log.failure("reloading failed by an unexpected error; please report this bug", failure)
        return ReloadAnswer(error=f"unexpected error: {failure.value}; the log has its traceback")

    def _reloaded(self, answer: ReloadAnswer) -> ReloadAnswer:
        self._counters.add("server", "reloads")
        if answer.error:
            self._counters.add("server", "reload-failures")
            log.error("reload: nothing was changed: {error}", error=answer.error)
        else:
            for line in answer.lines():
                log.info("reload: {line}", line=line)
            log.info("reloaded")
        try:
            if self.config.data_dir.is_dir():
                write_answer(self.config.data_dir, answer)
        except OSError as error:
            log.error("the answer of a reload cannot be written: {error}", error=str(error))
        if self._serving:
            self.manager.ready("serving")
        return answer

    def _log_from(self, level: str) -> None:
        """Change the log's level to *level*; do nothing if options of twistd have chosen another observer."""
        if self._observer is not None:
            self._observer.level = LogLevel.levelWithName(level)

    def _run(self) -> None:
        self._own.prepare(self.reactor)
        self._own.stop_on_signals(self.reactor, self._drain)
        self._own.reload_on_hangup(self.reactor, self.reload)
        for warning in self.stack.listeners.warnings:
            log.warn("{warning}", warning=warning)
        for remark in self.stack.listeners.remarks:
            log.info("{remark}", remark=remark)
        log.info(
            "fyrehose {version}, {kernels} kernels, journal in {directory}",
            version=__version__,
            kernels="native" if kernels.NATIVE else "pure-Python",
            directory=self.config.data_dir,
        )
        durability = self.config.journal.durability
        if self.config.policy_file is not None:
            rules = counted(len(self.config.policy.rules), "rule")
            log.info("policy {file}: {rules}", file=self.config.policy_file, rules=rules)
        log.info("durability {mode}: {guarantee}", mode=durability, guarantee=_GUARANTEES[durability.mode])
        self._open()

    def _open(self) -> None:
        fyrehose = self.fyrehose
        fyrehose.startService().addCallbacks(lambda _: self._started(fyrehose), self._failed)

    def _reopen(self, reason: str) -> None:
        """Close the journal and all listeners, and open them again in this process, as a restart would."""
        if self._reopening or self._ended or not self.running:
            return
        self._reopening, self._serving = True, False
        self._counters.add("server", "reopenings")
        log.warn("{reason}; the journal and all listeners are closed, and opened again", reason=reason)
        self._changes.addCallback(lambda _: Deferred.fromCoroutine(self._replace())).addErrback(self._failed)

    async def _replace(self) -> None:
        old, unfit = self.fyrehose, self.stack.journal.gate.unfit
        await old.stopService()
        if self._ended or not self.running:
            return
        self._own.free_closed_objects()
        self._build(self.config)
        self.fyrehose.broker.draining = old.broker.draining
        self.stack.journal.gate.unfit = unfit
        self._reopening, self._reopened = False, True
        self._open()

    def _drain(self) -> float:
        """Begin to answer 503 at ``/ready``, so that load balancers send new clients to other servers.

        :return: for how many seconds the server still serves all clients
        """
        seconds = self.config.server.drain
        if seconds is None:
            seconds = DRAIN if waits_for_stop(os.environ) and not self._own.has_terminal() else 0.0
        if not self._serving or not seconds:
            return 0.0
        self._serving = False
        self.fyrehose.broker.draining = True
        self.stack.journal.gate.unfit = "it is stopping"  # so another server of the cluster leads from now on
        self.manager.stopping("draining")
        log.info(
            "draining: /ready says 503, and the server stops in {seconds:g} s (server.drain); a second signal stops it",
            seconds=seconds,
        )
        return seconds

    def _started(self, fyrehose: Fyrehose) -> None:
        if fyrehose.running:
            self.watchdog.start()
            log.info("serving")
            if not fyrehose.broker.draining:
                self._serving = True
                self.manager.ready("serving")
            self._own.free_closed_objects()
            self._pauses.start()

    def _failed(self, failure: Failure) -> None:
        error = failure.value
        if self._reopened and isinstance(error, JournalFull):
            self._retry = self.reactor.callLater(RETRY, self._reopen, str(error))
            return
        if not isinstance(error, FyrehoseError):
            log.failure("the server ends by an unexpected error; please report this bug", failure)
        log.critical("cannot start: {error}", error=error)
        self._end_process(error)

    def _end_process(self, error: BaseException | None) -> None:
        if not self._ended:  # later errors are consequences of the first
            self._ended = True
            self._own.say(f"{self.command}: {error}")
            self._own.exit_with(error.exit_status if isinstance(error, FyrehoseError) else 1)
        process.stop_reactor(self.reactor, "the server cannot continue")
