"""``fyrehose cluster``: show the servers of a cluster and the log that they share, and change the cluster's members.

Each server reports its state to the others four times a second through NATS; the commands listen to these messages.
The leader appends a change of the members to the shared log, and answers in its messages.  A request is repeated until
it is answered, so that the next leader carries it out if this leader is lost.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import attrs
import click

from fyrehose.cli.client.values import DURATION, FORMAT
from fyrehose.cli.cluster.survey import Survey, heard_in, leader_of, leading, refusal, survey, weakness
from fyrehose.cli.console import table, terminal, write_json
from fyrehose.cli.program import Commands
from fyrehose.cluster.members import MAINTENANCE, ChangeKind, MemberChange, Members, is_name
from fyrehose.cluster.overview import parsed
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.cluster.stream import (
    connect,
    subject_of,
)
from fyrehose.errors import ConfigError, FyrehoseError, Weakened
from fyrehose.imports import NATS
from fyrehose.journal.format import Damage
from fyrehose.observe.meters import MemberStatus
from fyrehose.options import counted

#: How often a request is repeated, in seconds.
REPEAT = 0.3
WAIT = click.option("--wait", type=DURATION, default="30s", show_default=True, help="How long to wait for the leader.")


@click.group(
    short_help="Show the servers of a cluster, and change its members.",
    commands=Commands("fyrehose.cli.cluster", {"reseed": "reseed"}),
)
def cluster() -> None:
    """Show the state of a cluster of servers, or change its members; `fyrehose help cluster` explains them.

    \b
        fyrehose cluster status --config /etc/fyrehose/fyrehose.toml
        fyrehose cluster status --nats nats://10.0.0.1:4222
    """


def of_a_cluster(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select a cluster to a command; the command's function gets its ``settings``."""

    @wraps(command)
    def run(*args: Any, config: Path | None, urls: tuple[str, ...], name: str, **values: Any) -> Any:
        NATS.require("this command")
        return command(*args, settings=settings_of(config, urls, name), **values)

    for option in (
        click.option("--cluster", "name", default="", help="Name of the cluster, with --nats.  [default: fyrehose]"),
        click.option("--nats", "urls", multiple=True, metavar="URL", help="Address of a NATS server; may be repeated."),
        click.option(
            "--config", type=click.Path(path_type=Path), help="Configuration file of a server of the cluster."
        ),
    ):
        run = option(run)
    return run


@cluster.command()
@of_a_cluster
@FORMAT
def status(settings: ReplicationSettings, form: str) -> None:
    """Show which server leads, how far behind the others are, and which are silent.

    The status is 1 whenever messages are refused: no server leads, the leader refuses them, or JetStream does not
    answer. It is 8 if they are accepted, but fewer NATS servers than should have the whole shared log.

    \b
        fyrehose cluster status --config /etc/fyrehose/fyrehose.toml
        fyrehose cluster status --nats nats://10.0.0.1:4222 --format json
    """
    found = asyncio.run(survey(settings))
    if form == "json":
        write_json(attrs.asdict(found))
    else:
        _show(found)
    if why := refusal(found):
        raise FyrehoseError(why)
    if (log := weakness(found)).problem:
        raise Weakened(f"the shared log is {log.problem}; {log.remedy}")


@cluster.command()
@of_a_cluster
@click.option("--name", "only_name", is_flag=True, help="Print the name of the server instead of its address.")
@click.option("--wait", type=DURATION, default="60s", show_default=True, help="How long to wait for a leader.")
def leader(settings: ReplicationSettings, only_name: bool, wait: float) -> None:
    """Print the address of the server that leads; wait until one does.

    \b
        fyrehose cluster leader --config fyrehose.toml
    """
    found = asyncio.run(survey(settings, wait, leading))
    heard = leader_of(found.servers)
    if heard is None:
        raise FyrehoseError(f"no server leads: none has reported that within {wait:g} s; see: fyrehose cluster status")
    if not only_name and not heard.get("address"):
        raise FyrehoseError(
            f"server {heard['name']} leads, but its address is unknown; set address in [replication] of its file"
        )
    click.echo(heard["name"] if only_name else heard["address"])


@cluster.command(short_help="Show the members of a cluster.")
@of_a_cluster
@FORMAT
def members(settings: ReplicationSettings, form: str) -> None:
    """Show the members of a cluster: NATS keeps the entries of the shared log until all members have them.

    \b
        fyrehose cluster members --config /etc/fyrehose/fyrehose.toml
    """
    found = asyncio.run(survey(settings))
    listed = _listed(found)
    rows = list(_rows(found, listed))
    if form == "json":
        shown = [{"name": name, "member": name in listed.names, "state": state} for name, state in rows]
        write_json({"version": listed.version, "places": listed.places, "servers": shown})
        return
    terminal().print(table(("member", "state"), rows))
    if listed.places:
        click.echo(f"{counted(listed.places, 'place is', 'places are')} free: the next new servers take them")


