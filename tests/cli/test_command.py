"""The words of the command line: what they mean, what is wrong with them, and help that fits a screen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from fyrehose import __version__
from fyrehose.cli import running
from fyrehose.cli.client.values import ADDRESSES, SINCE, addresses
from fyrehose.errors import FyrehoseError, JournalCorrupt
from tests.cli.test_program import journal_in, run

FYREHOSE = Path(sys.executable).with_name("fyrehose")
#: What is behind descriptors 0 and 1 when a command begins.
DESCRIPTORS = """
import os, sys
from fyrehose.cli import program
program._occupy_standard_descriptors()
print([os.readlink(f"/proc/self/fd/{n}") for n in (0, 1)], file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words", [(), ("publish",), ("tail",), ("protocols",)], ids=lambda words: "-".join(words) or "all"
)
def test_help_fits_a_screen(words: tuple[str, ...]) -> None:
    result = run(*words, "--help")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert len(lines) <= 36
    assert max(map(len, lines)) <= 80
    assert not words or f"fyrehose {words[0]}" in result.output.split("Usage:")[1].partition("\n")[2], "an example"


@pytest.mark.parametrize("words", [(), ("journal",), ("streams",)], ids=lambda words: "-".join(words) or "all")
def test_a_list_of_commands_has_whole_sentences(words: tuple[str, ...]) -> None:
    output = run(*words, "--help").output
    listed = output.partition("Commands:\n")[2].splitlines()
    assert len(output.splitlines()) <= 28
    assert all(re.fullmatch(r"  [a-z]+  +[A-Z].*[^.]\.", line) for line in listed), listed
    assert "Usage:" in run(*words, listed[0].split()[0], "--help").output


def test_option_version_prints_the_version() -> None:
    assert run("--version").output == f"fyrehose {__version__}\n"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("127.0.0.1:8119", ("127.0.0.1", 8119)),
        ("host", ("host", None)),
        (":8119", ("127.0.0.1", 8119)),
        ("[::1]:8119", ("::1", 8119)),
        ("[::1]", ("::1", None)),
        ("::1", ("::1", None)),
    ],
)
def test_server_address_is_parsed(text: str, place: tuple[str, int | None]) -> None:
    assert addresses(text) == (place,)


@pytest.mark.parametrize("text", ["host:", "host:many", "host:0", "host:65536", "[::1]:x"])
def test_invalid_server_address_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected HOST:PORT"):
        ADDRESSES.convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "after"),
    [("latest", None), ("start", 0), ("1", 0), ("17", 16), ("0", 0), ("281474976710655", 281474976710654)],
)
def test_since_is_the_number_before_the_first_record(text: str, after: int | None) -> None:
    assert SINCE.convert(text, None, None) == after


def test_unknown_word_of_since_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="expected latest, start, a record number"):
        SINCE.convert("yesterday", None, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("publish", "--protocol", "fig", "x"), "fyrehose: unknown protocol 'fig'; expected one of "),
        (("publish", "--protocol", "backbone", "--stream", "s", "x"), "fyrehose: unexpected --stream 's': "),
        (("tail", "--protocol", "backbone", "--stream", "s"), "fyrehose: unexpected --stream 's': "),
        (("protocols", "fig"), "fyrehose: unknown protocol 'fig'"),
    ],
)
def test_configuration_error_is_one_line(words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "run", lambda command: command(None).send(None))
    result = run(*words)
    assert result.exit_code == 2
    assert result.output.startswith(said)
    assert result.output.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("publish", "--file", "x", "message"), "pass either MESSAGES or --file"),
        (("publish", "--window", "0", "x"), "--window"),
        (("tail", "--count", "0"), "--count"),
        (("tail", "--format", "xml"), "--format"),
        (("tial",), "No such command 'tial'"),
    ],
)
def test_misuse_ends_with_status_2(words: tuple[str, ...], said: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize(("error", "status"), [(FyrehoseError("no"), 1), (JournalCorrupt("byte 7"), 3)])
def test_fyrehose_error_is_one_line_and_its_exit_status(
    error: FyrehoseError, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(command: Any) -> int:
        raise error

    monkeypatch.setattr(running, "run", fails)
    result = run("publish", "--protocol", "backbone", "x")
    assert (result.exit_code, result.output) == (status, f"fyrehose: {error}\n")


@pytest.mark.parametrize("status", [0, 1, 130])
def test_program_ends_with_the_exit_status_of_the_command(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "run", lambda command: status)
    assert run("publish", "--protocol", "backbone", "x").exit_code == status
    assert run("tail", "--protocol", "backbone").exit_code == status


@pytest.mark.parametrize("text", ["281474976710656", "9" * 5_000, "-1", "\u0663", "1.0", "", "now"])
def test_invalid_number_of_since_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="a record number up to 2814749767"):
        SINCE.convert(text, None, None)


FULL = ("journal stats data", "journal dump data", "journal verify data", "protocols", "completion bash", "--help")


@pytest.mark.usefixtures("real_programs")
@pytest.mark.parametrize("words", FULL)
def test_full_disk_on_output_is_one_line_and_status_1(words: str, tmp_path: Path) -> None:
    journal_in(tmp_path / "data")
    with Path("/dev/full").open("wb") as full:
        command = [FYREHOSE, *words.split()]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, timeout=60)
    assert (ended.returncode, ended.stderr) == (1, b"fyrehose: No space left on device\n")


def test_closed_standard_descriptors_are_opened_as_dev_null(tmp_path: Path) -> None:
    journal_in(tmp_path / "data")
    words = [FYREHOSE, "journal", "dump", "data"]
    ended = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&-', "sh", sys.executable, "-c", DESCRIPTORS, *words],
        stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=60,
    )  # fmt: skip
    assert ended.stderr == "['/dev/null', '/dev/null']\n"


def test_characters_outside_of_the_terminals_encoding_are_escaped(tmp_path: Path) -> None:
    journal_in(tmp_path / "data", stream="w\u00f6rld")
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = subprocess.run(
        [FYREHOSE, "journal", "stats", "data"], capture_output=True, cwd=tmp_path, env=plain, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"w\\xf6rld" in ended.stdout
