"""``twistd fyrehose``: its options as a whole, and the service that it runs."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.application.service import Application, IServiceMaker, MultiService
from twisted.internet import reactor
from twisted.internet.defer import Deferred, fail
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import ILogObserver, LogEvent, LogLevel, globalLogPublisher
from twisted.plugin import IPlugin
from twisted.python.usage import UsageError

from fyrehose import __version__, plugins
from fyrehose.broker import policy
from fyrehose.broker.policy import LOOPBACK
from fyrehose.errors import (
    Closed,
    ConfigError,
    FyrehoseError,
    JournalCorrupt,
    JournalFailed,
    JournalLocked,
    MissingExtra,
)
from fyrehose.interfaces import JournalState
from fyrehose.net.turns import LONG_S
from fyrehose.server import logs, tap
from fyrehose.server.tap import Options, ServerProcess
from tests.doubles.own_process import Ending, ServedJournal, StoppingReactor

ROOT = Path(__file__).parents[2]


def parsed(*words: str) -> Options:
    options = Options()
    options.parseOptions(list(words))
    return options


def test_without_options_the_defaults_apply() -> None:
    assert parsed() == {
        "data-dir": None,
        "config": None,
        "policy": None,
        "log-format": None,
        "log-level": None,
        "durability": None,
        "max-streams": None,
        "quarantine": 0,
        "listen": [],
        "option": {},
    }


def test_all_options_are_parsed() -> None:
    options = parsed(
        *("--data-dir", "/srv/data", "--durability", "interval:100", "--quarantine", "--max-streams", "7"),
        *("--listen", "backbone=udp:0:interface=127.0.0.1", "--listen", "backbone/b=udp:0:interface=127.0.0.1"),
        *("--option", "backbone.stream=a", "-o", "backbone/b.stream=b", "-o", "journal.keep-bytes=1G"),
    )
    assert options == {
        "data-dir": "/srv/data",
        "config": None,
        "policy": None,
        "log-format": None,
        "log-level": None,
        "durability": "interval:100",
        "max-streams": "7",
        "quarantine": 1,
        "listen": [("backbone", "udp:0:interface=127.0.0.1"), ("backbone/b", "udp:0:interface=127.0.0.1")],
        "option": {
            "backbone": {"stream": "a"},
            "backbone/b": {"stream": "b"},
            "journal": {"keep_bytes": "1G", "durability": "interval:100", "quarantine": "yes"},
            "server": {"max_streams": "7"},
        },
    }
    assert options.resolved.journal.keep_bytes == 1 << 30
    assert options.resolved.journal.quarantine
    assert options.resolved.server.max_streams == 7


def test_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    path = tmp_path / "fyrehose.toml"
    path.write_text(
        'data-dir = "/srv/data"\n[listen]\nbackbone = "udp:1"\n'
        '[option.backbone]\nstream = "file"\npush-rate = 5\n[option.journal]\ndurability = "never"\n'
    )
    config = parsed("--config", str(path)).resolved
    assert (config.data_dir, config.journal.durability.mode) == (Path("/srv/data"), "never")
    (listener,) = config.listeners
    assert (listener.endpoint, listener.settings.stream, listener.settings.push_rate) == ("udp:1", "file", 5)
    words = ["-c", str(path), "-d", "here", "-l", "backbone=udp:2", "-o", "backbone.stream=line"]
    config = parsed(*words, "-o", "journal.durability=never", "--durability", "batch").resolved
    assert (config.data_dir, config.journal.durability.mode) == (Path("here").absolute(), "batch")
    (listener,) = config.listeners
    assert (listener.endpoint, listener.settings.stream, listener.settings.push_rate) == ("udp:2", "line", 5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "8119"], "invalid --listen '8119': expected PROTOCOL=ENDPOINT"),
        (["--listen", "figg=tcp:1", "--listen", "figg=tcp:1"], "duplicate --listen figg=tcp:1"),
        (["--listen", "figg=tcp:1", "-o", "figg/x.max-payload=1"], "add --listen figg/x=ENDPOINT"),
        (["--listen", "fig=tcp:1"], "unknown protocol 'fig'"),
        (["--option", "x"], "invalid --option 'x': expected PROTOCOL.NAME=VALUE"),
        (["--option", "journal.x=1"], "unknown option 'x' of journal; available options: durability, "),
        (
            ["--durability", "sometimes"],
            "invalid value 'sometimes' for option journal.durability: expected batch, never",
        ),
        (["--max-streams", "-1"], "invalid value '-1' for option server.max-streams: expected a whole number"),
        (["--config", "/nowhere.toml"], "cannot read --config /nowhere.toml"),
        (["--policy", "/nowhere.toml"], "cannot read --policy /nowhere.toml"),
        (["--log-format", "xml"], "invalid --log-format 'xml': expected text or json"),
        (["--log-level", "wran"], "invalid --log-level 'wran': expected debug, info, warn, error or critical"),
        (["--port", "1"], "unknown option --port"),
        (["8119"], "unexpected argument '8119'"),
    ],
)
def test_invalid_options_are_reported_in_one_line(words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        parsed(*words)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_under_twistd_errors_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    options = Options()
    options.parent = object()
    with pytest.raises(SystemExit, match="2"):
        options.parseOptions(["--listen", "8119"])
    assert capsys.readouterr().err.startswith("twistd fyrehose: invalid --listen '8119'")


def test_help_names_every_protocol_and_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert all(name in " ".join(str(Options()).split()) for name in plugins.names())
    with pytest.raises(SystemExit):
        parsed("--version")
    assert capsys.readouterr().out == f"fyrehose {__version__}\n"


def test_the_plugin_of_twistd_is_one_expression_and_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "twisted" / "plugins" / "fyrehose_plugin.py"
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    maker = names["fyrehose"]
    assert IPlugin.providedBy(maker)
    assert IServiceMaker.providedBy(maker)
    assert (maker.tapname, maker.module) == ("fyrehose", "fyrehose.server.tap")
    assert maker.options is Options
    assert maker.makeService is tap.makeService
    assert not list(ROOT.joinpath("twisted").rglob("__init__.py")), "it would hide Twisted's own, or its plugins"


@pytest.fixture
def unchanged_reactor() -> Iterator[None]:
    """Give the reactor its own clock again after a service was made."""
    seconds = reactor.seconds
    yield
    reactor.seconds = seconds  # type: ignore[method-assign]


@pytest.mark.usefixtures("unchanged_reactor")
def test_making_the_service_creates_no_files_or_ports(tmp_path: Path) -> None:
    service = tap.makeService(parsed("--data-dir", str(tmp_path / "data")))
    assert list(tmp_path.iterdir()) == []
    assert reactor.seconds is time.monotonic
    names = [child.name.partition(" ")[0] for child in service.fyrehose]
    assert names == plugins.names()


@pytest.mark.usefixtures("unchanged_reactor")
def test_an_invalid_endpoint_ends_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        tap.makeService(parsed("--listen", "backbone=tcp:8119"))
    assert re.match(r"twistd fyrehose: .*backbone=tcp:8119", capsys.readouterr().err)


class NeverOpens(ServedJournal):
    """A journal that is still being recovered."""

    def open(self, observer: Any) -> Any:
        return Deferred()


class Refuses(ServedJournal):
    """A journal that cannot be opened."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def open(self, observer: Any) -> Any:
        return fail(self.error)


