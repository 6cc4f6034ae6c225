"""``fyrehose serve``: its options, and what it passes to twistd; tests/live/test_service.py runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from twisted.scripts import twistd

from fyrehose import __version__
from fyrehose.cli import main
from fyrehose.cli.serve import ServeOptions, serve
from fyrehose.server import tap


def parsed(*words: str) -> ServeOptions:
    options = ServeOptions()
    options.parseOptions(list(words))
    return options


def test_the_server_stays_in_the_foreground_without_a_pid_file() -> None:
    for words in ([], ["-n"], ["--daemon", "--nodaemon"]):
        found = parsed(*words).parent
        assert (found["nodaemon"], found["pidfile"], found["logfile"]) == (True, "", None), words


def test_a_daemon_has_a_log_and_a_pid_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = parsed("--daemon").parent
    assert (found["nodaemon"], found["pidfile"], found["logfile"]) == (
        False,
        str(tmp_path / "fyrehose.pid"),
        "fyrehose.log",
    )
    found = parsed("--daemon", "--pidfile=", "--logfile", "my.log").parent
    assert (found["nodaemon"], found["pidfile"], found["logfile"]) == (False, "", "my.log")


def test_the_options_of_the_server_and_of_twistd_are_accepted_together(tmp_path: Path) -> None:
    options = parsed(
        *("-d", "here", "-o", "figg.max-connections=5", "--umask", "027", "--rundir", str(tmp_path), "--syslog"),
        *("--listen", "figg=tcp:0:interface=127.0.0.1"),
    )
    assert options.resolved.data_dir == Path("here").absolute()
    assert options.resolved.listeners[0].settings.max_connections == 5
    assert (options.parent["umask"], options.parent["rundir"], options.parent["syslog"]) == (0o27, str(tmp_path), 1)


def test_every_option_of_the_server_is_an_option_of_serve() -> None:
    known = set(ServeOptions().longOpt)
    assert set(tap.Options().longOpt) <= known
    # What is left out names files of other applications, or has no meaning for a server.
    left_out = {"file=", "python=", "source=", "no_save", "encrypted", "originalname", "spew", "debug"}
    assert set(twistd.ServerOptions().longOpt) - left_out <= known


def test_twistd_runs_the_server_without_looking_for_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(twistd, "runApp", ran.append)
    serve(["--data-dir", "here"])
    (config,) = ran
    assert config.subCommand == "fyrehose"
    assert config.loadedPlugins["fyrehose"].makeService is tap.makeService
    assert config.subOptions.resolved.data_dir == Path("here").absolute()
    assert config["no_save"], "twistd would write a file of the application's state"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "1"], "fyrehose serve: unknown option --port"),
        (["data"], "fyrehose serve: unexpected argument 'data'; every value follows an option, such as --data-dir DIR"),
        (
            ["figg=tcp:1"],
            "fyrehose serve: unexpected argument 'figg=tcp:1'; every value follows an option, such as --l",
        ),
        (["--umask", "999"], "fyrehose serve: invalid --umask '999': expected an octal number, such as 027"),
        (["--uid", "nobody-here"], "fyrehose serve: invalid --uid 'nobody-here': there is no such user"),
        (["--gid", "nobody-here"], "fyrehose serve: invalid --gid 'nobody-here': there is no such group"),
    ],
)
def test_invalid_options_are_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        parsed(*words)
    assert raised.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(said)
    assert error.count("\n") == 1


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_the_options_of_the_server(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        parsed(flag)
    assert not raised.value.code
    said = capsys.readouterr().out
    assert said.startswith("Usage: fyrehose serve [options]\n")
    assert "--data-dir=" in said
    assert "Example:\n  fyrehose serve --data-dir data \\\n    --listen figg=" in said


def test_option_version_prints_the_version_of_fyrehose() -> None:
    assert CliRunner().invoke(main, ["serve", "--version"]).output == f"fyrehose {__version__}\n"
