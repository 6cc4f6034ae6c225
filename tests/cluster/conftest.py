"""Fixtures of clusters: see test_member.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fyrehose.journal import scan
from fyrehose.offline.verify import verify
from tests.cluster.test_member import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster without servers; those that the test has started are stopped, and their journals verified."""
    made = Cluster(tmp_path)
    yield made
    for trouble in (made.hub.away, made.free, made.slow):
        trouble.clear()
    made.hub.loss = 0.0
    for server in made.servers.values():
        if server.up:
            server.stop()
    for server in made.servers.values():
        if scan.read_mark(server.journal.directory):
            assert not verify(server.journal.directory).problems