def server_of(ending: Ending, *words: str, journal: Callable[[], Any] = ServedJournal) -> ServerProcess:
    """Return a server with these options, whose journal is in memory."""
    config = parsed(*words).resolved
    return ServerProcess(StoppingReactor(), config, own=ending.own, make_journal=lambda *_, **__: journal())


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (FyrehoseError("port 8119 is taken"), 1),
        (JournalCorrupt("segment 3"), 3),
        (JournalFailed("sync"), 4),
        (JournalLocked("in use"), 5),
        (RuntimeError("a bug"), 1),
    ],
)
def test_a_failed_start_ends_the_process_with_its_status(
    error: Exception,
    status: int,
    ending: Ending,
    tmp_path: Path,
    logged_errors: Any,
) -> None:
    server = server_of(ending, "--data-dir", str(tmp_path), journal=lambda: Refuses(error))
    server.startService()
    assert ending == [f"twistd fyrehose: {error}", status]
    assert server.reactor.stopped == 1
    critical = logged_errors.take()
    assert any(f"cannot start: {error}" == str(e["log_format"]).format(**e) for e in critical)


def test_only_the_first_error_is_reported(ending: Ending, tmp_path: Path, logged_errors: Any) -> None:
    server = server_of(ending, "--data-dir", str(tmp_path))
    server.stack.on_failure(JournalFailed("first"))
    server.stack.on_failure(FyrehoseError("second"))
    assert ending == ["twistd fyrehose: first", 4]


