"""Reloading: what changes while the server runs, what needs a restart, and that nothing changes after an error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from cryptography.x509 import load_pem_x509_certificate
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import CannotListenError

from fyrehose.broker.policy import LOOPBACK
from fyrehose.errors import TooManyNamedSubscriptions, TooManySubscriptions
from fyrehose.identity import Action, Identity
from fyrehose.journal.settings import JournalSettings
from fyrehose.net.connections import descriptors_for
from fyrehose.options import typed
from fyrehose.server.config import Config, ServerSettings
from fyrehose.server.reload_answer import ANSWER, ReloadAnswer, read_answer
from fyrehose.server.reloading import CHANGEABLE, Reloading
from fyrehose.server.tap import Options, ServerProcess
from fyrehose.testing import RecordingSink
from fyrehose.testing.certificates import Authority
from tests.doubles.own_process import Ending, ServedJournal, StoppingReactor

PAGE = '[listen]\nhttp = "tcp:8117:interface=127.0.0.1"\nfigg = "tcp:8119:interface=127.0.0.1"\n'


#: A listener with a certificate and one with a token, for the end of PAGE.
ENCRYPTED = """
"figg/tls" = "tcp:8129:interface=127.0.0.1"
admin = "tcp:8118:interface=127.0.0.1"
[option."figg/tls"]
tls-certificate = "own.pem"
[option.admin]
token-file = "token"
"""


class Reactor(StoppingReactor):
    """A reactor on which listening fails for ports that are in use."""

    taken: tuple[int, ...] = ()
    #: called before each attempt to listen
    before: Callable[[], object] = staticmethod(lambda: None)

    def listenTCP(self, port: int, *args: Any, **more: Any) -> Any:
        self.before()
        if port in self.taken:
            raise CannotListenError("127.0.0.1", port, OSError(98, "Address already in use"))
        return super().listenTCP(port, *args, **more)


def journal(reactor: Any, directory: Path, settings: JournalSettings, stream_age: Any, **_: Any) -> ServedJournal:
    """Return a journal in memory that keeps the settings with which a server begins."""
    made = ServedJournal()
    made.change(settings, stream_age)
    return made


class World:
    """A server with a configuration file, without sockets."""

    def __init__(self, folder: Path, logged_errors: Any, page: str = PAGE) -> None:
        self.folder, self.logged_errors = folder, logged_errors
        folder.mkdir(exist_ok=True)
        self.write(page)
        self.reactor = Reactor()
        options = Options()
        options.parseOptions(["--config", str(folder / "fyrehose.toml"), "--data-dir", str(folder / "data")])
        self.descriptors = 200_000  #: how many file descriptors connections may use
        own = attrs.evolve(Ending().own, descriptors=lambda: self.descriptors)
        self.server = ServerProcess(
            self.reactor,
            options.resolved,
            reread=options.resolve,
            own=own,
            make_journal=journal,
        )
        (folder / "data").mkdir()
        self.server.fyrehose.startService()

    def write(self, text: str, name: str = "fyrehose.toml") -> None:
        (self.folder / name).write_text(text)

    def reload(self, text: str | None = None) -> ReloadAnswer:
        if text is not None:
            self.write(text)
        answers: list[ReloadAnswer] = []
        self.server.reload().addCallback(answers.append)
        assert answers, "it has not answered"
        assert bool(self.logged_errors.take()) == bool(answers[0].error), "only a refusal is logged as an error"
        found = read_answer(self.folder / "data")
        assert found is not None
        assert found[1] == answers[0], "the file has the same answer"
        return answers[0]

    @property
    def ports(self) -> list[int]:
        return sorted(port for port, *_ in self.reactor.tcpServers)

    def settings(self, name: str) -> Any:
        return next(
            each for key, each in self.server.stack.listeners.open.items() if key[0] == name
        ).service.factory.settings


@pytest.fixture
def world(tmp_path: Path, logged_errors: Any) -> Iterator[World]:
    made = World(tmp_path, logged_errors)
    yield made
    made.server.fyrehose.stopService()


def in_use(world: World) -> dict[str, Any]:
    """Return the values of the options that a reload may change, and two limits of streams, as the server uses them."""
    broker, journal = world.server.fyrehose.broker, world.server.stack.journal
    return {f"journal.{name}": getattr(journal.settings, name) for name in CHANGEABLE["journal"]} | {
        "server.max_streams": broker.max_streams,
        "server.streams_per_address": broker.limits.streams,
        "server.subscriptions_per_address": broker.subscriptions.most,
        "server.named_subscriptions": broker.table.room.most,
        "server.keys_kept": broker.once.kept,
        "server.drain": world.server.config.server.drain,
        "stream.keep_age": journal.stream_age and journal.stream_age("s"),
        "stream.max_payload": broker.rules.max_payload("s"),
    }


def test_a_reload_of_the_same_files_changes_nothing(world: World) -> None:
    assert world.reload() == ReloadAnswer()
    assert list(world.reload().lines()) == ["nothing has changed"]


def test_limits_and_origins_of_a_listener_change_for_new_connections(world: World) -> None:
    answer = world.reload(PAGE + '[option.http]\nmax-payload = "1MiB"\norigins = "https://dash.example"\n')
    assert answer == ReloadAnswer(
        changed=("http.max-payload: 16MiB -> 1MiB", "http.origins: none -> https://dash.example")
    )
    service = world.server.stack.listeners.open["http", "tcp:8117:interface=127.0.0.1"].service
    assert service.factory.limits.message == 1 << 20
    assert service.factory.origins.allowed == ("https://dash.example",)
    assert world.reload(PAGE).changed[0] == "http.max-payload: 1MiB -> 16MiB"


def test_listeners_stay_within_the_file_descriptors_after_a_reload(world: World) -> None:
    world.descriptors = 1_000
    assert world.reload(PAGE + "[option.http]\nmax-connections = 20000\n").changed == (
        "http.max-connections: 10000 -> 20000",
    )
    most = [world.settings(name).max_connections for name in ("http", "figg")]
    assert sum(map(descriptors_for, most)) <= 1_000, f"connections of {most} need more than 1,000 descriptors"


def test_limits_of_the_server_and_retention_change_at_once(world: World) -> None:
    answer = world.reload(
        PAGE + '[option.server]\nmax-streams = 7\nsubscriptions-per-address = 3\n[option.journal]\nkeep-age = "7d"\n'
        '[[stream]]\nname = "debug.*"\nkeep-age = "1d"\nmax-payload = 10\n'
    )
    assert answer.changed == (
        "journal.keep-age: 0 -> 7d",
        "server.max-streams: 100000 -> 7",
        "server.subscriptions-per-address: 50000 -> 3",
        "[[stream]]: 1 table, changed",
    )
    broker, journal = world.server.fyrehose.broker, world.server.stack.journal
    assert broker.rules.max_payload("debug.x") == 10
    assert journal.stream_age is not None
    assert journal.stream_age("debug.x") == 86400


def test_reloaded_limits_of_peers_apply_to_later_requests(world: World) -> None:
    peer = world.server.fyrehose.broker.identified(Identity())
    peer.subscribe("a", 0, RecordingSink())
    world.reload(PAGE + "[option.server]\nsubscriptions-per-address = 1\nnamed-subscriptions = 1\n")
    with pytest.raises(TooManySubscriptions, match="limit of 1 subscriptions"):
        peer.subscribe("a", 0, RecordingSink())
    assert peer.named.open("one", "a", 0).called
    refused: list[Any] = []
    maybeDeferred(peer.named.open, "two", "a", 0).addErrback(refused.append)
    assert isinstance(refused[0].value, TooManyNamedSubscriptions)
    world.reload(PAGE)
    peer.subscribe("a", 0, RecordingSink())


def test_every_option_that_a_reload_may_change_is_in_use_after_a_reload_and_after_a_start(
    world: World, tmp_path: Path, logged_errors: Any
) -> None:
    before, text = in_use(world), PAGE
    for scope, kind in (("journal", JournalSettings), ("server", ServerSettings)):
        text += f"[option.{scope}]\n"
        for name in CHANGEABLE[scope]:
            whole = attrs.fields_dict(kind)[name].type in (int, "int")  # the text, until something has resolved it
            text += f"{typed(name)} = " + ("7000\n" if whole else '"7000s"\n')
    text += '[[stream]]\nname = "s"\nkeep-age = "7000s"\nmax-payload = 7000\n'
    changeable = {f"{scope}.{name}" for scope in CHANGEABLE for name in CHANGEABLE[scope]}
    assert {*before, "server.retire_idle"} == changeable | {"stream.keep_age", "stream.max_payload"}
    assert not world.reload(text).error
    started = World(tmp_path / "started", logged_errors, text)
    for server, when in ((world, "after a reload"), (started, "after a start")):
        assert in_use(server) == dict.fromkeys(before, 7000), f"an option has another value {when}"
    started.server.fyrehose.stopService()
    world.reload(PAGE)
    assert in_use(world) == before


#: Options with values besides their defaults, and whether a reload changes them.
SEVERAL = {
    "server.max-streams": ((7, 9), True),
    "server.memory": ((4194304, 8388608), False),
    "journal.keep-bytes": (("1GiB", "2GiB"), True),
    "journal.durability": (("never", "interval:5000"), False),
    "http.max-payload": (("1MiB", "2MiB"), True),
    "admin.metric-streams": ((3, 4), False),
    "backbone.push-rate": ((7, 8), True),
    "backbone.total-length": (("yes", "no"), True),
    "backbone.stream": (("other", "third"), False),
}


def test_a_reload_names_what_differs_from_what_is_in_force(world: World) -> None:
    dice, used = Random(52), dict.fromkeys(SEVERAL)
    used["backbone.total-length"] = "no"
    page = PAGE + 'admin = "tcp:8118:interface=127.0.0.1"\nbackbone = "udp:2323:interface=127.0.0.1"\n'
    world.reload(page)
    for step in range(12):
        wanted = {name: dice.choice((None, used[name], *values)) for name, (values, _) in SEVERAL.items()}
        wanted["backbone.total-length"] = wanted["backbone.total-length"] or "no"
        text = page
        for scope in ("server", "journal", "http", "admin", "backbone"):
            given = {name.partition(".")[2]: value for name, value in wanted.items() if name.startswith(f"{scope}.")}
            lines = (f"{name} = {json.dumps(value)}\n" for name, value in given.items() if value is not None)
            text += f"[option.{scope}]\n{''.join(lines)}"
        answer = world.reload(text)
        differ = {name for name in SEVERAL if wanted[name] != used[name]}
        changes = {name for name in differ if SEVERAL[name][1]}
        assert {line.partition(":")[0] for line in answer.changed} == changes, f"step {step}: wrong changes {answer}"
        restart = {line.removesuffix(" needs a restart") for line in answer.restart}
        assert restart == differ - changes, f"step {step}: an option is not in force, and the answer does not say so"
        used.update((name, wanted[name]) for name in changes)
    assert world.server.config.journal.durability.mode == "batch"


def test_listeners_open_and_close(world: World) -> None:
    assert world.ports == [8117, 8119]
    answer = world.reload(
        '[listen]\nhttp = "tcp:8117:interface=127.0.0.1"\n"lumberjack/b" = "tcp:5044:interface=127.0.0.1"\n'
    )
    assert answer.changed == (
        "closed figg=tcp:8119:interface=127.0.0.1",
        "opened lumberjack/b=tcp:5044:interface=127.0.0.1",
    )
    assert [each.name for each in world.server.fyrehose.broker.listeners] == ["http", "lumberjack/b"]
    assert 5044 in world.ports
    assert len(list(world.server.fyrehose)) == 2


def test_nothing_changes_if_a_port_is_taken(world: World) -> None:
    before = in_use(world)
    world.reactor.taken = (5046,)
    new = "".join(f'"lumberjack/{port}" = "tcp:{port}:interface=127.0.0.1"\n' for port in (5044, 5045, 5046, 5047))
    answer = world.reload(f'[listen]\n{new}[option.journal]\nkeep-age = "7d"\n')
    at = "127.0.0.1 port 5046: Address already in use; use another port, or stop "
    assert answer.error.startswith(f"lumberjack/5046 (tcp:5046:interface=127.0.0.1) cannot listen: {at}")
    assert [each.name for each in world.server.fyrehose.broker.listeners] == ["http", "figg"]
    assert len(list(world.server.fyrehose)) == 2, "those that were opened are closed again"
    assert in_use(world) == before


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[listen", "not TOML"),
        (PAGE + '[option.http]\nmax-payload = "0"\n', "max-payload must be from 1"),
        (PAGE.replace(":interface=127.0.0.1", "", 1), "refusing to listen on a public address"),
        (PAGE + '[option.http]\ntls-certificate = "none.pem"\n[option.figg]\nmax-connections = 1\n', None),
        ('policy = "none.toml"\n' + PAGE, "cannot read --policy"),
        (PAGE + "[[stream]]\nname = 7\nkeep-age = 1\n", "expected a pattern"),
    ],
)
def test_a_broken_file_changes_nothing(world: World, text: str, error: str | None) -> None:
    before = in_use(world)
    text = text.replace("[listen]\n", '[listen]\n"lumberjack/b" = "tcp:5044:interface=127.0.0.1"\n')
    answer = world.reload(text)
    if error is None:
        assert "http.tls-certificate needs a restart" in answer.restart
        return
    assert error in answer.error
    assert not answer.changed
    assert next(answer.lines()).startswith("nothing was changed: ")
    assert world.ports == [8117, 8119]
    assert in_use(world) == before
    assert world.reload(PAGE) == ReloadAnswer()


def test_the_policy_is_read_again_and_ends_what_it_forbids(world: World) -> None:
    rule = '[[allow]]\nnetwork = "10.0.0.0/8"\npublish = "{}"\n'
    world.write(rule.format("x"), "policy.toml")
    answer = world.reload('policy = "policy.toml"\n' + PAGE)
    assert answer.changed == ("policy: 1 rule, changed",)
    stranger = world.server.fyrehose.broker.identified(Identity(host="10.1.1.1"))
    assert stranger.permits(Action.PUBLISH, "x")
    world.write(rule.format("y"), "policy.toml")
    assert world.reload().changed == ("policy: 1 rule, changed",)
    assert not stranger.permits(Action.PUBLISH, "x")
    assert world.server.fyrehose.broker.listeners[0].access() == "by policy (1 rule)"
    assert world.reload(PAGE).changed == ("policy: none, only this machine has access",)
    assert world.server.fyrehose.broker.guard.policy is LOOPBACK


def test_a_public_listener_keeps_its_policy(world: World) -> None:
    """A reload without the policy would leave a listener open that a start refuses."""
    public = PAGE.replace("8117:interface=127.0.0.1", "8117")
    world.write('[[allow]]\nnetwork = "10.0.0.0/8"\npublish = "x"\n', "policy.toml")
    assert not world.reload('policy = "policy.toml"\n' + public).error
    policy = world.server.fyrehose.broker.guard.policy
    answer = world.reload(public)
    assert "refusing to listen on a public address without an access policy" in answer.error
    assert (answer.changed, world.server.fyrehose.broker.guard.policy) == ((), policy)


def test_idle_streams_are_retired_after_a_reload_that_enables_it(world: World) -> None:
    world.reload(PAGE + '[option.server]\nretire-idle = "1d"\n')
    names = [service.name for service in world.server.fyrehose]
    assert "idle streams" in names
    world.reload(PAGE)
    assert "idle streams" not in [service.name for service in world.server.fyrehose]


def test_a_replaced_file_is_named_even_if_no_option_differs(world: World, log_lines: list[str]) -> None:
    authority, own = Authority(world.folder), world.folder / "own.pem"
    renewed(authority, own)
    world.write("0123456789abcdef\n", "token")
    world.reload(PAGE + ENCRYPTED)
    assert world.reload() == ReloadAnswer()
    world.write("0123456789abcdef\na comment\n", "token")
    assert world.reload() == ReloadAnswer()
    world.write("fedcba9876543210\n", "token")
    assert world.reload().changed == ("admin.token-file: the file has another content",)
    about = renewed(authority, own)
    log_lines.clear()
    assert world.reload().changed == (f"figg/tls.tls-certificate: {about}",)
    assert log_lines == [f"reload: figg/tls.tls-certificate: {about}", "reloaded"]
    assert world.reload() == ReloadAnswer()


def renewed(authority: Authority, file: Path) -> str:
    """Write another certificate and its key into *file*; return the certificate as a reload describes it."""
    issued = authority.issue("server", "localhost")
    data = Path(issued.certificate).read_bytes()
    file.write_bytes(data + Path(issued.key).read_bytes())
    certificate = load_pem_x509_certificate(data)
    ends = certificate.not_valid_after_utc.date().isoformat()
    return f"serial {certificate.serial_number:X}, until {ends}"


def test_a_replaced_file_that_is_read_only_at_a_start_needs_a_restart(world: World) -> None:
    authority, own = Authority(world.folder), world.folder / "own.pem"
    (world.folder / "nats.password").write_text("one")
    renewed(authority, own)
    world.write(
        '[listen]\nfigg = "ssl:8119:privateKey=own.pem:interface=127.0.0.1"\n[replication]\nname = "a"\n'
        'servers = "tls://127.0.0.1:4222"\ntls-certificate = "own.pem"\ntls-key = "own.pem"\n'
        'tls-authorities = "nowhere.pem"\nuser = "a"\npassword-file = "nats.password"\n'
    )

    def read() -> Config:
        options = Options()
        options.parseOptions(["--config", str(world.folder / "fyrehose.toml")])
        return options.resolve()

    reloading = Reloading(read(), read, world.server.stack)

    def reload() -> ReloadAnswer:
        answers: list[ReloadAnswer] = []
        Deferred.fromCoroutine(reloading.reload()).addCallback(answers.append)
        return answers[0]

    reload()  # opens the listener, and closes those of PAGE
    assert reload() == ReloadAnswer()
    about = renewed(authority, own)
    (world.folder / "nats.password").write_text("another")
    answer = reload()
    assert answer.changed == ("replication.password-file: the file has another content",)
    of_ssl = f"figg.privateKey={own}"
    assert sorted(answer.restart) == [
        f"{name}: {about}; needs a restart" for name in (of_ssl, "replication.tls-certificate", "replication.tls-key")
    ]
    assert reload() == attrs.evolve(answer, changed=()), "what needs a restart is said again"
    (world.folder / "nats.password").unlink()
    assert reload().changed == ("replication.password-file: cannot be read: No such file or directory",)


@pytest.mark.parametrize("fails", [False, True])
def test_files_that_vanish_while_a_reload_opens_a_listener_were_read_before(world: World, fails: bool) -> None:
    authority, own = Authority(world.folder), world.folder / "own.pem"
    renewed(authority, own)
    (world.folder / "token").write_text("t" * 32)
    world.reload(PAGE + ENCRYPTED)
    tls = world.server.stack.listeners.open["figg/tls", "tcp:8129:interface=127.0.0.1"].service
    before = tls.contents
    about = renewed(authority, own)
    world.reactor.before = lambda: [path.unlink(missing_ok=True) for path in (own, world.folder / "token")]
    world.reactor.taken = (8117,) if fails else ()
    opened = '"http/more" = "tcp:8117:interface=127.0.0.2"\n'
    answer = world.reload(PAGE + opened + ENCRYPTED)
    assert bool(answer.error) == fails
    assert (tls.contents == before) == fails, "all changes are made, or none"
    assert fails or f"figg/tls.tls-certificate: {about}" in answer.changed


def test_a_failed_reload_is_not_logged_as_success(world: World, log_lines: list[str]) -> None:
    world.reload("[listen")
    (line,) = log_lines
    assert line.startswith(f"reload: nothing was changed: invalid --config {world.folder}/fyrehose.toml")


def test_reloads_are_counted_and_logged(world: World, log_lines: list[str]) -> None:
    world.reload(PAGE + '[option.journal]\nkeep-age = "7d"\n')
    assert log_lines == ["reload: journal.keep-age: 0 -> 7d", "reloaded"]
    world.reload("[listen")
    counts = world.server.fyrehose.broker.counters.counts
    assert (counts["server", "reloads"], counts["server", "reload-failures"]) == (2, 1)


def test_an_unexpected_error_is_written_into_the_answer(world: World) -> None:
    def broken() -> Any:
        raise RuntimeError("a bug")

    world.server.reloading.reread = broken
    assert world.reload().error.startswith("unexpected error: a bug")


def test_a_damaged_answer_is_reported_with_its_path(world: World) -> None:
    (world.folder / "data" / ANSWER).write_text("{")
    with pytest.raises(Exception, match="is damaged"):
        read_answer(world.folder / "data")
    world.reload()
    content = json.loads((world.folder / "data" / ANSWER).read_text())
    assert content["pid"] == os.getpid()


def test_log_level_changes_at_once(world: World) -> None:
    levels: list[str] = []
    world.server.reloading.log_from = levels.append
    assert world.reload('log-level = "warn"\n' + PAGE).changed == ("log-level: info -> warn",)
    assert world.server.config.log_level == "warn"
    assert world.reload('log-level = "loud"\n' + PAGE).error.endswith(
        "line 1: log-level is 'loud'; expected debug, info, warn, error or critical"
    )
    assert levels[-1] == "warn"
