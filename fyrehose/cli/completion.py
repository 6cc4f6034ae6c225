"""``fyrehose completion``: print the script by which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
        fyrehose completion bash >> ~/.bash_completion
        fyrehose completion zsh > ~/.zfunc/_fyrehose
        fyrehose completion fish > ~/.config/fish/completions/fyrehose.fish
    """
    program = ctx.find_root()
    name = program.info_name or "fyrehose"
    kind = get_completion_class(shell)
    assert kind is not None, "click supports every shell in SHELLS"
    # source() would start bash to check its version; the template alone needs no shell.
    complete = kind(program.command, {}, name, f"_{name.upper()}_COMPLETE")
    click.echo(complete.source_template % complete.source_vars())
