"""The findings of `fyrehose doctor` about a cluster, by what its servers and NATS say."""

from __future__ import annotations

from typing import Any

import pytest

from fyrehose.cli.cluster.survey import NatsServer, Survey
from fyrehose.cli.doctor.cluster import cluster
from fyrehose.cli.doctor.findings import Finding, Level
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.errors import FyrehoseError

SETTINGS = ReplicationSettings(servers=("nats://user:secret@10.0.0.1:4222",))
LEADER = {"name": "a", "state": "leader", "epoch": 3, "leaving": False}


def log_of(*current: bool) -> dict[str, Any]:
    nodes = [
        {"name": f"n{at}", "leads": at == 0, "current": each, "offline": False, "lag": 0 if each else 7}
        for at, each in enumerate(current)
    ]
    return {"first": 1, "last": 9, "bytes": 100, "replicas": len(current), "nodes": nodes}


def found_in(survey: Survey | FyrehoseError) -> Finding:
    async def ask(settings: ReplicationSettings) -> Survey:
        if isinstance(survey, FyrehoseError):
            raise survey
        return survey

    (finding,) = cluster(SETTINGS, ask)
    assert "secret" not in finding.where
    return finding


@pytest.mark.parametrize(
    ("survey", "level", "words"),
    [
        (Survey([LEADER], log_of(True, True, True)), Level.OK, "a leads, and the shared log is on 3 of 3"),
        (Survey([LEADER], log_of(True, True, False)), Level.WARNING, "stored on 2 of 3 NATS servers; n2 lacks 7"),
        (Survey([], log_of(True, True, True)), Level.ERROR, "no server leads"),
        (Survey([LEADER], None, [NatsServer("n:1", True), NatsServer("n:2", False)]), Level.ERROR, "1 of 2 NATS"),
        (FyrehoseError("no NATS server can be reached"), Level.ERROR, "no NATS server"),
    ],
)
def test_cluster_is_judged(survey: Survey | FyrehoseError, level: Level, words: str) -> None:
    finding = found_in(survey)
    assert (finding.level, finding.subject) == (level, "cluster")
    assert words in finding.what
    assert finding.advice or level is Level.OK
