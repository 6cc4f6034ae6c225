"""``fyrehose help``: print the pages of the documentation.

A wheel has them in the package, and a checkout beside it.
"""

from __future__ import annotations

import re
from pathlib import Path

import click

import fyrehose
from fyrehose.errors import ConfigError
from fyrehose.options import suggestion

_PACKAGE = Path(fyrehose.__file__).parent
#: Pages that need links, or the builder of the documentation, to be of use.
_NOT_SHOWN = ("index", "reference")
_HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)


def pages() -> dict[str, Path]:
    """Return the pages of the documentation by their topics."""
    folder = next((each for each in (_PACKAGE / "docs", _PACKAGE.parent / "docs") if each.is_dir()), _PACKAGE)
    found = {path.stem: path for path in [*folder.glob("*.md"), *folder.glob("protocols/*.md")]}
    return {topic: found[topic] for topic in sorted(found) if topic not in _NOT_SHOWN}


def section(page: str, words: str) -> str:
    """Return the first section of *page* whose heading has *words*, with the sections below it.

    :raises ConfigError: there is no such section
    """
    outside_code = re.sub(r"^```.*?^```", lambda code: "`" * len(code[0]), page, flags=re.MULTILINE | re.DOTALL)
    headings = [(len(each[1]), each[2], each.start()) for each in _HEADING.finditer(outside_code)]
    for at, (level, heading, start) in enumerate(headings):
        if words.lower() in heading.lower():
            return page[start : next((begin for other, _, begin in headings[at + 1 :] if other <= level), len(page))]
    titles = [heading for _, heading, _ in headings[1:]]
    advice = suggestion(words, titles) or f"; it has: {', '.join(titles)}"
    raise ConfigError(f"there is no section {words!r} on this page{advice}")


def _topics(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [topic for topic in pages() if topic.startswith(incomplete)]


@click.command(short_help="Print the documentation.")
@click.argument("topic", required=False, shell_complete=_topics)
@click.argument("words", metavar="[SECTION]", nargs=-1)
@click.pass_context
def help(ctx: click.Context, topic: str | None, words: tuple[str, ...]) -> None:
    """List the pages of the documentation, or print one, or a section of one.

    \b
        fyrehose help
        fyrehose help tour
        fyrehose help operating access policy
    """
    found = pages()
    if topic is None:
        width = max(map(len, found), default=0)
        for name, path in found.items():
            click.echo(f"{name:{width}}  {path.read_text(encoding='utf-8').partition(chr(10))[0].removeprefix('# ')}")
        return
    if topic not in found:
        program = ctx.find_root().command
        if isinstance(program, click.Group) and (command := program.get_command(ctx, topic)) is not None:
            click.echo(command.get_help(click.Context(command, ctx.parent, topic)))
            return
        advice = suggestion(topic, found) or "; `fyrehose help` lists the pages"
        raise ConfigError(f"there is no page {topic!r}{advice}")
    page = found[topic].read_text(encoding="utf-8")
    click.echo_via_pager(section(page, " ".join(words)) if words else page)
