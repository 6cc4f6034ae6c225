"""``fyrehose completion``: lines for a shell, and what they then ask for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from click.shell_completion import CompletionItem
from click.testing import CliRunner

from fyrehose.cli import main
from fyrehose.cli.completion import SHELLS, LineComplete


@pytest.mark.parametrize("shell", SHELLS)
def test_script_completes_the_command_fyrehose(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell], prog_name="fyrehose")
    assert result.exit_code == 0
    assert "_FYREHOSE_COMPLETE" in result.output
    assert f"{shell}_complete" in result.output
    program = shutil.which(shell)
    if program is not None:  # one that is there has to understand it
        said = subprocess.run(
            [program, "-n"], input=result.stdout, capture_output=True, text=True, timeout=60, check=False
        )
        assert (said.returncode, said.stderr) == (0, "")


def test_program_completes_words_without_the_command_completion() -> None:
    """Start the program as the script of bash does: it must know how bash completes before any command is used."""
    code = "from fyrehose.cli import main; main(prog_name='fyrehose')"
    line = {"COMP_WORDS": "fyrehose strea", "COMP_BREAKS": "", "_FYREHOSE_COMPLETE": "bash_complete"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={**os.environ, **line}, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("plain,streams\n", "")


def test_unknown_shell_is_refused() -> None:
    result = CliRunner().invoke(main, ["completion", "tcsh"], prog_name="fyrehose")
    assert result.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in result.stderr


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("fyrehose subscriptions --form", "plain,--format\n"),
        ("fyrehose subscriptions cr", "plain,create\n"),
        ("fyrehose tail --format=te", "plain,text\n"),  # readline replaces what follows the equals sign
        ("fyrehose tail --format 'te", "plain,text\n"),
        ("fyrehose tail --format ", "plain,text\nplain,json\nplain,raw\n"),
        ("fyrehose journal verify ", "dir,\n"),
        ("fyrehose tail --tls ", "file,\n"),
    ],
)
def test_line_is_completed_for_bash(line: str, found: str) -> None:
    environment = {"_FYREHOSE_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_BREAKS": " =:"}
    result = CliRunner().invoke(main, [], prog_name="fyrehose", env=environment)
    assert result.output == found


@pytest.mark.parametrize(
    ("line", "value", "written"),
    [
        ("x a:b", "a:bc", "bc"),
        ("x --to=a:b", "a:bc", "bc"),
        ("x 'a:b", "a:bc", "a:bc"),
    ],
)
def test_values_are_cut_where_bash_cuts_the_line(
    line: str, value: str, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_BREAKS", " =:")
    complete = LineComplete(main, {}, "x", "_X_COMPLETE")
    complete.get_completion_args()
    assert complete.format_completion(CompletionItem(value)) == f"plain,{written}"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("fyrehose journal ex", "plain,export\n"),
        ("fyrehose completion b", "plain,bash\n"),
        ("fyrehose tail --fo", "plain,--format\n"),
    ],
)
def test_commands_arguments_and_options_are_completed(words: str, found: str) -> None:
    environment = {"_FYREHOSE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "2"}
    result = CliRunner().invoke(main, [], prog_name="fyrehose", env=environment)
    assert result.output == found
