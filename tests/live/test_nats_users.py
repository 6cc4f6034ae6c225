"""Test the NATS permissions of deploy/cluster: servers may do what they need, and strangers cannot harm them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from benchmarks.nats_servers import NatsNodes, program
from fyrehose.cli.cluster.survey import survey
from fyrehose.cluster.entries import EntryKind, EntryWriter, LogEntry
from fyrehose.cluster.jetstream import JetStreamLog
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.cluster.shared_log import EntryRange
from fyrehose.cluster.stream import begin_again
from fyrehose.errors import ConfigError, FyrehoseError
from tests.doubles.patience import patiently

USERS = Path(__file__).parents[2] / "deploy" / "cluster" / "nats-users.conf"
NAMES = ("a", "b", "c", "status", "route")
#: How long anything may take on a busy machine, in seconds.
PATIENCE = 120.0
TAKEOVER = LogEntry(EntryKind.TAKEOVER, 1, EntryWriter("a", 1), 0)

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.skipif(program() is None, reason="a server of others is not installed: nats-server"),
]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsNodes]:
    passwords = {f"PASSWORD_{name.upper()}": f"x{name}" for name in NAMES}
    with NatsNodes(tmp_path_factory.mktemp("nats"), users=USERS, environment=passwords) as started:
        yield started


def settings(nodes: NatsNodes, directory: Path, name: str, password: str = "") -> ReplicationSettings:
    file = directory / f"password-{name}"
    file.write_text(f"{password or f'x{name}'}\n")
    return ReplicationSettings(
        servers=tuple(nodes.urls), name=name, user=name, password_file=str(file), log_limit=64 << 20
    )


async def opened(used: ReplicationSettings, heard: list[bytes]) -> JetStreamLog:
    """Connect to the shared log with the settings *used*; received messages go to *heard*."""
    log = JetStreamLog(
        reactor, used.servers, used.cluster, used.replicas, used.log_limit, options=used.connect_options()
    )
    await patiently(log.open, heard.append)
    return log


def test_the_nats_user_of_a_server_may_do_what_servers_do(nodes: NatsNodes, tmp_path: Path) -> Any:
    async def test() -> None:
        heard: list[bytes] = []
        a, b = await opened(settings(nodes, tmp_path, "a"), []), await opened(settings(nodes, tmp_path, "b"), heard)
        try:
            assert await patiently(a.append, TAKEOVER, 0) == 1
            checkpoint = LogEntry(EntryKind.CHECKPOINT, 1, TAKEOVER.writer, 0)
            assert await patiently(b.append, checkpoint, 1) == 2
            assert [number for number, _ in await patiently(b.read, 1, 10)] == [1, 2]
            await patiently(a.purge, 2)
            assert await patiently(a.extent) == EntryRange(2, 2)
            while not heard:
                a.say(b"{}")
                await deferLater(reactor, 0.05)
        finally:
            await a.close()
            await b.close()

    return Deferred.fromCoroutine(test())


def begin(used: ReplicationSettings) -> None:
    """Begin the shared log again, as often as the error says that this may help."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return asyncio.run(begin_again(used, TAKEOVER))
        except FyrehoseError as error:
            if "run the command again" not in str(error) or time.monotonic() > deadline:
                raise


def last_entry(used: ReplicationSettings) -> int:
    """Return the number of the last entry of the shared log, once NATS answers."""
    deadline = time.monotonic() + PATIENCE
    while (found := asyncio.run(survey(used, 0.1))).log is None:
        assert time.monotonic() < deadline, found
    return int(found.log["last"])


def test_the_nats_user_of_a_server_may_begin_the_shared_log_again(nodes: NatsNodes, tmp_path: Path) -> None:
    begin(settings(nodes, tmp_path, "c"))
    assert last_entry(settings(nodes, tmp_path, "c")) == 1


def test_the_nats_user_for_the_status_may_read_it(nodes: NatsNodes, tmp_path: Path) -> Any:
    begin(settings(nodes, tmp_path, "c"))
    assert last_entry(settings(nodes, tmp_path, "status")) == 1


#: Subjects to which only a server may subscribe.
PRIVATE = (">", "fyrehose.>", "_INBOX.>", "fyrehose.fyrehose.inbox.a.>")


async def refusals(url: str, subjects: list[str], message: bytes, refused: int) -> list[str]:
    """Publish *message* to *subjects* with the user for the status, and subscribe to private subjects.

    :param refused: how many of these publishes NATS must refuse
    :return: the errors of NATS, once it has refused all of that
    """
    said: list[str] = []

    async def note(error: Exception) -> None:
        said.append(str(error))

    client = await nats.connect(url, error_cb=note, user="status", password="xstatus")
    try:
        for subject in subjects:
            await client.publish(subject, message, reply="x")
        for pattern in PRIVATE:
            await client.subscribe(pattern)
        while len(said) < refused + len(PRIVATE):
            await asyncio.sleep(0.02)
    finally:
        await client.close()
    return said


SERVER_SENDS = [found.replace("*", "a") for found in re.findall(r'^  "(\S+)"$', USERS.read_text(), re.MULTILINE)]


def test_the_nats_user_for_the_status_may_send_nothing_to_servers(nodes: NatsNodes) -> None:
    assert len(SERVER_SENDS) == 10
    only_asked = "$JS.API.STREAM.INFO.FYREHOSE_fyrehose"
    subjects = [*SERVER_SENDS, "$JS.API.STREAM.UPDATE.FYREHOSE_fyrehose", "$JS.API.STREAM.LIST", "x"]
    said = asyncio.run(refusals(nodes.urls[0], subjects, b"{}", len(subjects) - 1))
    for subject in subjects:
        refused = any(f'permissions violation for publish to "{subject.lower()}"' in each.lower() for each in said)
        assert refused is (subject != only_asked), (subject, said)
    assert sum("permissions violation for subscription" in each.lower() for each in said) == len(PRIVATE)


def test_a_nats_connection_without_the_password_is_refused(nodes: NatsNodes, tmp_path: Path) -> None:
    for used in (ReplicationSettings(servers=tuple(nodes.urls)), settings(nodes, tmp_path, "a", "wrong")):
        with pytest.raises(FyrehoseError, match=r"(?i)authorization"):
            asyncio.run(survey(used))


def test_the_password_of_nats_is_read_again_for_each_connection(nodes: NatsNodes, tmp_path: Path) -> None:
    used = settings(nodes, tmp_path, "a", "old")
    password = used.connect_options()["password"]
    Path(used.password_file).write_text("new\n")
    assert password() == "new"
    Path(used.password_file).write_text("")
    with pytest.raises(ConfigError, match="is empty"):
        password()