@cluster.command(short_help="Add a server to a cluster.")
@click.argument("server", default="")
@of_a_cluster
@WAIT
def add(settings: ReplicationSettings, server: str, wait: float) -> None:
    """Add SERVER (default: the one that --config describes) to a cluster, before it is started there.

    From now on NATS keeps the entries of the shared log until that server has them, too.

    \b
        fyrehose cluster add --config /etc/fyrehose/fyrehose.toml
        fyrehose cluster add d --nats nats://10.0.0.1:4222
    """
    _change(settings, wait, ChangeKind.ADD, _name(server or settings.name))


@cluster.command(short_help="Remove a server from a cluster.")
@click.argument("server", default="")
@click.option("--places", is_flag=True, help="Remove the places that no server has taken.")
@of_a_cluster
@WAIT
def remove(settings: ReplicationSettings, server: str, places: bool, wait: float) -> None:
    """Remove SERVER from a cluster: it stops if it runs, and no entries of the shared log are kept for it any more.

    If SERVER leads, another server takes over first. At least two members have to be left.

    \b
        fyrehose cluster remove c --config /etc/fyrehose/fyrehose.toml
    """
    if places == bool(server):
        raise ConfigError("pass either the name of a server or --places")
    if places:
        _change(settings, wait, ChangeKind.CLOSE)
    else:
        _change(settings, wait, ChangeKind.REMOVE, _name(server))


@cluster.command(short_help="Let a server take the place of another one.")
@click.argument("old")
@click.argument("new", default="")
@of_a_cluster
@WAIT
def replace(settings: ReplicationSettings, old: str, new: str, wait: float) -> None:
    """Let NEW (default: the server that --config describes) take the place of OLD, before NEW is started.

    Run this on a new machine that replaces a lost one. The new server needs another name than the old one.

    \b
        fyrehose cluster replace c --config /etc/fyrehose/fyrehose.toml
        fyrehose cluster replace c d --nats nats://10.0.0.1:4222
    """
    _change(settings, wait, ChangeKind.REPLACE, _name(old), _name(new or settings.name))


@cluster.command(short_help="Let another server lead.")
@click.argument("server", default="")
@of_a_cluster
@WAIT
def handover(settings: ReplicationSettings, server: str, wait: float) -> None:
    """Let SERVER (default: the one that lacks least) lead in place of the server that leads.

    The leader refuses publishes, settles those under way, and follows once the other server leads.

    \b
        fyrehose cluster handover --config /etc/fyrehose/fyrehose.toml
        fyrehose cluster handover b --nats nats://10.0.0.1:4222
    """
    found = asyncio.run(survey(settings, wait, leading))
    before = leader_of(found.servers)
    if before is None:
        raise FyrehoseError(f"no server leads, so none can hand over; listened for {wait:g} s")
    old = str(before["name"])
    if old != server:
        by = _name(server) if server else ""
        change = MemberChange(os.urandom(8).hex(), 0, ChangeKind.HAND_OVER, old, by)
        said = asyncio.run(_ask(settings, change, wait, lambda said: leading(said) and said["name"] != old))
        server = str(said["name"])
    click.echo(f"{server} leads")


@cluster.command(short_help="Let a server not lead, or lead again.")
@click.argument("server", default="")
@click.option("--end", is_flag=True, help="The server may lead again.")
@of_a_cluster
@WAIT
def maintenance(settings: ReplicationSettings, server: str, end: bool, wait: float) -> None:
    """Keep SERVER (default: the one that --config describes) from leading until it is started anew, or with --end.

    If it leads, it hands over first. It leads only if no other server can. It goes on to serve readers.

    \b
        fyrehose cluster maintenance b --config /etc/fyrehose/fyrehose.toml
        fyrehose cluster maintenance b --end --config /etc/fyrehose/fyrehose.toml
    """
    name = _name(server or settings.name)
    change = MemberChange(os.urandom(8).hex(), 0, ChangeKind.RESUME if end else ChangeKind.MAINTAIN, name)

    def done(said: dict[str, Any]) -> bool:
        leads = said.get("state") == "leader"
        return said["name"] == name and (said.get("unfit") == MAINTENANCE) != end and (end or not leads)

    asyncio.run(_ask(settings, change, wait, done))
    click.echo(f"{name} may lead again" if end else f"{name} is in maintenance, and does not lead")


def settings_of(config: Path | None, urls: tuple[str, ...], name: str) -> ReplicationSettings:
    """Return the settings of the table [replication] of file *config*, or those that *urls* and *name* give.

    :raises ConfigError: both *config* and *urls* are given, or neither; or the file has no such table
    """
    if (config is None) == (not urls):
        raise ConfigError("pass either --config FILE or --nats URL")
    if config is None:
        return ReplicationSettings(servers=urls, cluster=name or "fyrehose")
    from fyrehose.server.config import read_file  # Other commands start sooner without the configuration of servers.

    settings = read_file(config).replication
    if settings is None:
        raise ConfigError(f"{config} has no table [replication], so its server belongs to no cluster")
    return settings


def _members(found: Survey) -> list[MemberStatus]:
    """Return the state of each server that the leader describes, and of others that this command has heard from."""
    listed = parsed((leader_of(found.servers) or {}).get("servers"))
    names = {each.name for each in listed}
    heard = [
        MemberStatus(name=str(said.get("name")), role=str(said.get("state")), address=str(said.get("address") or ""))
        for said in found.servers
        if said.get("name") not in names
    ]
    return sorted([*listed, *heard], key=lambda each: each.name)


