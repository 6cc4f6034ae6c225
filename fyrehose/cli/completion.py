"""``fyrehose completion``: what a shell needs to complete our words."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Write the lines that make SHELL complete our commands and options.

    \b
        fyrehose completion bash >> ~/.bash_completion
        fyrehose completion zsh > ~/.zfunc/_fyrehose
        fyrehose completion fish > ~/.config/fish/completions/fyrehose.fish
    """
    program = ctx.find_root()
    name = program.info_name or "fyrehose"
    kind = get_completion_class(shell)
    assert kind is not None, "one of those that click knows"
    # Its constructor and source() ask for nothing but names; bash is not started to find out how old it is.
    made = kind(program.command, {}, name, f"_{name.upper()}_COMPLETE")
    click.echo(made.source_template % made.source_vars())
