"""Check that every command on a page or in a help text is valid: its options exist and accept their values."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.cli import main
from fyrehose.cli.serve import ServeOptions
from fyrehose.cli.spark import main as spark
from fyrehose.errors import ConfigError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "deploy").rglob("*.md"))]
#: The text of all pages, each space, line feed and indentation as one space.
SENTENCES = " ".join(" ".join(page.read_text().split()) for page in PAGES)
PROGRAMS = {"fyrehose": main, "fyrehose-spark": spark}
#: Characters that end a command in a line of a shell.
ENDS = re.compile(r"[|&;<>()]+")
#: A name on the page about new protocols that no server knows.
ELSEWHERE = "lines"


def commands_in(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each Fyrehose command in lines of a shell."""
    for line in text.replace("\\\n", " ").splitlines():
        if "fyrehose" not in line:
            continue  # shlex is slow, so skip lines without a command
        lexer = shlex.shlex(line.strip(), posix=True, punctuation_chars=True)
        lexer.wordchars += "$*?[]{},%@!:^`'"
        try:
            words = [*lexer, ";"]
        except ValueError:  # prose with an apostrophe, or a value in several lines
            continue
        command: list[str] = []
        for word in words:
            if not ENDS.fullmatch(word):
                command.append(word)
                continue
            if ">" in word and command and command[-1] == "2":
                command.pop()
            before = max((place for place, word in enumerate(command) if word in PROGRAMS), default=len(command))
            # An image and a source of Spark are named fyrehose, too, and log lines begin with the name and the version.
            if (
                not {"docker", "USING"} & {*command}
                and len(command) > before + 1
                and not command[before + 1][0].isdigit()
            ):
                yield command[before:]
            command = []


def shown_on(page: str) -> Iterator[list[str]]:
    """Yield the Fyrehose commands in the code of *page*: in blocks, in indented lines, and within sentences."""
    blocks = re.findall(r"^```(?:sh|console|)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"(?:^ {4}[^\n]*\n)+", re.sub(r"^```.*?^```", "", page, flags=re.M | re.S), re.MULTILINE)
    inline = [" ".join(code.split()) for code in re.findall(r"`(fyrehose(?:-spark)?\s[^`]+)`", page)]
    for code in [*blocks, *indented, *inline]:
        for command in commands_in(code):
            if "..." not in command:
                yield command


def helps(command: click.Command) -> Iterator[str]:
    """Yield the help of *command* and of all commands below it."""
    yield command.help or ""
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        yield from helps(below)


EVERY = sorted(
    {shlex.join(command) for text in [page.read_text() for page in PAGES] for command in shown_on(text)}
    | {shlex.join(words) for program in PROGRAMS.values() for text in helps(program) for words in commands_in(text)}
)


def understand(arguments: list[str]) -> None:
    """Parse the arguments of a command, without running it.

    :raises click.UsageError: an option or a value is wrong
    """
    name, *rest = arguments
    command: click.Command | None = PROGRAMS[name]
    context = None
    while isinstance(command, click.Group):
        context = command.make_context(name, rest, parent=context)
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        found, command, rest = command.resolve_command(context, rest)
        name = str(found)
    assert command is not None
    if command.name == "serve" and context is not None and context.parent is None:
        ServeOptions().parseOptions(rest)
    else:
        command.make_context(name, rest, parent=context)


def test_commands_on_a_page_are_found() -> None:
    assert list(commands_in("$ seq 9 | fyrehose tail --since 5 --format json | head  # x")) == [
        ["fyrehose", "tail", "--since", "5", "--format", "json"]
    ]
    assert len(EVERY) > 120


@pytest.mark.parametrize("command", EVERY)
def test_every_command_on_the_pages_is_understood(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [word for word in shlex.split(command) if word != "$"]
    try:
        understand(arguments)
    except (click.exceptions.Exit, click.exceptions.NoArgsIsHelpError):
        pass  # --help, --version, and a group of commands
    except (click.MissingParameter, click.BadOptionUsage):
        assert f"`{command}`" in SENTENCES, "only a sentence leaves values out"
    except click.BadParameter as error:
        if "does not exist" not in error.message:  # a directory, which differs for each reader
            raise
    except SystemExit as ended:
        said = capsys.readouterr()
        error = f"{said.err}{ended}"
        assert said.out or "cannot read --" in error or f"'{ELSEWHERE}'" in error, error


@pytest.mark.parametrize("word", ["LATEST", "START"])
def test_the_alternatives_of_the_option_since_are_those_of_its_help(word: str) -> None:
    for words in (["tail", "--stream", "s", "--since", word], ["subscriptions", "rewind", "billing", "--since", word]):
        understand(["fyrehose", *words])
        context = click.Context(main)
        command = main.get_command(context, words[0])
        if isinstance(command, click.Group):
            command = command.get_command(context, words[1])
        assert command is not None
        assert "--since LATEST|START|SEQ" in command.get_help(click.Context(command))


def mistyped(words: list[str], place: int, letter: int, how: str, other: str) -> list[str]:
    """Return *words* with one of them omitted, doubled, swapped with the next, or misspelled."""
    place %= len(words)
    word = words[place]
    letter %= len(word) or 1
    changed = {
        "missing": [],
        "doubled": [word, word],
        "swapped": [*words[place + 1 : place + 2], word],
        "shorter": [word[:letter] + word[letter + 1 :]],
        "longer": [word[:letter] + other + word[letter:]],
        "other": [other],
    }[how]
    return [*words[:place], *changed, *words[place + (2 if how == "swapped" else 1) :]]


HOW = ("missing", "doubled", "swapped", "shorter", "longer", "other")
#: What a shell can pass: characters, and bytes that are no UTF-8, which Python has as these surrogates.
ANYTHING = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"])
    | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF),
    max_size=8,
)


def status_of(call: Callable[[], None]) -> tuple[object, str]:
    """Return the exit status of a parser, 0 if it accepts its words, and what it prints."""
    output, status = io.StringIO(), None
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            call()
        except click.exceptions.Exit as ended:
            status = ended.exit_code
        except click.ClickException as misuse:
            status = misuse.exit_code
        except SystemExit as ended:
            status = ended.code
    return status or 0, output.getvalue()


@given(st.sampled_from(EVERY), st.integers(0, 99), st.integers(0, 99), st.sampled_from(HOW), ANYTHING)
def test_mistyped_command_is_misuse_and_no_bug(command: str, place: int, letter: int, how: str, other: str) -> None:
    program, *words = [word for word in shlex.split(command) if word != "$"]
    status, _ = status_of(lambda: understand([program, *mistyped(words, place, letter, how, other)]))
    assert status in (0, ConfigError.exit_status)


VALUED = sorted(name for name in ServeOptions().longOpt if name.endswith("="))


@given(st.sampled_from(VALUED), ANYTHING)
def test_any_value_of_an_option_of_serve_is_accepted_or_reported_as_misuse(option: str, value: str) -> None:
    status, said = status_of(lambda: ServeOptions().parseOptions([f"--{option}{value}"]))
    assert status in (0, ConfigError.exit_status)
    assert not status or said.startswith("fyrehose serve: ")