def _show(found: Survey) -> None:
    ends = {said.get("name"): int(said.get("position", 0)) for said in found.servers}
    unfit = {said.get("name"): re.sub(r"[^\x20-\x7e]", "?", str(said.get("unfit") or "")) for said in found.servers}
    leader = leader_of(found.servers)
    rows = []
    for each in _members(found):
        role = each.role if each.alive or each.heard is None else f"silent for {each.heard:.0f} s"
        role += f" ({why})" if (why := unfit.get(each.name)) else ""
        leads = leader is not None and leader.get("name") == each.name
        lacks = (each.behind, each.records, each.seconds)
        heard = "" if leads or each.heard is None else f"{each.heard:.1f} s ago"
        numbers = ("?" if lack is None else f"{lack:,}" for lack in lacks)
        rows.append((each.name, role, str(ends.get(each.name, "?")), *numbers, heard, each.address))
    terminal().print(table(("server", "role", "position", "behind", "records", "seconds", "heard", "address"), rows))
    if found.log is None:
        click.echo("shared log: JetStream does not answer")
    else:
        log = found.log
        entries = int(log["last"]) - int(log["first"]) + 1 if log["last"] else 0
        click.echo(
            f"shared log: {log['stream']}, {counted(entries, 'entry', 'entries')} "
            f"({counted(int(log['bytes']), 'byte')}) on "
            f"{counted(int(log['replicas']), 'NATS server')}, up to entry {log['last']:,}"
        )
    _show_nats(found)


def _show_nats(found: Survey) -> None:
    """Show which NATS servers answer, and the state that JetStream reports for those that store the shared log."""
    stored = {node["name"]: node for node in (found.log or {}).get("nodes", ())}
    rows = []
    for server in found.nats:
        node = stored.pop(server.name, None)
        rows.append((server.name or "?", server.address, server.version if server.alive else "no", _stores(node)))
    for name, node in stored.items():
        rows.append((name, "?", "no" if node["offline"] else "?", _stores(node)))
    terminal().print(table(("NATS server", "address", "answers", "shared log"), rows))


def _stores(node: dict[str, Any] | None) -> str:
    """Return the state of a NATS server that JetStream reports, as text for people."""
    if node is None:
        return ""
    if node["offline"]:
        return "offline"
    behind = f"{counted(int(node['lag']), 'entry', 'entries')} behind"
    return "leads" if node["leads"] else "current" if node["current"] else behind


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
    """Yield the name and the state of each member, then those of other servers that run."""
    heard = {re.sub(r"[^\x20-\x7e]", "?", str(said.get("name"))): said for said in found.servers}
    known = {each.name: each.heard for each in parsed((leader_of(found.servers) or {}).get("servers"))}
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
    found = asyncio.run(survey(settings, wait, leading))
    if not any(map(leading, found.servers)):
        raise FyrehoseError(f"no server leads, so the members cannot be changed; listened for {wait:g} s")
    before = _listed(found)
    if kind is ChangeKind.REMOVE and name not in before.names:
        raise FyrehoseError(f"{name} is not a member; the members are {before}")
    change = MemberChange(os.urandom(8).hex(), before.version, kind, name, by)
    said = asyncio.run(_ask(settings, change, wait, lambda said: leading(said) and _answer(said, change) is not None))
    click.echo(f"the members are {Members.unpack(str(said['listed']).encode())}")


async def _ask(
    settings: ReplicationSettings, change: MemberChange, wait: float, done: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Send the request again and again until a server's message shows that it is *done*; return that message.

    :raises FyrehoseError: the leader refuses it, or does not answer in time
    """
    answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def receive(message: Any) -> None:
        said = heard_in(message.data)
        if said is not None and (done(said) or _refused(said, change)):
            answers.put_nowait(said)

    client = await connect(settings, [])
    try:
        await client.subscribe(subject_of(settings.cluster, "say"), cb=receive)
        deadline = asyncio.get_running_loop().time() + wait
        while asyncio.get_running_loop().time() < deadline:
            await client.publish(subject_of(settings.cluster, "members"), change.pack())
            try:
                said = await asyncio.wait_for(answers.get(), REPEAT)
            except TimeoutError:
                continue
            if why := _refused(said, change):
                raise FyrehoseError(why)
            return said
    finally:
        await client.close()
    raise FyrehoseError(
        f"no leader has answered within {wait:g} s, so whether anything was changed is unknown: look with `fyrehose "
        "cluster members` and `fyrehose cluster status`; running the command again does no harm"
    )


def _answer(said: dict[str, Any], change: MemberChange) -> dict[str, Any] | None:
    """Return the answer to *change* in the message *said*; None if there is none."""
    answer = said.get("answer")
    return answer if isinstance(answer, dict) and answer.get("id") == change.ident else None


def _refused(said: dict[str, Any], change: MemberChange) -> str:
    return str((_answer(said, change) or {}).get("refused") or "")
