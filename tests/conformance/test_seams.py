"""Use two features in one action of a user, where each alone has tests of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.guard import Guard
from fyrehose.broker.policy import parse
from fyrehose.broker.quotas import PeerLimits
from fyrehose.broker.sequencer import Sequencer
from fyrehose.broker.streams import UNLIMITED, StreamRule, StreamRules
from fyrehose.errors import PayloadTooLarge
from fyrehose.identity import Identity
from fyrehose.journal.commit import InlineWorker
from fyrehose.journal.files import Files
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.offline.backup import Backup, restore
from fyrehose.offline.mirror import Replica
from fyrehose.offline.places import place
from fyrehose.records import Run
from fyrehose.subscriptions.pool import Item
from fyrehose.subscriptions.progress import SubscriptionOptions
from fyrehose.subscriptions.table import CHECK
from fyrehose.testing import MemoryJournal

HOST = "10.0.0.1"


def policy(**rights: str) -> Any:
    return parse({"allow": [{"network": HOST, **rights}]})


@attrs.define(eq=False)
class World:
    """A server, and one peer with a policy that a reload may change."""

    journal: Any = attrs.field(factory=MemoryJournal)
    clock: Clock = attrs.field(factory=Clock)
    broker: Broker = attrs.field(init=False)
    named: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        guard = Guard(policy(publish="*", subscribe="*", consume="*"))
        self.broker = Broker(self.clock, self.journal, Sequencer(), guard=guard)
        self.broker.open()
        self.named = self.broker.identified(Identity(host=HOST)).named

    def publish(self, *payloads: bytes, stream: str = "logs.a") -> None:
        self.broker.publish([Run.of(stream, payloads, source="test")])

    def create(self, stream: str = "logs.a", **options: Any) -> Any:
        pattern = stream.endswith("*")
        return self.named.create("work", SubscriptionOptions(stream=stream, pattern=pattern, **options), 1).result

    def lease(self, shared: Any, most: int = 1) -> list[Any]:
        return [part.lease for part in self.named.lease(shared, "w", None, most, 0).result]

    def settle(self, shared: Any, leases: list[Any], kind: str = "done") -> Any:
        items = [Item(kind, each.first, each.last, each.token, each.lane.stream, 0.0) for each in leases]
        return self.named.act(shared, items, "w").result

    def payloads(self, stream: str) -> list[bytes]:
        return [bytes(payload) for run in self.broker.read(stream, 1, 1 << 20) for payload in run.payloads()]


def seqs(leases: list[Any]) -> list[tuple[str, int, int]]:
    return [(each.lane.stream, each.first, each.last) for each in leases]


def failure(deferred: Any) -> Any:
    found: list[Any] = []
    deferred.addErrback(found.append)
    return found[0].value if found else None


@pytest.mark.parametrize("subscribed", ["logs.a", "logs.*"])
def test_leases_of_a_stream_that_is_retired_end_and_its_new_records_are_leased(subscribed: str) -> None:
    world = World()
    world.publish(b"1", b"2", b"3")
    shared = world.create(subscribed, lease=10)
    leases = world.lease(shared, 2)
    world.journal.empty("logs.a")
    world.broker.retire(["logs.a"])
    world.clock.pump([CHECK] * 4)
    outcome = world.settle(shared, leases)
    assert [why for _, why in outcome.refused] in ([], ["final"], ["lease-lost"])
    world.clock.pump([CHECK] * 30)
    assert (shared.pool.open, shared.pool.leased, shared.pool.delayed) == (0, 0, 0), (
        "nothing is left of the old records"
    )
    world.publish(b"4", b"5")
    found = world.lease(shared, 9)
    assert seqs(found) == [("logs.a", 4, 5)]
    assert world.settle(shared, found).refused == []
    assert shared.places == {"logs.a": 5}


@pytest.mark.parametrize("reason", ["policy", "new-streams", "max-streams", "max-payload"])
def test_failed_record_whose_dead_letter_a_reload_forbids_is_final_and_counted(reason: str) -> None:
    """A worker that gives up a record must not get it for ever, whatever was changed since the subscription began."""
    world = World()
    world.publish(b"poison", b"good")
    shared = world.create(limit=1, dead="logs.dead")
    (lease,) = world.lease(shared)
    if reason == "policy":
        world.broker.guard.change(policy(subscribe="*", consume="*"))
    elif reason == "max-streams":
        world.broker.change_limits(UNLIMITED, PeerLimits(), 1, 100)
    else:
        limits = {"new_streams": False} if reason == "new-streams" else {"max_payload": 3}
        rules = StreamRules((StreamRule(names=["logs.dead"], **limits),))
        world.broker.change_limits(rules, PeerLimits(), 100, 100)
    assert world.settle(shared, [lease], "failed").refused == []
    progress = shared.saved.progress("logs.a")
    assert (progress.counts["dead"], progress.counts["lost"]) == (1, 1)
    assert "logs.dead" not in world.broker.streams()
    assert seqs(world.lease(shared)) == [("logs.a", 2, 2)]


def test_dead_letters_that_became_too_large_by_a_reload_wait_until_they_fit_again() -> None:
    world = World()
    world.publish(b"large record", b"x")
    shared = world.create(limit=1, dead="logs.dead")
    world.settle(shared, world.lease(shared, 2), "failed")
    world.broker.change_limits(StreamRules((StreamRule(names=["logs.a"], max_payload=3),)), PeerLimits(), 100, 100)
    for _ in range(2):
        assert isinstance(failure(world.named.redrive(shared)), PayloadTooLarge)
    assert world.payloads("logs.a") == [b"large record", b"x"]
    world.broker.change_limits(UNLIMITED, PeerLimits(), 100, 100)
    assert world.named.redrive(shared).result == (2, 0)
    assert world.payloads("logs.a") == [b"large record", b"x"] * 2
    assert seqs(world.lease(shared, 9)) == [("logs.a", 3, 4)]


def test_subscription_and_keys_of_a_restored_backup_are_those_of_its_end(tmp_path: Path) -> None:
    """Everything after the backup is forgotten as a whole: a key is stored again, a settled record leased again."""
    data, clock = tmp_path / "data", Clock()

    def opened(directory: Path) -> World:
        settings = JournalSettings(min_free=0, segment_size=4096)
        return World(FileJournal(clock, directory, settings, worker=InlineWorker()), clock)

    def keyed(world: World, key: str) -> int:
        publish = world.broker.identified(Identity(host=HOST)).publish
        found: Mapping[int, int] = publish([Run.of("logs.a", [key.encode()], source="test")], key=key).result
        return found[0]

    world = opened(data)
    assert [keyed(world, key) for key in ("one", "two", "three")] == [1, 2, 3]
    shared = world.create(lease=10)
    first, second = world.lease(shared), world.lease(shared)
    world.settle(shared, first)
    backup = tmp_path / "backup"
    with Replica(backup, Files()) as replica:
        Backup(place(str(data)), replica).run()
    world.settle(shared, second)
    assert keyed(world, "four") == 4
    world.broker.close()
    restore(place(str(backup)), tmp_path / "restored", Files())
    again = opened(tmp_path / "restored")
    assert [keyed(again, key) for key in ("one", "two", "three")] == [1, 2, 3], "each is known"
    shared = again.named.find("work")
    assert shared.places == {"logs.a": 1}, "only the first record was settled when the backup was made"
    assert seqs(again.lease(shared, 9)) in ([], [("logs.a", 3, 3)]), "the second one waits, because it was leased"
    clock.pump([1.0] * 12)
    assert {seq for _, first, last in seqs(again.lease(shared, 9)) for seq in range(first, last + 1)} >= {2}
    assert keyed(again, "four") > 4, "its number is not used again, and the message is stored"
    again.broker.close()
