"""The service starts and stops its parts in order, also when one of them fails."""

from __future__ import annotations

import gc
from typing import Any

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

from fyrehose.errors import Closed, ConfigError, FyrehoseError, JournalFailed, JournalLocked
from fyrehose.interfaces import IJournalObserver, JournalState
from fyrehose.net import TCPService
from fyrehose.protocols.figg import FiggFactory
from fyrehose.records import Run
from fyrehose.server.service import Fyrehose
from fyrehose.standing import Standing
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

    def __init__(self, *names: str) -> None:
        self.told: Told = []
        self.failures: list[Exception] = []
        self.journal = SlowJournal(self.told)
        self.service = Fyrehose(
            Clock(), self.journal, on_open=lambda: self.told.append("open"), on_failure=self.failures.append
        )
        self.children = [Child(name, self.told) for name in names]
        for child in self.children:
            child.setServiceParent(self.service)

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


def test_children_start_one_after_the_other_when_the_journal_is_open(server: Server) -> None:
    a, b = server.children
    started = server.service.startService()
    assert server.since() == ["journal opens"]
    server.journal.opening.callback(None)
    assert server.since() == ["open", "a starts"]
    a.starting.callback(None)
    assert server.since() == ["b starts"]
    assert not started.called
    b.starting.callback(None)
    assert started.called


def test_the_journal_closes_when_all_children_have_stopped(server: Server) -> None:
    server.start()
    server.since()
    stopped = server.service.stopService()
    assert server.journal.expected == [[]], "children wait for what the journal has to settle"
    assert server.since() == ["a stops", "b stops"]
    server.children[1].stopping.callback(None)
    assert server.since() == []
    server.children[0].stopping.callback(None)
    assert server.since() == ["journal closes"]
    assert not stopped.called
    server.journal.closing.callback(None)
    assert stopped.called
    assert server.service.stopService().called, "stopping what has stopped is no work"
    assert server.since() == []


def test_a_journal_that_does_not_open_starts_nothing(server: Server) -> None:
    failures: list[Any] = []
    server.service.startService().addErrback(failures.append)
    server.journal.opening.errback(JournalLocked("in use"))
    assert failures[0].check(JournalLocked)
    assert server.since() == ["journal opens"]
    assert not server.service.running


#: What the user may do where a port below 1024 is forbidden.
FORBIDDEN = "; use a port from 1024 on, or give the server CAP_NET_BIND_SERVICE or a socket of systemd"


def taken(port: int) -> str:
    """Return what the user may do about a port that another program has."""
    return f"; use another port, or stop the program that `ss -lnp 'sport = :{port}'` shows"


def test_a_child_that_does_not_start_stops_those_before_it(server: Server) -> None:
    a, b = server.children
    failures: list[Any] = []
    server.service.startService().addErrback(failures.append)
    server.journal.opening.callback(None)
    a.starting.callback(None)
    b.starting.errback(CannotListenError("127.0.0.1", 8119, OSError(98, "Address already in use")))
    assert server.since() == ["journal opens", "open", "a starts", "b starts", "a stops"]
    a.stopping.callback(None)
    assert not failures
    server.journal.closing.callback(None)
    assert failures[0].check(FyrehoseError)
    assert str(failures[0].value) == f"b cannot listen: 127.0.0.1 port 8119: Address already in use{taken(8119)}"


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


def test_a_stop_while_the_journal_opens_waits_and_closes_it(server: Server) -> None:
    started = server.service.startService()
    stopped = server.service.stopService()
    assert not stopped.called
    server.journal.opening.callback(None)
    assert server.since() == ["journal opens", "journal is not to open", "open", "journal closes"]
    server.journal.closing.callback(None)
    assert started.called
    assert stopped.called


def test_stopping_before_the_journal_is_recovered_is_no_failure(server: Server) -> None:
    started = server.service.startService()
    opened = results(server.service.when_open())
    stopped = server.service.stopService()
    server.journal.opening.errback(Closed("the server was stopped while it started"))
    assert server.since() == ["journal opens", "journal is not to open"]
    assert started.result is None
    assert stopped.result is None
    assert isinstance(opened[0], Closed)


