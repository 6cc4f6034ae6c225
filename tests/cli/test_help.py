"""Print the pages of the documentation, and name in errors and help only pages that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import fyrehose
from fyrehose.cli import main
from fyrehose.cli.help import pages, section
from fyrehose.errors import ConfigError

PACKAGE = Path(fyrehose.__file__).parent


def run(*words: str) -> str:
    result = CliRunner().invoke(main, ["help", *words], prog_name="fyrehose")
    assert result.exit_code == 0, result.output
    return result.output


def test_topics_are_listed_with_their_titles() -> None:
    listed = [line.split(maxsplit=1) for line in run().splitlines()]
    assert ["operating", "Operating a server"] in listed
    assert ["figg", "Figg"] in listed
    assert [name for name, title in listed] == sorted(pages())


def test_page_is_printed_as_it_is_written() -> None:
    assert run("tour").rstrip() == (PACKAGE.parent / "docs" / "tour.md").read_text().rstrip()


def test_section_is_printed_with_the_sections_below_it() -> None:
    said = run("operating", "retention")
    assert said.startswith("## Retention\n")
    assert "### Clocks" in said
    assert "## Limits" not in said


def test_comment_in_a_code_block_is_no_heading() -> None:
    page = "# A\n```sh\n# run it\n```\n## Run it\ntext\n"
    assert section(page, "run it") == "## Run it\ntext\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("operatin",), "there is no page 'operatin'; did you mean operating?"),
        (("nonsense",), "there is no page 'nonsense'; `fyrehose help` lists the pages"),
        (("operating", "retetion"), "there is no section 'retetion' on this page; did you mean Retention?"),
        (("tour", "zzz"), "there is no section 'zzz' on this page; it has: "),
    ],
)
def test_unknown_page_or_section_is_answered_with_the_nearest_one(words: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(main, ["help", *words], prog_name="fyrehose")
    assert result.exit_code == ConfigError.exit_status
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_help_of_a_command_without_a_page_is_that_of_the_command() -> None:
    assert "Usage: fyrehose publish " in run("publish")


def texts(module: ast.Module) -> Iterator[str]:
    """Yield the texts in *module* that people may read: all but docstrings, except those of commands."""
    hidden = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            command = isinstance(node, ast.FunctionDef) and any(
                re.search(r"\b(command|group)\b", ast.unparse(each)) for each in node.decorator_list
            )
            if node.body and isinstance(node.body[0], ast.Expr) and not command:
                hidden.add(id(node.body[0].value))
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden:
            yield node.value


@pytest.fixture(scope="module")
def every_text() -> dict[str, str]:
    """Return all texts for people, by the file and the text itself; reading them takes seconds of the CPU."""
    return {
        f"{path.relative_to(PACKAGE)}: {text}": text
        for path in PACKAGE.rglob("*.py")
        for text in texts(ast.parse(path.read_text(encoding="utf-8")))
    }


def test_texts_for_people_name_no_files_of_the_documentation(every_text: dict[str, str]) -> None:
    assert [where for where, text in every_text.items() if re.search(r"\bdocs/|\w+\.md\b", text)] == []


def test_pages_and_sections_that_texts_name_exist(every_text: dict[str, str]) -> None:
    named = [words for text in every_text.values() for words in re.findall(r"`fyrehose help ([a-z][a-z -]*)`", text)]
    assert len(named) >= 9
    for words in named:
        topic, _, title = words.partition(" ")
        page = pages()[topic].read_text(encoding="utf-8")
        assert not title or section(page, title)


def test_every_text_of_a_command_is_examined() -> None:
    source = "@click.command()\ndef f():\n    'docs/a.md'\ndef g():\n    'docs/b.md'\n    return 'docs/c.md'\n"
    assert sorted(texts(ast.parse(source))) == ["docs/a.md", "docs/c.md"]
    assert isinstance(main.commands["help"], click.Command)
