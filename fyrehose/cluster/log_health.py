"""Judge the shared log: on how many NATS servers it is stored, and which command brings it back to all of them.

in: the reports of NATS about the servers that store the log
out: SharedLogStatus, for the metrics, the page, `cluster status` and `doctor`
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

import attrs
from twisted.logger import Logger

from fyrehose.cluster.shared_log import EntryRange
from fyrehose.observe.meters import NatsStatus, SharedLogStatus
from fyrehose.options import counted

log = Logger()

#: A NATS server counts as lacking entries if no report of this many seconds says that it has all of them: a healthy one
#: is behind for moments.
LACKING_S = 10.0
#: After this many seconds without a report, the log counts as lost; a leader asks for one every five.
SILENT_S = 10.0
#: What helps a NATS server that lacks entries: nothing else turns its JetStream on after its store was full.
REMEDY = (
    "start it, or a new machine with its server_name; if it runs and does not catch up, its store was full: free "
    "space, then run `systemctl restart nats` there"
)


@attrs.define(eq=False)
class LogHealth:
    """The last report of NATS about the shared log.

    :ivar nodes: the NATS servers that store the log, as in the last report
    """

    nodes: Sequence[NatsStatus] = ()
    _replicas: int = attrs.field(default=0, init=False)  #: 0: there was no report yet
    _reported: float = attrs.field(default=inf, init=False)  #: when NATS answered last
    _stored: dict[str, float] = attrs.field(factory=dict, init=False)  #: when each server was last reported as current
    _logged: int | None = attrs.field(default=None, init=False)  #: how many copies the log has mentioned; None: enough

    def begin(self, now: float) -> None:
        """Wait for reports from *now* on."""
        self._reported = now

    def report(self, found: EntryRange, now: float) -> None:
        """Take note of a report."""
        self.nodes, self._replicas, self._reported = found.nodes, found.replicas, now
        self._stored = {each.name: now if each.stores else self._stored.get(each.name, now) for each in found.nodes}

    def watch(self, now: float) -> None:
        """Log when the number of copies becomes too small, or changes, or suffices again."""
        found = self.status(now)
        if found.problem and found.copies != self._logged:
            self._logged = found.copies
            log.warn("replication: the shared log: {problem}; {remedy}", problem=found.problem, remedy=found.remedy)
        elif not found.problem and self._logged is not None:
            self._logged = None
            log.info("replication: the shared log is stored on {copies} NATS servers again", copies=found.copies)

    def status(self, now: float) -> SharedLogStatus:
        """Return the state of the shared log."""
        silent = now - self._reported
        if silent > SILENT_S:
            problem = f"NATS has not answered for {silent:.0f} s: a majority of its servers is lost, or out of reach"
            remedy = "start NATS servers until a majority runs; `fyrehose cluster status` shows which do not answer"
            return SharedLogStatus(copies=0, replicas=self._replicas, problem=problem, remedy=remedy)
        lacking = {name for name, stored in self._stored.items() if now - stored > LACKING_S}
        return judge(self.nodes, self._replicas, lacking)


def judge(nodes: Sequence[NatsStatus], replicas: int, lacking: Collection[str] | None = None) -> SharedLogStatus:
    """Return the state of the shared log according to one report of NATS.

    :param nodes: the NATS servers that store the log; empty for a single NATS server
    :param replicas: on how many NATS servers the log should be stored; 0: unknown
    :param lacking: the names of those that lack entries; None: as in the report
    """
    lacks = [each for each in nodes if (not each.stores if lacking is None else each.name in lacking)]
    copies = len(nodes) - len(lacks) if nodes else replicas
    if copies >= replicas:
        return SharedLogStatus(copies=copies, replicas=replicas)
    problem = f"stored on {copies} of {counted(replicas, 'NATS server')}"
    if not lacks:
        return SharedLogStatus(
            copies=copies,
            replicas=replicas,
            problem=f"{problem}: NATS has no further server for it",
            remedy="add a NATS server to the cluster, or start the one that is missing",
        )
    problem += "".join(
        f"; {each.name} is offline" if each.offline else f"; {each.name} lacks {counted(each.lag, 'entry', 'entries')}"
        for each in lacks
    )
    return SharedLogStatus(copies=copies, replicas=replicas, problem=problem, remedy=REMEDY)
