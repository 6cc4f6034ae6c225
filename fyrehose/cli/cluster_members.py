"""``fyrehose cluster members``, ``add``, ``remove``, ``replace``: show and change the members of a cluster.

The leader appends the change to the shared log, and answers in its messages to the other servers.  A request is
repeated until it is answered, so that the next leader carries it out if this leader is lost.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator
from typing import Any

import click

from fyrehose.cli import cluster
from fyrehose.cli.cluster import Survey, of_a_cluster
from fyrehose.cli.console import table, terminal, write_json
from fyrehose.cli.values import DURATION, FORMAT
from fyrehose.errors import ConfigError, FyrehoseError
from fyrehose.journal.format import Damage
from fyrehose.options import counted
from fyrehose.replication.members import ChangeKind, MemberChange, Members, is_name
from fyrehose.replication.overview import parsed
from fyrehose.replication.settings import ReplicationSettings
from fyrehose.replication.stream import members_subject_of, say_subject_of

#: How often a request is repeated, in seconds.
REPEAT = 0.3
WAIT = click.option("--wait", type=DURATION, default="30s", show_default=True, help="How long to wait for the leader.")


@click.command(short_help="Show the members of a cluster.")
@of_a_cluster
@FORMAT
def members(settings: ReplicationSettings, form: str) -> None:
    """Show the servers for which the shared log is kept, as the log itself lists them.

    \b
        fyrehose cluster members --config /etc/fyrehose/fyrehose.toml
    """
    found = asyncio.run(cluster.survey(settings))
    listed = _listed(found)
    rows = list(_rows(found, listed))
    if form == "json":
        shown = [{"name": name, "member": name in listed.names, "state": state} for name, state in rows]
        write_json({"version": listed.version, "places": listed.places, "servers": shown})
        return
    terminal().print(table(("member", "state"), rows))
    if listed.places:
        click.echo(f"{counted(listed.places, 'place is', 'places are')} free: the next new servers take them")


@click.command(short_help="Add a server to a cluster.")
@click.argument("server", default="")
@of_a_cluster
@WAIT
def add(settings: ReplicationSettings, server: str, wait: float) -> None:
    """Add SERVER, by default the one whose configuration file is named, then start it.

    From now on the shared log is kept until that server has it, too.

    \b
        fyrehose cluster add --config /etc/fyrehose/fyrehose.toml
        fyrehose cluster add d --nats nats://10.0.0.1:4222
    """
    _change(settings, wait, ChangeKind.ADD, _name(server or settings.name))


@click.command(short_help="Remove a server from a cluster.")
@click.argument("server", default="")
@click.option("--places", is_flag=True, help="Remove the places that no server has taken.")
@of_a_cluster
@WAIT
def remove(settings: ReplicationSettings, server: str, places: bool, wait: float) -> None:
    """Remove SERVER: it ends if it runs, and nothing is kept for it any more.

    If it leads, another server takes over first. Two members have to be left.

    \b
        fyrehose cluster remove c --config /etc/fyrehose/fyrehose.toml
    """
    if places == bool(server):
        raise ConfigError("pass either the name of a server or --places")
    if places:
        _change(settings, wait, ChangeKind.CLOSE)
    else:
        _change(settings, wait, ChangeKind.REMOVE, _name(server))


@click.command(short_help="Let a server take the place of another one.")
@click.argument("old")
@click.argument("new", default="")
@of_a_cluster
@WAIT
def replace(settings: ReplicationSettings, old: str, new: str, wait: float) -> None:
    """Let NEW, by default the server whose configuration file is named, take the place of OLD, then start it.

    Run this on a new machine in the place of one that is lost. Its server needs another name than the old one.

    \b
        fyrehose cluster replace c --config /etc/fyrehose/fyrehose.toml
        fyrehose cluster replace c d --nats nats://10.0.0.1:4222
    """
    _change(settings, wait, ChangeKind.REPLACE, _name(old), _name(new or settings.name))


def _name(text: str) -> str:
    if not text:
        raise ConfigError("pass the name of the server, or --config with its configuration file")
    if not is_name(text):
        raise ConfigError(f"{text!r} is not the name of a server: 1 to 64 letters, digits, - and _")
    return text


def _listed(found: Survey) -> Members:
    """Return the newest list of members that a server has sent.

    :raises FyrehoseError: no server has sent a list
    """
    lists = list(filter(None, map(_said_by, found.servers)))
    if not lists:
        raise FyrehoseError("no server knows the members: none is running, or none has led yet")
    return max(lists, key=lambda members: members.version)


def _said_by(said: dict[str, Any]) -> Members | None:
    try:
        return Members.unpack(str(said.get("listed", "")).encode())
    except Damage:
        return None  # this server has no list yet, or an older one


def _rows(found: Survey, listed: Members) -> Iterator[tuple[str, str]]:
    """Return the members with their states, then other servers that run."""
    heard = {re.sub(r"[^\x20-\x7e]", "?", str(said.get("name"))): said for said in found.servers}
    known = {each.name: each.heard for each in parsed(cluster.leader_of(found.servers) or {})}
    for name in listed.names:
        if name in heard:
            yield name, str(heard[name].get("state"))
        else:
            silent = known.get(name)
            yield name, "not heard" if silent is None else f"silent for {silent:.0f} s"
    for name in heard:
        if name not in listed.names:
            yield name, "not a member"


def _change(settings: ReplicationSettings, wait: float, kind: ChangeKind, name: str = "", by: str = "") -> None:
    """Ask the leader for a change, and show the members after it.

    :raises FyrehoseError: it is refused, or no server leads
    """
    found = asyncio.run(cluster.survey(settings, wait, cluster.leading))
    if not any(map(cluster.leading, found.servers)):
        raise FyrehoseError(f"no server leads, so the members cannot be changed; listened for {wait:g} s")
    before = _listed(found)
    if kind is ChangeKind.REMOVE and name not in before.names:
        raise FyrehoseError(f"{name} is not a member; the members are {before}")
    after = asyncio.run(_ask(settings, MemberChange(os.urandom(8).hex(), before.version, kind, name, by), wait))
    click.echo(f"the members are {after}")


async def _ask(settings: ReplicationSettings, change: MemberChange, wait: float) -> Members:
    """Repeat the request until a leader answers; return the members after the change."""
    answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def receive(message: Any) -> None:
        said = json.loads(message.data)
        if cluster.leading(said) and said.get("answer", {}).get("id") == change.ident:
            answers.put_nowait(said)

    client = await cluster.connect(settings, [])
    try:
        await client.subscribe(say_subject_of(settings.cluster), cb=receive)
        deadline = asyncio.get_running_loop().time() + wait
        while asyncio.get_running_loop().time() < deadline:
            await client.publish(members_subject_of(settings.cluster), change.pack())
            try:
                said = await asyncio.wait_for(answers.get(), REPEAT)
            except TimeoutError:
                continue
            if said["answer"]["refused"]:
                raise FyrehoseError(str(said["answer"]["refused"]))
            return Members.unpack(str(said["listed"]).encode())
    finally:
        await client.close()
    raise FyrehoseError(
        f"no leader has answered within {wait:g} s, so whether the members were changed is unknown: look with "
        "`fyrehose cluster members`; running the command again does no harm"
    )