def test_a_stop_while_a_child_starts_waits_and_stops_it(server: Server) -> None:
    server.service.startService()
    server.journal.opening.callback(None)
    stopped = server.service.stopService()
    server.since()
    server.children[0].starting.callback(None)
    assert server.since() == ["a stops"]
    server.children[0].stopping.callback(None)
    server.journal.closing.callback(None)
    assert stopped.called


def test_a_child_that_fails_to_stop_does_not_block_the_others(server: Server, logged_errors: Any) -> None:
    server.start()
    server.since()
    stopped = server.service.stopService()
    server.children[0].stopping.errback(RuntimeError("no"))
    server.children[1].stopping.callback(None)
    server.journal.closing.callback(None)
    assert stopped.called
    assert server.since()[-1] == "journal closes"
    assert len(logged_errors.take()) == 1


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


def test_a_failed_start_leaves_no_unhandled_failure() -> None:
    server = Server("a")
    server.children[0].starting = fail(ConfigError("no"))
    server.journal.opening.callback(None)
    server.journal.closing.callback(None)
    failures: list[Any] = []
    server.service.startService().addErrback(failures.append)
    assert failures[0].check(ConfigError)
    assert server.service.stopService().called


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


def results(opened: Deferred[None]) -> list[Any]:
    """Return a list that gets the result of *opened*, or its exception, when it fires."""
    result: list[Any] = []
    opened.addCallbacks(result.append, lambda failure: result.append(failure.value))
    return result


def test_when_open_fires_once_every_listener_accepts(server: Server) -> None:
    a, b = server.children
    before = results(server.service.when_open())
    server.service.startService()
    during = results(server.service.when_open())
    server.journal.opening.callback(None)
    a.starting.callback(None)
    assert (before, during) == ([], [])
    b.starting.callback(None)
    assert (before, during) == ([None], [None])
    assert results(server.service.when_open()) == [None]


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


def test_when_open_fails_if_the_server_stops_while_it_starts(server: Server) -> None:
    opened = results(server.service.when_open())
    server.service.startService()
    server.service.stopService()
    assert opened == []
    server.journal.opening.callback(None)
    (reason,) = opened
    assert isinstance(reason, Closed)


def following(server: Server) -> Child:
    """Make *server* a follower of a cluster; return a child of it that only a leader starts."""
    server.journal.follow("10.0.0.1:8117")
    child = Child("c", server.told)
    server.service.add_for_leader(child)
    return child


def test_follower_starts_listeners_of_publishers_when_it_leads(server: Server, log_lines: list[str]) -> None:
    child = following(server)
    started = server.start()
    assert started.called
    assert server.since() == ["journal opens", "open", "a starts", "b starts"]
    assert "c stays closed until this server leads" in log_lines[-1]
    server.journal.enter(JournalState.WRITABLE, "this server leads")
    assert server.since() == ["c starts"]
    stopped = server.service.stopService()
    assert server.since() == [], "the stop waits for the start in progress"
    child.starting.callback(None)
    assert server.since() == ["a stops", "b stops", "c stops"]
    for each in (*server.children, child):
        each.stopping.callback(None)
    server.journal.closing.callback(None)
    assert stopped.called


def test_follower_that_stops_does_not_stop_what_was_never_started(server: Server) -> None:
    following(server)
    server.start()
    server.since()
    server.service.stopService()
    assert server.since() == ["a stops", "b stops"]
    server.journal.enter(JournalState.WRITABLE, "this server leads")
    assert server.since() == []


def test_listener_that_cannot_open_when_the_server_leads_ends_the_server(server: Server, logged_errors: Any) -> None:
    child = following(server)
    server.start()
    server.journal.enter(JournalState.WRITABLE, "this server leads")
    child.starting.errback(CannotListenError("127.0.0.1", 5044, OSError(98, "Address already in use")))
    assert [str(failure) for failure in server.failures] == [
        f"c cannot listen: 127.0.0.1 port 5044: Address already in use{taken(5044)}"
    ]
    assert len(logged_errors.take()) == 1


def test_server_that_is_alone_starts_listeners_of_publishers_at_once(server: Server) -> None:
    child = following(server)
    server.journal.cluster = Standing()
    child.starting.callback(None)
    server.start()
    assert server.since()[-1] == "c starts"
