"""Test the help of every command: it fits a small terminal, and has an example that can be typed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fyrehose.cli import main
from fyrehose.cli.spark import main as spark

#: The size of a terminal that nobody has enlarged.
LINES, COLUMNS = 24, 80

PROGRAMS = {"fyrehose": main, "fyrehose-spark": spark}


def walk(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield words
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from walk(child, (*words, name))


#: The command whose help Twisted lays out, with the options of twistd.
SERVE = ("fyrehose", "serve")
COMMANDS = [words for name, program in PROGRAMS.items() for words in walk(program, (name,))]


def help_of(words: tuple[str, ...]) -> str:
    result = CliRunner().invoke(PROGRAMS[words[0]], [*words[1:], "--help"], prog_name=words[0])
    assert result.exit_code == 0
    return result.output


def test_commands_and_commands_below_commands_are_found() -> None:
    known = {words[1:] for words in COMMANDS if words[0] == "fyrehose"}
    assert {
        ("publish",),
        ("tail",),
        ("protocols",),
        ("completion",),
        ("journal", "export"),
        ("journal", "verify"),
    } <= known


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_help_of_each_command_fits_a_screen(words: tuple[str, ...]) -> None:
    lines = help_of(words).splitlines()
    assert len(lines) <= LINES or words == SERVE
    assert max(map(len, lines)) <= COLUMNS


def understood(line: str) -> bool:
    """Return whether the first command in ``line`` is a Fyrehose command with valid arguments."""
    words = shlex.split(line)
    words = words[: next((i for i, word in enumerate(words) if word[0] in "|>&"), None)]
    if words[0] not in PROGRAMS:
        return False
    command: click.Command = PROGRAMS[words[0]]
    args, above = words[1:], None
    while isinstance(command, click.Group):
        context = command.make_context(command.name, list(args), above, resilient_parsing=False)
        _, found, args = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        command, above = found, context
    command.make_context(command.name, list(args), above)
    return True


@pytest.mark.parametrize("words", [words for words in COMMANDS if words != SERVE], ids=" ".join)
def test_the_examples_in_each_help_are_valid_commands(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    begin = " " * 6
    shown = [line.strip() for line in help_of(words).splitlines() if line.startswith(begin) and words[0] in line]
    examples = [line for line in shown if line.startswith((words[0], "journalctl"))]
    assert examples
    ours = [example.split(" | ")[-1] if example.startswith("journalctl") else example for example in examples]
    assert all(understood(example) for example in ours)
