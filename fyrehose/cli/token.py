"""``fyrehose token``: sign tokens for browsers and programs; each token expires by itself."""

from __future__ import annotations

import time
from pathlib import Path

import click

from fyrehose.broker.signed import read_key, sign
from fyrehose.cli import candidates
from fyrehose.cli.client.values import DURATION, Parsed
from fyrehose.errors import ConfigError
from fyrehose.identity import Action
from fyrehose.options import suggestion


def _right(text: str) -> tuple[Action, str]:
    """Return the action and the pattern of ``ACTION=PATTERN``."""
    action, _, pattern = text.partition("=")
    if action not in list(Action) or not pattern:
        raise ValueError(f"ACTION=PATTERN, such as subscribe=logs.*{suggestion(action, list(Action))}")
    return Action(action), pattern


@click.group(short_help="Sign tokens that end by themselves.")
def token() -> None:
    """Sign tokens that expire by themselves, for browsers and programs.

    \b
        (umask 077; openssl rand -hex 32 > k)
        fyrehose token create --key k --rights 'subscribe=logs.*' --expires 1h
    """


@token.command(short_help="Sign a token.")
@click.option("--key", required=True, type=click.Path(path_type=Path), help="File of the key, as in the access policy.")
@click.option(
    "--rights",
    required=True,
    multiple=True,
    type=Parsed("action=pattern", _right),
    help="What it grants: publish, subscribe, consume or administer.",
    shell_complete=candidates.rights,
)
@click.option("--expires", required=True, type=DURATION, help="When the token ends, from now, such as 1h.")
def create(key: Path, rights: tuple[tuple[Action, str], ...], expires: float) -> None:
    """Print a token that grants rights until it expires.

    The server accepts it if its access policy has a rule with `signed` and the same key, within the streams of that
    rule. Nothing is stored: to revoke tokens before they expire, change the key.

    \b
        fyrehose token create --key k --rights 'subscribe=logs.*' --expires 1h
        fyrehose token create --key k --rights publish=in --expires 30d
    """
    if expires <= 0:
        raise click.BadParameter("a token has to end later than now; expected for example 1h", param_hint="--expires")
    granted: dict[Action, list[str]] = {}
    for action, pattern in rights:
        granted.setdefault(action, []).append(pattern)
    try:
        click.echo(sign(granted, int(time.time() + expires), read_key(key)))
    except ValueError as error:
        raise ConfigError(str(error)) from error
