"""``twistd fyrehose``: the options as a whole, and the service that is made of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from twisted.application.service import IServiceMaker
from twisted.internet import reactor
from twisted.internet.defer import fail
from twisted.internet.testing import MemoryReactorClock
from twisted.plugin import IPlugin
from twisted.python.usage import UsageError

from fyrehose import __version__, kits, process, tap
from fyrehose.errors import ConfigError, FyrehoseError, JournalCorrupt, JournalFailed, JournalLocked, MissingExtra
from fyrehose.tap import Options, Server

ROOT = Path(__file__).parents[1]


def parsed(*words: str) -> Options:
    options = Options()
    options.parseOptions(list(words))
    return options


def test_no_options() -> None:
    assert parsed() == {
        "data-dir": "data",
        "config": None,
        "durability": None,
        "max-streams": None,
        "quarantine": 0,
        "listen": [],
        "option": {},
    }


def test_all_options() -> None:
    options = parsed(
        *("--data-dir", "/srv/data", "--durability", "interval:100", "--quarantine", "--max-streams", "7"),
        *("--listen", "backbone=udp:0:interface=127.0.0.1", "--listen", "backbone/b=udp:0:interface=127.0.0.1"),
        *("--option", "backbone.stream=a", "-o", "backbone/b.stream=b", "-o", "journal.keep-bytes=1G"),
    )
    assert options == {
        "data-dir": "/srv/data",
        "config": None,
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


def test_a_file_under_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "fyrehose.toml"
    path.write_text(
        'data-dir = "/srv/data"\n[listen]\nbackbone = "udp:1"\n'
        '[option.backbone]\nstream = "file"\npush-rate = 5\n[option.journal]\ndurability = "never"\n'
    )
    from_file = {
        "data-dir": "/srv/data",
        "config": str(path),
        "durability": None,
        "max-streams": None,
        "quarantine": 0,
        "listen": [("backbone", "udp:1")],
        "option": {"backbone": {"stream": "file", "push_rate": 5}, "journal": {"durability": "never"}},
    }
    assert parsed("--config", str(path)) == from_file
    words = ["-c", str(path), "-d", "here", "-l", "backbone=udp:2", "-o", "backbone.stream=line"]
    assert parsed(*words, "--durability", "batch") == {
        **from_file,
        "data-dir": "here",
        "durability": "batch",
        "listen": [("backbone", "udp:2")],
        "option": {"backbone": {"stream": "line", "push_rate": 5}, "journal": {"durability": "batch"}},
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "8119"], "--listen is '8119', and should be KIT=ENDPOINT"),
        (["--listen", "fig=tcp:1"], "no protocol is called 'fig'"),
        (["--option", "x"], "--option is 'x', and should be KIT.NAME=VALUE"),
        (["--option", "journal.x=1"], "journal has no option 'x'; it has: durability, "),
        (["--durability", "sometimes"], "option journal.durability is 'sometimes', and should be batch, never"),
        (["--max-streams", "-1"], "option server.max-streams is '-1', and should be a whole number"),
        (["--config", "/nowhere.toml"], "--config /nowhere.toml cannot be read"),
        (["--port", "1"], "option --port not recognized"),
        (["8119"], "'8119' is one word too many"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        parsed(*words)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_under_twistd_it_is_said_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    options = Options()
    options.parent = object()
    with pytest.raises(SystemExit, match="twistd fyrehose: --listen is '8119'"):
        options.parseOptions(["--listen", "8119"])


def test_help_names_every_kit_and_the_version_is_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert all(name in " ".join(str(Options()).split()) for name in kits.names())
    with pytest.raises(SystemExit):
        parsed("--version")
    assert capsys.readouterr().out == f"fyrehose {__version__}\n"


def test_the_plugin_is_one_expression_and_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "twisted" / "plugins" / "fyrehose_plugin.py"
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    maker = names["fyrehose"]
    assert IPlugin.providedBy(maker)
    assert IServiceMaker.providedBy(maker)
    assert (maker.tapname, maker.module) == ("fyrehose", "fyrehose.tap")
    assert maker.options is Options
    assert maker.makeService is tap.makeService
    assert not list(ROOT.joinpath("twisted").rglob("__init__.py")), "it would hide Twisted's own, or its plugins"


def test_making_the_service_makes_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reactor, "seconds", reactor.seconds)
    monkeypatch.setattr(process, "raise_descriptor_limit", lambda: 20_000)
    service = tap.makeService(parsed("--data-dir", str(tmp_path / "data")))
    assert list(tmp_path.iterdir()) == []
    assert reactor.seconds is time.monotonic
    names = [child.name.partition(" ")[0] for child in service.fyrehose]
    assert names == kits.names()


def test_an_endpoint_that_is_none_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reactor, "seconds", reactor.seconds)
    with pytest.raises(SystemExit, match=r"twistd fyrehose: .*backbone=tcp:8119"):
        tap.makeService(parsed("--listen", "backbone=tcp:8119"))


class StoppingReactor(MemoryReactorClock):
    """Says whether it was stopped."""

    stopped = 0

    def stop(self) -> None:
        self.stopped += 1

    def callWhenRunning(self, function: Any, *args: Any) -> None:
        function(*args)


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would end the process: statuses, and lines on standard error."""
    said: list[Any] = []
    monkeypatch.setattr(process, "exit_with", said.append)
    monkeypatch.setattr(process, "say", said.append)
    monkeypatch.setattr(process, "stop_on_signals", lambda reactor: None)
    monkeypatch.setattr(process, "raise_descriptor_limit", lambda: 20_000)
    return said


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("port 8119 is taken"), 1),
        (JournalCorrupt("segment 3"), 3),
        (JournalFailed("sync"), 4),
        (JournalLocked("in use"), 5),
        (RuntimeError("a bug"), 1),
    ],
)
def test_what_keeps_it_from_starting_ends_the_process(
    error: Exception,
    status: int,
    ending: list[Any],
    tmp_path: Path,
    logged_errors: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = StoppingReactor()
    server = Server(memory, parsed("--data-dir", str(tmp_path)).resolved)
    monkeypatch.setattr(server.fyrehose, "startService", lambda: fail(error))
    server.startService()
    assert ending == [f"twistd fyrehose: {error}", status]
    assert memory.stopped == 1
    critical = logged_errors.take()
    assert any(f"cannot start: {error}" == str(e["log_format"]).format(**e) for e in critical)


def test_the_first_reason_is_the_one_that_is_said(ending: list[Any], tmp_path: Path, logged_errors: Any) -> None:
    server = Server(StoppingReactor(), parsed("--data-dir", str(tmp_path)).resolved)
    server.fyrehose._on_failure(JournalFailed("first"))
    server.fyrehose._on_failure(FyrehoseError("second"))
    assert ending == ["twistd fyrehose: first", 4]


def test_a_kit_whose_extra_is_missing_is_left_out_unless_asked_for(
    ending: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_service(self: Any, reactor: Any, broker: Any, endpoint: Any, settings: Any) -> Any:
        raise MissingExtra("pip install 'fyrehose[eventbus]'")

    kit = kits.load("backbone")
    monkeypatch.setattr(type(kit), "make_service", make_service)
    server = Server(StoppingReactor(), parsed("--data-dir", str(tmp_path)).resolved)
    assert "backbone is not served: pip install 'fyrehose[eventbus]'" in server.notes
    with pytest.raises(MissingExtra):
        Server(StoppingReactor(), parsed("--listen", "backbone=udp:0").resolved)


def test_connections_are_no_more_than_there_are_descriptors_for(
    ending: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    monkeypatch.setattr(process, "raise_descriptor_limit", lambda: 936)
    endpoint = "tcp:0:interface=127.0.0.1"
    words = ["--listen", f"lines.kit={endpoint}", "--listen", f"lines.kit/few={endpoint}", "--listen", "backbone=udp:0"]
    words += ["--option", "lines.kit/few.max-connections=5", "--option", "backbone.allow=127.0.0.0/8"]
    config = parsed(*words, "--data-dir", str(tmp_path)).resolved
    server = Server(StoppingReactor(), config)
    limits = [child.factory.settings.max_connections for child in server.fyrehose if hasattr(child, "factory")]
    assert limits == [468, 5]
    assert server.notes == [
        (
            "lines.kit takes 468 connections at the most, not 10000: "
            "the system allows 1000 file descriptors (see ulimit -n)"
        )
    ]
