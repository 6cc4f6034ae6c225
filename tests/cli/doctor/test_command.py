"""``fyrehose doctor`` as people call it: its table, its objects, its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fyrehose.cli import main
from fyrehose.cli.client.values import DEFAULT_URL
from fyrehose.cli.doctor import journal as doctor_journal
from fyrehose.cli.doctor.command import examine, remote, show
from fyrehose.cli.doctor.config import configured
from fyrehose.cli.doctor.findings import Finding, Level

FINDINGS = [
    Finding(Level.OK, "kernels", "native"),
    Finding(Level.ERROR, "disk", "full\x1b[2J", "/data", "delete [bold]something[/bold]"),
    Finding(Level.NOTE, "backup", "none"),
]


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, words)], prog_name="fyrehose")


def test_worst_finding_is_first(capsys: pytest.CaptureFixture[str]) -> None:
    show(FINDINGS, "text")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line[:1].strip() and "about" not in line] == [
        "error",
        "note",
        "ok",
        "1",
    ]
    assert lines[-1] == "1 error"


def test_control_characters_in_findings_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    show(FINDINGS, "text")
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "[bold]something[/bold]" in said


def test_healthy_server_has_no_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    show(FINDINGS[:1], "text")
    assert capsys.readouterr().out.splitlines()[-1] == "nothing to do"


@pytest.mark.parametrize("option", [["--json"], ["--format", "json"]])
def test_json_output_has_one_object_a_line(tmp_path: Path, option: list[str]) -> None:
    result = run("--data-dir", tmp_path / "data", *option)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert {"versions", "clock", "memory", "descriptors", "disk", "journal"} <= {each["subject"] for each in found}
    levels = [each["level"] for each in found]
    assert levels == sorted(levels, key=["error", "warning", "note", "ok"].index)
    assert result.exit_code == (1 if {"error", "warning"} & set(levels) else 0)


def test_file_that_cannot_be_used_is_a_finding(tmp_path: Path) -> None:
    file = tmp_path / "fyrehose.toml"
    file.write_text("[option.figg]\nmax-conections = 5\n")
    result = run("--config", file, "--json")
    assert result.exit_code == 1
    (found,) = [each for line in result.stdout.splitlines() if (each := json.loads(line))["level"] == "error"]
    assert found["subject"] == "configuration"
    assert "max-conections" in found["what"]
    assert found["where"] == str(file)
    assert '"disk"' in result.stdout  # the rest is looked at, too


def config(folder: Path, text: str) -> Path:
    file = folder / "fyrehose.toml"
    file.write_text(text)
    return file


def test_journal_of_the_configuration_is_examined(tmp_path: Path) -> None:
    file = config(tmp_path, 'data-dir = "journal"\n')
    found = list(examine(file=file))
    assert {each.where for each in found if each.subject in ("journal", "server")} == {str(tmp_path / "journal")}


def test_options_of_the_file_are_used(tmp_path: Path) -> None:
    file = config(tmp_path, '[option.server]\nmemory = "512GiB"\n')
    assert [each.level for each in examine(file=file) if each.subject == "memory"] == [Level.WARNING]


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ('admin = "tcp:9000:interface=127.0.0.1"', "http://127.0.0.1:9000"),
        ('admin = "tcp:9000:interface=\\\\:\\\\:1"', "http://[::1]:9000"),
        ('figg = "tcp:9000:interface=127.0.0.1"', DEFAULT_URL),
    ],
)
def test_admin_listener_of_the_configuration_is_asked(listen: str, url: str, tmp_path: Path) -> None:
    source = configured(config(tmp_path, f"[listen]\n{listen}\n"), None)
    assert remote(source).url == url


def test_admin_listener_can_be_named(tmp_path: Path) -> None:
    source = configured(config(tmp_path, '[listen]\nadmin = "tcp:9000:interface=127.0.0.1"\n'), None)
    assert remote(source, "http://h:1").url == "http://h:1"


def test_server_is_asked_for_its_status_only_if_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_journal, "server", lambda remote: pytest.fail("no server runs"))
    assert [each.what for each in examine(data_dir=tmp_path) if each.subject == "server"] == [
        "none has this journal open"
    ]
