"""``fyrehose completion``: lines for a shell, and what they then ask for."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from click.testing import CliRunner

from fyrehose.cli import main
from fyrehose.cli.completion import SHELLS


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


def test_another_shell_is_none() -> None:
    result = CliRunner().invoke(main, ["completion", "tcsh"], prog_name="fyrehose")
    assert result.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in result.stderr


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
