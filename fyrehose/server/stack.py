"""The journal, the broker and the listeners of a server, which are opened and closed together.

Config -> FileJournal -> Fyrehose (with its broker) -> listeners as its children

A closed stack is not opened again; instead, the process makes another stack (see :mod:`fyrehose.server.tap`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
from twisted.application.service import IService
from twisted.logger import Logger

from fyrehose.errors import ConfigError
from fyrehose.imports import NATS
from fyrehose.journal.commit import Far
from fyrehose.journal.journal import FileJournal
from fyrehose.net.end_of_turn import TurnEnds
from fyrehose.net.inflight import InFlight
from fyrehose.net.turns import Turns
from fyrehose.observe.counters import Counters
from fyrehose.observe.meters import Stalls
from fyrehose.server.config import Config
from fyrehose.server.idle import IdleStreams
from fyrehose.server.listeners import Listeners
from fyrehose.server.process import raise_descriptor_limit
from fyrehose.server.service import Fyrehose

log = Logger()


@attrs.define(eq=False)
class Stack:
    """A journal with its broker and listeners, which are opened and closed together.

    :ivar counters: the counters of the process, which keep their values when it opens another stack
    :ivar stalls: iterations of the reactor that took too long, since the process started
    :ivar on_failure: called with the reason when the server cannot continue
    :ivar on_reopen: called with the reason when the server can continue only with another stack
    :ivar descriptors: returns how many file descriptors connections may use
    :ivar make_journal: makes the journal of a server outside a cluster, like :class:`.FileJournal`
    """

    reactor: Any
    config: Config
    counters: Counters = attrs.field(factory=Counters)
    stalls: Stalls = attrs.field(factory=Stalls)
    on_failure: Callable[[Exception], None] = lambda reason: None
    on_reopen: Callable[[str], object] = lambda reason: None
    descriptors: Callable[[], int] = raise_descriptor_limit
    make_journal: Callable[..., FileJournal] = FileJournal
    journal: FileJournal = attrs.field(init=False)
    fyrehose: Fyrehose = attrs.field(init=False)
    listeners: Listeners = attrs.field(init=False)
    _idle: Any = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        config, turns = self.config, Turns(self.reactor)
        self.journal = self._make_journal(turns, config.streams.keep_age if config.streams.expire else None)
        self.fyrehose = Fyrehose(
            self.reactor,
            self.journal,
            max_streams=config.server.max_streams,
            named_subscriptions=config.server.named_subscriptions,
            keys_kept=config.server.keys_kept,
            limits=config.server.peer_limits,
            rules=config.streams,
            budget=InFlight(limit=config.server.memory, each=config.server.memory_per_connection),
            policy=config.policy,
            counters=self.counters,
            stalls=self.stalls,
            turns=turns,
            on_open=self._opened,
            on_failure=self.on_failure,
        )
        self._watch_listener()
        self.listeners = Listeners(self.reactor, self.fyrehose)
        self.retire_idle(config.server.retire_idle)
        reduced = self.listeners.within_descriptors(config.listeners, self.descriptors())
        for listener, within in zip(config.listeners, reduced, strict=True):
            service = self.listeners.make(within, config)
            if service is not None:
                self.listeners.add(listener, service)

    def _make_journal(self, turns: Turns, stream_age: Callable[[str], float] | None) -> FileJournal:
        config, cluster = self.config, self.config.replication
        if cluster is None:
            at_end = TurnEnds(self.reactor).call
            options = {"stream_age": stream_age, "at_turn_end": at_end, "turns": turns}
            return self.make_journal(self.reactor, config.data_dir, config.journal, **options)
        NATS.require("replication")
        # These modules are imported late, because a server outside of a cluster starts sooner without them.
        from fyrehose.cluster.jetstream import JetStreamLog
        from fyrehose.cluster.replicated import replicated
        from fyrehose.server.journal_copy import copy_journal

        connect = cluster.connect_options()
        shared_log = JetStreamLog(
            self.reactor, cluster.servers, cluster.cluster, cluster.replicas, cluster.log_limit, options=connect
        )
        return replicated(
            self.reactor,
            config.data_dir,
            config.journal,
            stream_age=stream_age,
            turns=turns,
            pace=Far(),  # a round trip to the other servers takes longer than handing a commit to the writer thread
            replication=cluster,
            shared_log=shared_log,
            on_reopen=self.on_reopen,
            on_removed=lambda reason: self.on_failure(ConfigError(reason)),
            copy=partial(copy_journal, cluster.token_file),
        )

    def _opened(self) -> None:
        assert self.journal.report is not None
        for line in self.journal.report.lines():
            log.info("journal: {line}", line=line)

    def _watch_listener(self) -> None:
        cluster = self.config.replication
        if cluster is not None and cluster.address:
            from fyrehose.cluster.gate import ReplicatedGate
            from fyrehose.server.listener_probe import ListenerProbe, endpoint_of

            endpoint, gate = endpoint_of(self.reactor, cluster.address), self.journal.gate
            assert isinstance(gate, ReplicatedGate), "a server of a cluster has such a gate"
            probe: Any = ListenerProbe(self.reactor, endpoint, gate, cluster.address)
            probe.setServiceParent(IService(self.fyrehose))

    def retire_idle(self, seconds: float) -> None:
        """Begin to retire streams that have been empty for *seconds*; 0: retire no empty streams."""
        if self._idle is not None:
            self.fyrehose.removeService(self._idle)
            self._idle = None
        if seconds:
            self._idle = IdleStreams(self.reactor, self.fyrehose.broker, seconds)
            self._idle.setName("idle streams")
            self._idle.setServiceParent(IService(self.fyrehose))
