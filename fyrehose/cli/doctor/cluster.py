"""The findings of `fyrehose doctor` about the cluster of a server: who leads, and where the shared log is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fyrehose.cli.cluster.survey import Survey, health, leader_of, refusal, survey, weakness
from fyrehose.cli.doctor.findings import Finding, Level
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.errors import FyrehoseError
from fyrehose.imports import NATS

#: The subject of these findings.
CLUSTER = "cluster"


def cluster(
    settings: ReplicationSettings, ask: Callable[[ReplicationSettings], Coroutine[Any, Any, Survey]] = survey
) -> Iterator[Finding]:
    """Report whether the cluster accepts messages, and on how many NATS servers they are stored.

    :param ask: listens to the cluster's servers and asks NATS
    """
    where = settings.shown_servers
    try:
        NATS.require("asking the cluster")
        found = asyncio.run(ask(settings))
    except FyrehoseError as error:
        yield Finding(Level.ERROR, CLUSTER, str(error), where, "start the NATS servers, or correct [replication]")
        return
    if why := refusal(found):
        yield Finding(Level.ERROR, CLUSTER, why, where, "`fyrehose cluster status` shows every server")
        return
    log = weakness(found)
    if log.problem:
        yield Finding(Level.WARNING, CLUSTER, f"the shared log is {log.problem}", where, log.remedy)
    else:
        leads, state = leader_of(found.servers) or {}, health(found.log or {"replicas": 0})
        what = f"{leads['name']} leads, and the shared log is on {state.copies} of {state.replicas} NATS servers"
        yield Finding(Level.OK, CLUSTER, what, where)