def test_a_protocol_without_its_extra_is_left_out_unless_configured(
    ending: Ending, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    server = ServerProcess(StoppingReactor(), parsed("--data-dir", str(tmp_path)).resolved)
    assert (
        "starting without admin: admin needs prometheus-client: pip install 'fyrehose[admin]'"
        in server.stack.listeners.warnings
    )
    with pytest.raises(MissingExtra):
        ServerProcess(StoppingReactor(), parsed("--listen", "admin=tcp:0:interface=127.0.0.1").resolved)


def test_max_connections_is_reduced_to_the_available_descriptors(
    ending: Ending, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines_path: list[Path]
) -> None:
    for folder in lines_path:
        monkeypatch.syspath_prepend(str(folder))
    endpoint = "tcp:0:interface=127.0.0.1"
    words = ["--listen", f"lines={endpoint}", "--listen", f"lines/few={endpoint}"]
    words += ["--listen", "backbone=udp:0:interface=127.0.0.1"]
    words += ["--option", "lines/few.max-connections=5"]
    config = parsed(*words, "--data-dir", str(tmp_path)).resolved
    few = attrs.evolve(ending.own, descriptors=lambda: 936)
    server = ServerProcess(StoppingReactor(), config, own=few)
    limits = [child.factory.settings.max_connections for child in server.fyrehose if hasattr(child, "factory")]
    assert limits == [838, 5], "what one does not want is for the others"
    assert server.stack.listeners.remarks == [
        (
            "file-descriptor limit 1000: max-connections of lines reduced to 838; "
            "for the configured maximum, use `ulimit -n 10445`, or LimitNOFILE= in a unit"
        )
    ]
    assert not server.stack.listeners.warnings, "the maximum was not configured"


def test_listeners_are_described_for_operators(ending: Ending, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    local = "tcp:0:interface=127.0.0.1"
    words = ["--listen", f"figg/a={local}", "--listen", "backbone=udp:0:interface=127.0.0.1"]
    words += ["--listen", f"admin={local}", "--listen", f"admin/b={local}", "--data-dir", str(tmp_path)]
    words += ["--option", f"admin/b.token-file={token}"]
    server = ServerProcess(StoppingReactor(), parsed(*words).resolved, own=ending.own)
    figg, backbone, admin, other = server.fyrehose.broker.listeners
    assert (figg.name, figg.protocol, figg.endpoint, figg.encryption) == ("figg/a", "figg", local, "")
    assert [each.access() for each in (figg, backbone, admin, other)] == ["this machine"] * 3 + [
        "clients with the token"
    ]
    assert [listener.connections() for listener in (figg, backbone, admin)] == [0, 0, 0]
    server = ServerProcess(StoppingReactor(), parsed(*words, "--policy", written(tmp_path)).resolved, own=ending.own)
    assert server.fyrehose.broker.listeners[0].access() == "by policy (1 rule)"
    server.fyrehose.broker.guard.change(policy.parse({"allow": [{"network": "10.0.0.0/8", "publish": "*"}] * 2}))
    assert server.fyrehose.broker.listeners[0].access() == "by policy (2 rules)"


def test_listeners_of_protocols_that_need_the_leader_stay_closed_on_a_follower(
    ending: Ending, tmp_path: Path, log_lines: list[str]
) -> None:
    journal = ServedJournal()
    journal.follow("10.0.0.1:8117")
    words = ["--data-dir", str(tmp_path)]
    for name, port in (("figg", 8119), ("http", 8117), ("lumberjack", 5044), ("relink", 7733)):
        words += ["--listen", f"{name}=tcp:{port}:interface=127.0.0.1"]
    reactor = MemoryReactorClock()
    config = parsed(*words).resolved
    server = ServerProcess(reactor, config, own=ending.own, make_journal=lambda *_, **__: journal)
    server.fyrehose.startService()
    assert sorted(port for port, *_ in reactor.tcpServers) == [8117, 8119]
    assert log_lines[-1].endswith("stays closed until this server leads")
    journal.enter(JournalState.WRITABLE, "this server leads")
    assert sorted(port for port, *_ in reactor.tcpServers) == [5044, 7733, 8117, 8119]
    assert server.fyrehose.stopService().called


def test_reducing_a_configured_maximum_logs_one_warning(ending: Ending, tmp_path: Path) -> None:
    few = attrs.evolve(ending.own, descriptors=lambda: 936)
    words = ["--option", "figg.max-connections=20000", "--data-dir", str(tmp_path)]
    words += ["--listen", "figg=tcp:0:interface=127.0.0.1", "--listen", "relink=tcp:0:interface=127.0.0.1"]
    server = ServerProcess(StoppingReactor(), parsed(*words).resolved, own=few)
    (warning,) = server.stack.listeners.warnings
    assert warning.startswith("file-descriptor limit 1000: max-connections of figg, relink reduced to 421 each")
    assert "`ulimit -n 31065`" in warning
    assert not server.stack.listeners.remarks


@pytest.mark.parametrize(
    "listen",
    ["figg=tcp:8119", "figg=tcp:8119:interface=10.0.0.1", "backbone=udp:2323", r"figg=tcp:8119:interface=\:\:"],
)
def test_a_public_address_requires_an_access_policy(listen: str, ending: Ending, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"refusing to listen on a public address .* --policy FILE"):
        ServerProcess(StoppingReactor(), parsed("--listen", listen).resolved, own=ending.own)
    ServerProcess(StoppingReactor(), parsed("--listen", listen, "--policy", written(tmp_path)).resolved, own=ending.own)


@pytest.mark.parametrize(
    "listen",
    ["figg=tcp:8119:interface=localhost", r"figg=tcp:8119:interface=\:\:1", "figg=unix:/run/figg"],
)
def test_a_local_address_needs_no_access_policy(listen: str, ending: Ending) -> None:
    server = ServerProcess(StoppingReactor(), parsed("--listen", listen).resolved, own=ending.own)
    assert server.fyrehose.broker.guard.policy is LOOPBACK


def written(tmp_path: Path, publish: str = "*") -> str:
    """Write a policy file, and return its name."""
    path = tmp_path / "policy.toml"
    path.write_text(f'[[allow]]\nnetwork = "10.0.0.0/8"\npublish = "{publish}"\nsubscribe = "*"\n')
    return str(path)


class TestLog:
    """The log of a server that twistd runs."""

    def under(self, *words: str, **twistd: Any) -> Any:
        options = Options()
        options.parent = twistd
        options.parseOptions(list(words))
        return options.log_observer

    @pytest.fixture
    def usual(self) -> Iterator[None]:
        """Restore the handler of SIGUSR1 and the umask after the test; the test begins with the usual umask."""
        kept, mask = signal.getsignal(signal.SIGUSR1), os.umask(0o022)
        yield
        os.umask(mask)
        signal.signal(signal.SIGUSR1, kept)

    def test_the_log_can_be_written_to_standard_output(self, usual: None, capsys: pytest.CaptureFixture[str]) -> None:
        make = self.under("--log-format", "json", nodaemon=True, logfile=None)
        make()({"log_format": "hello", "log_level": LogLevel.info, "log_time": 0.0})
        assert json.loads(capsys.readouterr().out)["message"] == "hello"
        os.kill(os.getpid(), signal.SIGUSR1)  # which would end who takes no notice of it by default

    def test_sigusr1_rotates_the_log_file(self, tmp_path: Path, usual: None) -> None:
        kept = signal.getsignal(signal.SIGUSR1)
        observer = self.under(logfile=str(tmp_path / "log"))()
        self.say(observer, "hello")
        assert "[x#info] hello" in tmp_path.joinpath("log").read_text()
        assert signal.getsignal(signal.SIGUSR1) is not kept
        observer.out.close()

    def logging_to(self, path: Path) -> Any:
        """Return an observer that logs to *path*, and set the umask of a daemon, which makes new files private."""
        observer = self.under(logfile=str(path))()
        os.umask(0o077)
        return observer

    @staticmethod
    def say(observer: Any, what: str) -> None:
        observer({"log_format": what, "log_level": LogLevel.info, "log_time": 0.0, "log_namespace": "x"})

    def test_moved_log_file_is_left_alone_and_a_new_one_is_begun(self, tmp_path: Path, usual: None) -> None:
        path, moved = tmp_path / "log", tmp_path / "log-yesterday"
        observer = self.logging_to(path)
        self.say(observer, "before")
        path.rename(moved)
        self.say(observer, "before the signal")
        observer.out.rotate()
        self.say(observer, "behind it")
        observer.out.close()
        assert [line[-6:] for line in path.read_text().splitlines()] == ["ind it"]
        assert "before the signal" in moved.read_text()
        assert sorted(tmp_path.iterdir()) == [path, moved]
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(moved.stat().st_mode) == 0o644

    def test_log_goes_to_the_file_that_took_the_place_of_a_moved_one(self, tmp_path: Path, usual: None) -> None:
        """The program that moved the file decides on the permissions of the new one."""
        path, moved = tmp_path / "log", tmp_path / "log.1"
        observer = self.logging_to(path)
        self.say(observer, "before")
        path.rename(moved)
        path.touch()
        path.chmod(0o640)
        observer.out.rotate()
        self.say(observer, "behind it")
        observer.out.rotate()
        self.say(observer, "rotated by the server")
        observer.out.close()
        assert "rotated by the server" in path.read_text()
        assert "behind it" in moved.read_text()
        assert "before" in tmp_path.joinpath("log.2").read_text()
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(moved.stat().st_mode) == 0o640

    def test_rotated_log_file_has_the_permissions_of_the_first(self, tmp_path: Path, usual: None) -> None:
        observer = self.logging_to(tmp_path / "log")
        self.say(observer, "before")
        observer.out.rotate()
        self.say(observer, "behind it")
        observer.out.close()
        assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o644}
        assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1"]

    def test_log_goes_on_in_the_moved_file_if_a_new_one_cannot_be_opened(
        self, tmp_path: Path, usual: None, logged_errors: Any
    ) -> None:
        path, moved = tmp_path / "logs" / "log", tmp_path / "moved"
        path.parent.mkdir()
        observer = self.logging_to(path)
        path.parent.rename(moved)
        observer.out.rotate()
        (said,) = logged_errors.take()
        assert said["why"] == "No such file or directory"
        self.say(observer, "still here")
        observer.out.close()
        assert "still here" in moved.joinpath("log").read_text()

    def test_log_to_a_device_is_not_rotated(self, tmp_path: Path, usual: None) -> None:
        """Renaming a device would make it unavailable to all other programs."""
        path = tmp_path / "log"
        path.symlink_to("/dev/null")
        observer = self.logging_to(path)
        observer.out.rotate()
        self.say(observer, "nowhere")
        observer.out.close()
        assert [found.name for found in tmp_path.iterdir()] == ["log"]

    def test_the_number_of_rotated_log_files_is_bounded(self, tmp_path: Path) -> None:
        file = logs.RotatedFile(tmp_path / "log", size=100)
        for n in range(100):
            file.write(f"line {n} of the log\n")
        file.close()
        assert len(list(tmp_path.iterdir())) == 1 + logs.LOG_FILES
        assert "line 99 of the log" in (tmp_path / "log").read_text()

    def test_a_daemon_cannot_log_to_standard_output(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="2"):
            self.under(logfile="-")()
        assert "a daemon cannot log to standard output" in capsys.readouterr().err

    def test_a_daemon_logs_to_a_file_in_its_directory_by_default(
        self, tmp_path: Path, usual: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        observer = self.under(logfile=None)()
        self.say(observer, "hello")
        observer.out.close()
        assert "hello" in (tmp_path / "twistd.log").read_text()

    def test_log_options_of_twistd_take_precedence(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.under(logger="mine") is None
        assert self.under(syslog=True) is None
        with pytest.raises(SystemExit, match="2"):
            self.under("--log-format", "json", syslog=True)
        assert "cannot be used with --syslog" in capsys.readouterr().err
        assert parsed().log_observer is None, "nobody asked for a log"

    def test_twistd_gets_the_observer_from_its_application(
        self, ending: Ending, capsys: pytest.CaptureFixture[str]
    ) -> None:
        application = Application("fyrehose")
        made = self.under("--log-format", "json", nodaemon=True, logfile=None)
        config = parsed("--listen", "figg=unix:/run/figg").resolved
        ServerProcess(StoppingReactor(), config, made, own=ending.own).setServiceParent(application)
        ILogObserver(application)({"log_format": "hello", "log_time": 0.0})
        assert json.loads(capsys.readouterr().out)["message"] == "hello"
        for observer in (made, None):
            ServerProcess(StoppingReactor(), config, observer, own=ending.own).setServiceParent(MultiService())


def test_the_service_manager_is_notified_of_the_start_and_the_stop(
    ending: Ending, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        words = ("--data-dir", str(tmp_path / "data"), "--listen", f"figg=unix:{tmp_path / 'figg'}")
        server = server_of(ending, *words)
        server.reload()
        server.startService()
        assert manager.recv(1000) == b"READY=1\nSTATUS=serving"
        server.reload()
        assert manager.recv(1000).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        assert manager.recv(1000) == b"READY=1\nSTATUS=serving"
        server.stopService()
        assert manager.recv(1000) == b"STOPPING=1\nSTATUS=stopping"


def test_a_busy_reactor_lets_the_writer_thread_run_within_half_a_millisecond() -> None:
    code = (
        "import sys\nfrom twisted.internet import reactor\nfrom fyrehose.server import process\n"
        "process.prepare(reactor)\nprint(sys.getswitchinterval() <= 0.0005)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert said.stdout == "True\n"


def test_a_server_prepares_its_process_before_it_opens_the_journal(
    ending: Ending, tmp_path: Path, logged_errors: Any
) -> None:
    config = parsed("--data-dir", str(tmp_path)).resolved
    own = attrs.evolve(ending.own, prepare=lambda reactor: ending.append(("prepared", reactor)))
    server = ServerProcess(StoppingReactor(), config, own=own, make_journal=lambda *_, **__: Refuses(Closed("no")))
    server.startService()
    assert ending == [("prepared", server.reactor), "twistd fyrehose: no", Closed.exit_status]
    assert logged_errors.take()


def test_the_watchdog_runs_while_the_server_serves(ending: Ending, tmp_path: Path) -> None:
    server = server_of(ending, "--listen", "figg=unix:/run/figg", "--data-dir", str(tmp_path))
    threads = set(threading.enumerate())
    assert not server.reactor.getDelayedCalls()
    watching: list[set[threading.Thread]] = []

    def observe(event: LogEvent) -> None:
        if event["log_format"] == "serving":
            watching.append(set(threading.enumerate()) - threads)

    globalLogPublisher.addObserver(observe)
    try:
        server.startService()
    finally:
        globalLogPublisher.removeObserver(observe)
    assert [[thread.name for thread in each] for each in watching] == [["watchdog"]], "before it says that it serves"
    look = gc.callbacks[-1]
    look("start", {})
    time.sleep(LONG_S)
    look("stop", {})
    assert server.fyrehose.broker.counters.counts["server", "long-turn-garbage"]
    server.stopService()
    assert set(threading.enumerate()) == threads
    assert look not in gc.callbacks


class TestDraining:
    """Draining: after SIGTERM the server is not ready, and still serves everything for a while."""

    def serving(self, ending: Ending, *words: str, opens: bool = True) -> ServerProcess:
        journal = ServedJournal if opens else NeverOpens
        server = server_of(ending, "--listen", "figg=unix:/run/figg", *words, journal=journal)
        server.startService()
        server.watchdog.stop()  # nothing advances the clock of this reactor
        return server

    def test_a_server_in_a_terminal_or_a_script_does_not_drain(self, ending: Ending) -> None:
        server = self.serving(ending)
        assert ending.drain() == 0
        assert not server.fyrehose.broker.draining

    def test_a_server_under_systemd_drains_for_ten_seconds(
        self, ending: Ending, monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
    ) -> None:
        monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")
        server = self.serving(ending)
        assert ending.drain() == 10
        assert server.fyrehose.broker.draining
        assert server.stack.journal.gate.unfit == "it is stopping", "a leader of a cluster hands over first"
        assert any(line.startswith("draining: /ready says 503, and the server stops in 10 s") for line in log_lines)
        self.serving(ending, "--option", "server.drain=0")
        assert ending.drain() == 0
        ending.terminal = True
        self.serving(ending)
        assert ending.drain() == 0, "in a terminal"

    def test_a_given_drain_time_applies_everywhere_but_only_while_the_server_serves(self, ending: Ending) -> None:
        self.serving(ending, "--option", "server.drain=3s")
        assert ending.drain() == 3
        assert ending.drain() == 0, "it drains already"
        self.serving(ending, "--option", "server.drain=3s", opens=False)
        assert ending.drain() == 0, "no client uses it yet"
