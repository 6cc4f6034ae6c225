"""``fyrehose completion``: print the script by which a shell completes commands, options and their values.

    TAB -> `fyrehose` with the line so far in its environment -> click -> candidates, one a line -> the shell

click's script for bash passes the words into which readline has cut the line, and readline cuts at colons and equals
signs, which endpoints and options have.  The script here passes the line itself.
"""

from __future__ import annotations

import os
import shlex
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

SHELLS = ("bash", "zsh", "fish")

_BASH = """\
%(complete_func)s() {
    local type value
    COMPREPLY=()
    while IFS=, read -r type value; do
        case "$type" in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(COMP_WORDS="${COMP_LINE:0:COMP_POINT}" COMP_BREAKS="$COMP_WORDBREAKS" \
%(complete_var)s=bash_complete "$1")
    [[ "${COMPREPLY[0]}" == *= ]] && compopt -o nospace
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class LineComplete(BashComplete):
    """Completion of words for bash that uses the whole command line."""

    source_template = _BASH
    #: the typed part of the last word, without its quotes
    _word = ""
    #: the quote that is open at the cursor; empty: none
    _quote = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the arguments before the cursor, and the beginning of the one at the cursor."""
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)
        if len(split_arg_string(f"{line}x")) > len(words):
            words.append("")
        self._quote, self._word = _open_quote(line), words[-1]
        return words[1:-1], self._word

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Return the line for one candidate: its type, and the text that readline puts in place of its current word."""
        if item.type != "plain":
            return f"{item.type},"
        option, equals, _ = self._word.partition("=")
        whole = f"{option}{equals}{item.value}" if equals and option.startswith("-") else str(item.value)
        breaks = "" if self._quote else os.environ.get("COMP_BREAKS", "")
        cut = max((at for at, character in enumerate(self._word, 1) if character in breaks), default=0)
        return f"plain,{whole[cut:]}"


add_completion_class(LineComplete)


def _open_quote(line: str) -> str:
    """Return the quote that is open at the end of *line*, or ""."""
    for quote in ("", "'", '"'):
        try:
            shlex.split(line + quote)
        except ValueError:
            continue
        return quote
    return ""


@click.command(short_help="Print the script by which a shell completes words.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL; the commands below install it.

    Commands, options, protocols and the values of options are completed. For the names of streams and subscriptions use
    `fyrehose streams` and `fyrehose subscriptions`.

    \b
        echo 'eval "$(fyrehose completion bash)"' >> ~/.bashrc
        echo 'eval "$(fyrehose completion zsh)"' >> ~/.zshrc
        fyrehose completion fish > ~/.config/fish/completions/fyrehose.fish
    """
    program = ctx.find_root()
    name = program.info_name or "fyrehose"
    kind = get_completion_class(shell)
    assert kind is not None, "click supports every shell in SHELLS"
    # Use the template: source() would start bash to check its version.
    complete = kind(program.command, {}, name, f"_{name.upper()}_COMPLETE")
    click.echo(complete.source_template % complete.source_vars())
