"""``fyrehose doctor`` as people call it: its table, its objects, its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fyrehose.cli import main
from fyrehose.cli.doctor import show
from fyrehose.cli.findings import Finding, Level

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
