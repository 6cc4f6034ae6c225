"""The service starts and stops its parts in order, also when one of them fails."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import attrs
import pytest
from twisted.application.service import MultiService, Service
from twisted.internet.address import IPv4Address, UNIXAddress
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import LogLevel, formatEvent
from zope.interface import implementer

from fyrehose.errors import Closed, FyrehoseError, JournalFailed, JournalLocked
from fyrehose.interfaces import IJournalObserver, JournalState
from fyrehose.net import TCPService
from fyrehose.protocols.figg import FiggFactory
from fyrehose.records import Run
from fyrehose.server.service import Fyrehose
from fyrehose.testing import MemoryJournal

Told = list[str]


class SlowJournal(MemoryJournal):
    """Opens and closes when the test says so."""

    def __init__(self, told: Told) -> None:
        super().__init__()
        self.told = told
        #: what was told before each call of :meth:`expect_close`
        self.expected: list[Told] = []
        self.opening: Deferred[None] = Deferred()
        self.closing: Deferred[None] = Deferred()

    def open(self, observer: IJournalObserver) -> Deferred[Any]:
        self.told.append("journal opens")
        return self.opening.addCallback(lambda _: MemoryJournal.open(self, observer))

    def cancel_open(self) -> None:
        if not self.opening.called:
            self.told.append("journal is not to open")

    def expect_close(self) -> None:
        self.expected.append(list(self.told))

    def close(self) -> Deferred[None]:
        self.told.append("journal closes")
        return self.closing.addCallback(lambda _: MemoryJournal.close(self))


class Child(Service):
    """Starts and stops when the test says so."""

    def __init__(self, name: str, told: Told) -> None:
        self.name = name
        self.told = told
        self.starting: Deferred[Any] = Deferred()
        self.stopping: Deferred[None] = Deferred()

    def startService(self) -> Deferred[Any]:
        self.told.append(f"{self.name} starts")
        return self.starting

    def stopService(self) -> Deferred[None]:
        self.told.append(f"{self.name} stops")
        return self.stopping


class Server:
    """A server whose journal and children start and stop when the test says so, and the calls that they got."""

    def __init__(self, *names: str, only: Sequence[str] = ()) -> None:
        self.told: Told = []
        self.failures: list[Exception] = []
        self.journal = SlowJournal(self.told)
        self.service = Fyrehose(
            Clock(), self.journal, on_open=lambda: self.told.append("open"), on_failure=self.failures.append
        )
        self.children = [Child(name, self.told) for name in names]
        for child in self.children:
            self.service.add_for_leader(child) if child.name in only else child.setServiceParent(self.service)

    def since(self) -> Told:
        """Return the events since the last call."""
        told = list(self.told)
        self.told.clear()
        return told

    def start(self) -> Deferred[None]:
        """Start the journal and all children without a failure."""
        self.journal.opening.callback(None)
        for child in self.children:
            child.starting.callback(None)
        return self.service.startService()


@pytest.fixture
def server() -> Server:
    return Server("a", "b")


def results(opened: Deferred[None]) -> list[Any]:
    """Return a list that gets the result of *opened*, or its exception, when it fires."""
    result: list[Any] = []
    opened.addCallbacks(result.append, lambda failure: result.append(failure.value))
    return result


class Model:
    """The calls that a server is to make, in plain steps: *only* are the children that only a leader starts."""

    def __init__(self, names: Told, only: Told, leads: bool) -> None:
        self.names, self.only, self.leads = names, only, leads
        self.told, self.expected = ["journal opens"], []
        self.running, self.starting, self.open, self.over = True, True, False, False
        self.busy: str | None = "journal"  #: what is opening or starting
        self.started: Told = []
        self.stopping: set[str] = set()
        self.failures, self.refused = 0, False

    @property
    def settled(self) -> bool:
        """Return whether nothing is being started."""
        return not (self.starting or self.busy)

    def opened(self, succeeds: bool) -> None:
        self.open = succeeds
        self.told += ["open"] * succeeds
        self.go_on() if succeeds else self.end()

    def child_started(self, name: str, succeeds: bool) -> None:
        if succeeds:
            self.started.append(name)
            return self.go_on()
        if self.starting:
            return self.end()
        self.busy, self.failures = None, self.failures + 1
        return None if self.running else self.end()

    def go_on(self) -> None:
        left = [name for name in self.names if name not in self.started and (self.leads or name not in self.only)]
        self.busy = left[0] if left and self.running else None
        if self.busy:
            self.told.append(f"{self.busy} starts")
        else:
            self.running or self.end()
            self.starting = False

    def lead(self, succeeds: bool) -> None:
        self.leads = True
        if self.running and not self.busy:
            self.go_on()

    def stop(self, succeeds: bool) -> None:
        self.told += ["journal is not to open"] * (self.busy == "journal")
        running, self.running = self.running, False
        if running and not self.busy:
            self.end()

    def end(self) -> None:
        self.running, self.busy, self.stopping = False, None, set(self.started)
        self.refused |= self.starting
        if self.open:
            self.expected.append(list(self.told))
        self.told += [f"{name} stops" for name in self.started]
        self.close()

    def child_stopped(self, name: str, succeeds: bool) -> None:
        self.stopping.remove(name)
        self.close()

    def close(self) -> None:
        if self.open and not self.stopping:
            self.told.append("journal closes")
        elif not self.stopping:
            self.closed(True)

    def closed(self, succeeds: bool) -> None:
        self.over, self.starting = True, False


@attrs.define
class Question:
    """Somebody asks when the server is open: *late* after it has stopped, which only another start would answer."""

    answer: list[Any]
    late: bool
    is_due: bool = False


Events = dict[str, tuple[Deferred[Any] | None, Callable[[bool], object]]]


def possible(server: Server, model: Model, stopped: bool, questions: int) -> Events:
    """Return the events that may come next: what they fire, and the step of the model."""
    journal, events = server.journal, Events()
    if not journal.opening.called:
        events["journal"] = (journal.opening, model.opened)
    for child in server.children:
        for what, firing, step in (
            ("starts", child.starting, model.child_started),
            ("stops", child.stopping, model.child_stopped),
        ):
            if f"{child.name} {what}" in server.told and not firing.called:
                events[f"{child.name} {what}"] = (firing, partial(step, child.name))
    if questions < 4:
        events["ask"] = (None, bool)
    if not stopped:
        events["stop"] = (None, model.stop)
    if "journal closes" in server.told and not journal.closing.called:
        events["close"] = (journal.closing, model.closed)
    if "journal closes" not in server.told and model.open and not model.leads:
        events["lead"] = (None, model.lead)
    return events


def run_in_random_order(dice: Random, seen: set[tuple[str, bool]]) -> None:
    """Start and stop a server while its parts answer in a random order, and compare it with the model."""
    names = list("abc"[: dice.randrange(4)])
    only = [name for name in names if dice.random() < 0.3]
    server, failure = Server(*names, only=only), None
    model = Model(names, only, leads=dice.random() < 0.5)
    if not model.leads:
        server.journal.follow("10.0.0.1:8117")
    opened, started, stopped = results(server.service.when_open()), results(server.service.startService()), None
    questions: list[Question] = []
    while events := possible(server, model, stopped is not None, len(questions)):
        name = dice.choice(sorted(events))
        firing, step = events[name]
        succeeds = dice.random() < 0.85 or name in ("close", "stop", "lead", "ask")
        error = FyrehoseError("no") if model.running or name != "journal" else Closed("the server was stopped")
        if not succeeds and model.starting and not name.endswith("stops"):
            failure = error
        step(succeeds)
        if firing is not None:
            firing.callback(None) if succeeds else firing.errback(error)
        elif name == "stop":
            stopped = results(server.service.stopService())
        elif name == "ask":
            late = model.settled and not model.running and not model.refused
            questions.append(Question(results(server.service.when_open()), late))
        else:
            server.journal.enter(JournalState.WRITABLE, "this server leads")
        seen.add((name.split()[-1], succeeds))
        assert (server.told, server.journal.expected) == (model.told, model.expected), "the parts are called in order"
        assert (bool(opened), bool(started)) == (not model.starting, not model.starting)
        assert not opened or opened[0] is failure or (model.refused and isinstance(opened[0], Closed))
        assert started in ([], [None if isinstance(failure, Closed) else failure])
        assert bool(stopped) == (model.over and stopped is not None), "it has stopped when the journal is closed"
        assert (len(server.failures), bool(server.service.running)) == (model.failures, model.running)
        for question in questions:
            question.is_due = question.is_due or (model.settled and not question.late)
            assert question.answer == ([opened[0] if model.refused else None] if question.is_due else [])


def test_parts_start_and_stop_as_in_a_model_whatever_the_order_of_events(logged_errors: Any) -> None:
    seen: set[tuple[str, bool]] = set()
    for seed in range(500):
        run_in_random_order(Random(seed), seen)
        logged_errors.take()
    events = ("journal", "starts", "stops", "stop", "lead", "close", "ask")
    assert seen == {*((event, True) for event in events), *((event, False) for event in events[:3])}


#: What the user may do where a port below 1024 is forbidden.
FORBIDDEN = "; use a port from 1024 on, or give the server CAP_NET_BIND_SERVICE or a socket of systemd"


def taken(port: int) -> str:
    """Return what the user may do about a port that another program has."""
    return f"; use another port, or stop the program that `ss -lnp 'sport = :{port}'` shows"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            CannotListenError(None, 80, PermissionError(13, "Permission denied")),
            f"any address port 80: Permission denied{FORBIDDEN}",
        ),
        (
            CannotListenError(None, b"/run/figg", PermissionError(13, "Permission denied")),
            "/run/figg: Permission denied; change the owner of its directory, or use another path",
        ),
        (
            OverflowError("bind(): port must be 0-65535."),
            "expected a port from 0 to 65535",
        ),
        (OSError(88, "Socket operation on non-socket"), "Socket operation on non-socket"),
    ],
)
def test_the_error_of_a_child_that_cannot_listen_is_one_line(error: Exception, said: str) -> None:
    server = Server("a")
    server.children[0].starting = fail(error)
    server.journal.opening.callback(None)
    server.journal.closing.callback(None)
    failures: list[Any] = []
    server.service.startService().addErrback(failures.append)
    assert failures[0].value.exit_status == (2 if isinstance(error, OverflowError) else 1)
    assert str(failures[0].value) == f"a cannot listen: {said}"


def test_a_child_added_later_starts_at_once_and_stops_with_the_others() -> None:
    server = Server()
    server.start()
    server.since()
    late = Child("late", server.told)
    late.setServiceParent(server.service)
    assert server.since() == ["late starts"]
    late.starting.callback(None)
    server.service.stopService()
    assert server.since() == ["late stops"]


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("succeeds", [False, True])
def test_a_stop_waits_for_a_child_that_was_added_later_and_still_starts(
    opened: bool, succeeds: bool, logged_errors: Any
) -> None:
    server = Server()
    server.start()
    server.journal.closing.callback(None)
    late, refused = Child("late", server.told), list[Any]()
    if opened:
        Deferred.fromCoroutine(server.service.open(late, only_leading=False)).addErrback(refused.append)
    else:
        late.setServiceParent(server.service)
    server.since()
    stopped = results(server.service.stopService())
    assert (server.since(), stopped) == ([], [])
    late.starting.callback(None) if succeeds else late.starting.errback(FyrehoseError("no"))
    late.stopping.callback(None)
    assert server.since() == ["late stops"] * succeeds + ["journal closes"]
    assert stopped == [None]
    assert len(refused) == (opened and not succeeds)
    logged_errors.take()


def test_a_child_added_during_the_start_is_started_last(server: Server) -> None:
    server.service.startService()
    late = Child("late", server.told)
    late.setServiceParent(server.service)
    assert server.since() == ["journal opens"]
    server.journal.opening.callback(None)
    for child in server.children:
        child.starting.callback(None)
    assert server.since() == ["open", "a starts", "b starts", "late starts"]


def test_a_child_added_later_that_cannot_start_is_reported(logged_errors: Any) -> None:
    server = Server()
    server.start()
    late = Child("late", server.told)
    late.setServiceParent(server.service)
    late.starting.errback(CannotListenError(None, 80, PermissionError(13, "Permission denied")))
    assert [str(error) for error in server.failures] == [
        f"late cannot listen: any address port 80: Permission denied{FORBIDDEN}"
    ]
    logged_errors.take()


def test_no_child_is_opened_before_the_server_runs(server: Server) -> None:
    late, refused = Child("late", server.told), list[Any]()
    for start in (lambda: None, server.service.startService):
        start()
        Deferred.fromCoroutine(server.service.open(late, only_leading=False)).addErrback(refused.append)
    assert [failure.type for failure in refused] == [Closed] * 2
    assert late not in list(server.service)


def test_a_child_that_was_removed_is_not_stopped_again(server: Server) -> None:
    server.start()
    server.since()
    server.children[0].disownServiceParent()
    assert server.since() == ["a stops"]
    server.service.stopService()
    assert server.since() == ["b stops"]


def test_a_failed_journal_is_reported(server: Server, logged_errors: Any) -> None:
    server.start()
    server.journal.enter(JournalState.FAILED, "fdatasync: Input/output error")
    assert [type(error) for error in server.failures] == [JournalFailed]
    assert isinstance(server.failures[0], FyrehoseError)
    assert server.failures[0].exit_status == 4
    logged_errors.take()


def test_a_failed_journal_stops_the_server_without_on_failure(logged_errors: Any) -> None:
    journal = MemoryJournal()
    service = Fyrehose(Clock(), journal)
    service.startService()
    journal.enter(JournalState.FAILED, "fdatasync: Input/output error")
    assert not service.running
    assert journal.state is JournalState.CLOSED
    logged_errors.take()


def test_the_server_continues_with_a_full_disk(server: Server) -> None:
    server.start()
    server.journal.enter(JournalState.READ_ONLY, "no room")
    server.journal.enter(JournalState.WRITABLE, "room")
    assert server.failures == []
    assert server.service.running


def test_a_stopped_server_can_be_started_again() -> None:
    journal = MemoryJournal()
    service = Fyrehose(Clock(), journal)
    for first in (1, 2):
        service.startService()
        published = service.broker.publish([Run.of("s", [b"x"], source="test")])
        assert published.result == (first,)
        assert service.stopService().called


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (IPv4Address("TCP", "127.0.0.1", 8119), "127.0.0.1:8119"),
        (IPv4Address("UDP", "::1", 2323), "[::1]:2323"),
        (UNIXAddress("/run/figg"), "/run/figg"),
    ],
)
def test_the_log_says_where_a_child_listens(address: Any, said: str, log_lines: list[str]) -> None:
    @implementer(IListeningPort)
    class Port:
        def getHost(self) -> Any:
            return address

    server = Server("figg")
    server.children[0].starting = succeed(Port())
    server.journal.opening.callback(None)
    server.service.startService()
    assert f"figg listens on {said}" in log_lines


def test_the_log_says_that_a_child_without_a_port_has_started(log_lines: list[str]) -> None:
    server = Server("other")
    server.children[0].starting = succeed(None)
    server.journal.opening.callback(None)
    server.service.startService()
    assert log_lines == ["other has started"]


@pytest.mark.parametrize("parent_first", [True, False], ids=["parent starts it", "added to a running parent"])
def test_failed_start_below_a_parent_is_logged_once_and_fails_when_open(
    server: Server, logged_errors: Any, parent_first: bool
) -> None:
    parent = MultiService()
    if parent_first:
        server.service.setServiceParent(parent)
    parent.startService()
    if not parent_first:
        server.service.setServiceParent(parent)
    opened = results(server.service.when_open())
    server.journal.opening.errback(JournalLocked("another process has the journal open"))
    gc.collect()
    (event,) = logged_errors.take()
    assert event["log_level"] is LogLevel.critical
    assert formatEvent(event) == "cannot start: another process has the journal open"
    assert [str(error) for error in opened] == ["another process has the journal open"]
    assert parent.stopService().called


def test_failed_start_below_a_parent_by_a_bug_is_logged_with_its_traceback(server: Server, logged_errors: Any) -> None:
    parent = MultiService()
    server.service.setServiceParent(parent)
    parent.startService()
    server.journal.opening.errback(KeyError("bug"))
    (event,) = logged_errors.take()
    assert formatEvent(event) == "cannot start, because of an unexpected error; please report this bug"
    assert event["log_failure"].check(KeyError)


def test_listener_that_cannot_listen_is_logged_by_its_protocol_and_endpoint(logged_errors: Any) -> None:
    class Taken(MemoryReactorClock):
        def listenTCP(self, port: int, *args: Any, **more: Any) -> Any:
            raise CannotListenError("127.0.0.1", port, OSError(98, "Address already in use"))

    parent, reactor = MultiService(), Taken()
    fyrehose = Fyrehose(reactor, MemoryJournal())
    endpoint = "tcp:8119:interface=127.0.0.1"
    TCPService(reactor, "figg", endpoint, FiggFactory(fyrehose.broker, reactor=reactor)).setServiceParent(fyrehose)
    fyrehose.setServiceParent(parent)
    parent.startService()
    (event,) = logged_errors.take()
    where = f"figg ({endpoint}) cannot listen: 127.0.0.1 port 8119"
    assert formatEvent(event) == f"cannot start: {where}: Address already in use{taken(8119)}"


def test_when_open_fails_with_the_reason_until_the_next_start(server: Server) -> None:
    before = results(server.service.when_open())
    server.service.startService().addErrback(lambda failure: None)
    reason = JournalLocked("in use")
    server.journal.opening.errback(reason)
    assert before == [reason]
    assert results(server.service.when_open()) == [reason]
    server.journal.opening = Deferred()
    server.service.startService()
    again = results(server.service.when_open())
    server.journal.opening.callback(None)
    for child in server.children:
        child.starting.callback(None)
    assert again == [None]
