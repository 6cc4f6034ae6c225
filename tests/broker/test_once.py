"""A publish with a key is stored once: repetitions get the same answer, over crashes, too."""

from __future__ import annotations

import json
import random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from fyrehose.broker import once
from fyrehose.broker.broker import Broker
from fyrehose.broker.guard import Guard
from fyrehose.broker.once import ENTRY, SOURCE, STREAM, Known
from fyrehose.broker.policy import parse
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import Forbidden, KeyReused, NoRoomForKey, OutcomeUnknown, PayloadTooLarge, ReadOnly
from fyrehose.identity import Identity, digest
from fyrehose.interfaces import JournalState
from fyrehose.net.inflight import InFlight
from fyrehose.records import Run
from fyrehose.testing import MemoryJournal


def make(journal: MemoryJournal | None = None, **settings: Any) -> Broker:
    broker = Broker(Clock(), journal or MemoryJournal(), Sequencer(), **settings)
    broker.open()
    return broker


def draft(*payloads: bytes, stream: str = "s") -> Run:
    return Run.of(stream, payloads, source="test")


def failure(published: Any) -> Any:
    failures: list[Any] = []
    published.addErrback(failures.append)
    return failures[0].value if failures else None


def publish_once(broker: Any, runs: list[Run], key: str) -> Deferred[int]:
    """Publish *runs* with *key*; return a Deferred that fires with the number of the first message."""
    published: Deferred[tuple[int, ...]] = broker.publish(runs, key=key)
    return published.addCallback(lambda firsts: firsts[0])


def test_a_publish_with_a_key_and_its_repetition_fire_with_one_number_for_each_run() -> None:
    """The first one also writes the record of the key, whose number concerns nobody else."""
    broker = make()
    broker.publish([draft(b"before")])
    assert [broker.publish([draft(b"a", b"b")], key="k").result for _ in range(2)] == [(2,), (2,)]


def test_only_a_follower_reads_keys_from_the_journal_and_only_new_ones() -> None:
    journal = MemoryJournal()
    broker = make(journal)
    read: list[int] = []
    journal.before_read = lambda stream, start: read.append(start) if stream == STREAM else None
    publish_once(broker, [draft(b"x")], "key")
    broker.durable({STREAM: 1})
    assert read == [], "a leader knows what it wrote"
    broker.follows = True
    broker.durable({"s": 2})
    assert read == []
    broker.durable({STREAM: 1})
    assert set(read) == {1}
    read.clear()
    broker.publish([], [Run.of(STREAM, [b"of the leader"], source=SOURCE)])
    broker.durable({STREAM: 2})
    assert read == [2]
    broker.state_changed(JournalState.WRITABLE, "this server leads")
    assert read == [2], "all of them were read before it leads"
    assert not broker.follows


def test_a_repetition_of_what_waits_for_room_is_refused_until_it_is_durable() -> None:
    journal = MemoryJournal(auto=False)
    broker = make(journal)
    first = publish_once(broker, [draft(b"a")], "k")
    journal.enter(JournalState.READ_ONLY, "full")
    assert isinstance(failure(publish_once(broker, [draft(b"a")], "k")), ReadOnly)
    journal.enter(JournalState.WRITABLE, "room")
    assert (first.result, publish_once(broker, [draft(b"a")], "k").result) == (1, 1)
    journal.enter(JournalState.READ_ONLY, "full")
    assert publish_once(broker, [draft(b"a")], "k").result == 1


def test_the_oldest_keys_are_forgotten_first() -> None:
    journal = MemoryJournal()
    broker = make(journal, most_keys=2)
    for key in ("a", "b", "c"):
        publish_once(broker, [draft(b"x")], key)
    assert broker.budget.used == 2 * ENTRY
    for one in (broker, make(journal, most_keys=2)):
        assert publish_once(one, [draft(b"x")], "b").result == 2
        assert publish_once(one, [draft(b"x")], "c").result == 3
    assert publish_once(broker, [draft(b"x")], "a").result == 4


def test_keys_and_subscriptions_do_not_take_memory_from_each_other() -> None:
    broker = make(budget=InFlight(limit=1 << 20))
    assert broker.budget.keep(broker.budget.limit // 2), "as subscriptions do"
    for number in range(900):
        assert failure(publish_once(broker, [draft(b"x")], str(number))) is None
    broker.budget.forget(broker.budget.limit // 2)
    assert broker.budget.keep(broker.budget.limit // 2)


def test_the_memory_of_keys_is_limited() -> None:
    broker = make(budget=InFlight(limit=1 << 20))
    for number in range(900):
        publish_once(broker, [draft(b"x")], str(number))
    assert broker.budget.limit // 32 < broker.budget.used <= broker.budget.limit // 16
    broker.once.open()
    assert broker.budget.limit // 32 < broker.budget.used <= broker.budget.limit // 16


@pytest.mark.parametrize(("in_flight", "error"), [(49, type(None)), (50, NoRoomForKey)])
def test_keys_of_one_holder_that_are_not_durable_take_half_of_the_room(in_flight: int, error: type) -> None:
    journal = MemoryJournal(auto=False)
    broker = make(journal, most_keys=100)
    mine, other = (broker.identified(Identity(host=host)) for host in ("10.0.0.1", "10.0.0.2"))
    answers = [publish_once(mine, [draft(b"x")], str(number)) for number in range(in_flight)]
    assert isinstance(failure(publish_once(mine, [draft(b"x")], "one more")), error)
    assert failure(publish_once(other, [draft(b"x")], "another")) is None
    journal.commit()
    assert [answer.result for answer in answers] == list(range(1, in_flight + 1))
    assert failure(publish_once(mine, [draft(b"x")], "one more")) is None, "there is room again"


@pytest.mark.parametrize(("age", "kept"), [(once.KEPT - 1, True), (once.KEPT, False), (once.KEPT + 1, False)])
def test_a_key_older_than_the_limit_is_forgotten_before_keys_of_small_holders(age: float, kept: bool) -> None:
    time = [0]
    broker = Broker(Clock(), MemoryJournal(monotonic=lambda: time[0]), Sequencer(), most_keys=10)
    broker.open()
    small, large = (broker.identified(Identity(host=host)) for host in ("10.0.0.1", "10.0.0.2"))
    assert publish_once(small, [draft(b"a")], "k").result == 1
    time[0] += int(age * 1_000_000)
    for number in range(10):
        publish_once(large, [draft(b"x")], str(number))
    assert publish_once(small, [draft(b"a")], "k").result == (1 if kept else 12)


def test_a_clock_of_the_reactor_that_is_ten_years_off_makes_no_key_old() -> None:
    clock = Clock()
    broker = Broker(clock, MemoryJournal(), Sequencer(), most_keys=10)
    broker.open()
    small, large = (broker.identified(Identity(host=host)) for host in ("10.0.0.1", "10.0.0.2"))
    assert publish_once(small, [draft(b"a")], "k").result == 1
    clock.advance(10 * 365 * 86_400)
    for number in range(10):
        publish_once(large, [draft(b"x")], str(number))
    assert publish_once(small, [draft(b"a")], "k").result == 1


def test_a_displaced_key_is_counted_and_logged_once_a_minute_for_its_holder(log_lines: list[str]) -> None:
    broker = make(most_keys=10)
    peer = broker.identified(Identity(host="10.0.0.2"))
    for number in range(15):
        publish_once(peer, [draft(b"x")], str(number))
    assert broker.counters.counts["server", "key-displaced"] == 5
    (line,) = log_lines
    assert line.startswith("server: key-displaced from 10.0.0.2: a key of 10.0.0.2, which has the most of all 10, was ")
    assert line.endswith("kept for 0 s only; send fewer keys")


def test_a_refused_publish_displaces_no_key() -> None:
    broker = make(most_keys=10)
    broker.restrict("small", 1)
    peer, enemy = (broker.identified(Identity(host=host)) for host in ("10.0.0.1", "10.0.0.2"))
    for number in range(10):
        publish_once(peer, [draft(b"x")], str(number))
    for number in range(100):
        assert isinstance(failure(publish_once(enemy, [draft(b"xx", stream="small")], str(number))), PayloadTooLarge)
    assert [publish_once(peer, [draft(b"x")], str(number)).result for number in range(10)] == list(range(1, 11))


def test_a_token_that_no_rule_asks_for_does_not_make_a_holder() -> None:
    broker = make(most_keys=10)
    honest = broker.identified(Identity(host="10.0.0.1"))
    for number in range(5):
        publish_once(honest, [draft(b"x")], str(number))
    for number in range(50):
        made_up = broker.identified(Identity(host="10.0.0.2", token=str(number)))
        publish_once(made_up, [draft(b"x")], f"flood-{number}")
    assert [publish_once(honest, [draft(b"x")], str(number)).result for number in range(5)] == list(range(1, 6))


def test_peers_of_one_address_with_proofs_have_shares_of_their_own() -> None:
    rules = parse({"allow": [{"token": [f"sha256:{digest(name)}" for name in "ab"], "publish": "s"}]})
    broker = make(guard=Guard(rules), most_keys=10)
    honest, flood = (broker.identified(Identity(host="10.0.0.1", token=digest(name))) for name in "ab")
    for number in range(5):
        publish_once(honest, [draft(b"x")], str(number))
    for number in range(50):
        publish_once(flood, [draft(b"x")], f"flood-{number}")
    assert [publish_once(honest, [draft(b"x")], str(number)).result for number in range(5)] == list(range(1, 6))


def test_records_without_a_holder_count_for_one_holder() -> None:
    journal = MemoryJournal()
    publish_once(make(journal, most_keys=10).identified(Identity(host="10.0.0.1")), [draft(b"x")], "new")
    broker = make(journal, most_keys=10)
    for number in range(20):
        publish_once(broker, [draft(b"x")], f"old-{number}")
    records = [bytes(payload) for run in journal.read(STREAM, 1, 1 << 20) for payload in run.payloads()]
    assert [b'"holder": "10.0.0.1"' in record for record in records] == [True, *[b"new" in r for r in records[1:]]]
    again = make(journal, most_keys=10)
    assert publish_once(again, [draft(b"x")], "new").result == 1
    assert publish_once(again, [draft(b"x")], "old-19").result == 21


@pytest.mark.parametrize("seed", range(5))
def test_memory_of_keys_is_that_of_the_known_ones_however_often_they_were_written(seed: int) -> None:
    """A key that was forgotten may be used again for other messages; a restart finds both of its records."""
    dice, journal = random.Random(seed), MemoryJournal()
    writer = make(journal)
    keys = [dice.choice("abcdef") for _ in range(50)]
    for number, key in enumerate(keys):
        known = Known(("s", key), dice.randrange(1, 4), "digest", dice.choice(("", "10.0.0.1")), number, 0)
        writer.publish([], [Run.of(STREAM, [known.packed()], source=SOURCE)])
    broker = make(journal)
    assert broker.budget.used == ENTRY * len(set(keys))
    broker.once.clear()
    assert broker.budget.used == 0


@pytest.mark.parametrize("payload", [b"\xff", b"[]", b"{}", b'{"v": 2}', b"[" * 5_000])
def test_records_that_are_invalid_or_of_others_are_ignored(payload: bytes) -> None:
    journal = MemoryJournal()
    broker = make(journal)
    broker.publish([], [Run.of(STREAM, [payload], source=SOURCE), Run.of(STREAM, [b"x"], source="figg")])
    publish_once(broker, [draft(b"a")], "k")
    assert publish_once(make(journal), [draft(b"a")], "k").result == 1


def test_the_policy_applies_to_publishes_with_keys() -> None:
    rules = parse({"allow": [{"network": "127.0.0.1", "publish": "s"}]})
    peer = make(guard=Guard(rules)).identified(Identity())
    assert publish_once(peer, [draft(b"a")], "k").result == 1
    assert isinstance(failure(publish_once(peer, [draft(b"a", stream="t")], "k")), Forbidden)


@pytest.mark.parametrize("seed", range(20))
def test_publishes_with_keys_agree_with_plain_tables_over_crashes(seed: int) -> None:
    """Repetitions wait and fire with the first number; the key of a refused or a lost publish is free again."""
    dice, journal = random.Random(seed), MemoryJournal(auto=False)
    drafts = [draft(b"ab"), draft(b"a", b"b"), draft(b"ac"), draft(b"x" * 200)]
    drafts.append(Run.of("s", [b"ab"], source="test", content_type="text/plain"))
    durable: dict[tuple[str, str], tuple[int, int]] = {}  # which of the drafts it was, and the number of the first
    pending: dict[tuple[str, str], tuple[int, int]] = {}
    ends = dict.fromkeys("st", 0), dict.fromkeys("st", 0)  # of the streams: durable, and with what is pending
    waiting: list[tuple[Deferred[int], int]] = []
    broker = make(journal)
    broker.restrict("s", 100)
    for _ in range(300):
        which, name = dice.randrange(len(drafts)), (dice.choice("st"), dice.choice("abcdefghijklmnopqrstuvwxyz"))
        run, known = attrs.evolve(drafts[which], stream=name[0]), (durable | pending).get(name)
        published = publish_once(broker, [run], name[1])
        if known is not None and known[0] != which:
            assert isinstance(failure(published), KeyReused)
        elif known is None and run.stream == "s" and max(map(len, run.payloads())) > 100:
            assert isinstance(failure(published), PayloadTooLarge)
        else:
            if known is None:
                known = pending[name] = (which, ends[1][run.stream] + 1)
                ends[1][run.stream] += len(run)
            assert published.called == (name in durable)
            if published.called:
                assert published.result == known[1]
            else:
                waiting.append((published, known[1]))
        if dice.random() < 0.2:
            journal.commit()
            durable, pending = durable | pending, {}
            ends[0].update(ends[1])
            assert all(one.result == first for one, first in waiting), "the number of the first"
            waiting.clear()
        if dice.random() < 0.05:
            journal.enter(JournalState.FAILED, "crash")
            journal.enter(JournalState.WRITABLE, "restart")
            broker = make(journal)
            broker.restrict("s", 100)
            pending = {}
            ends[1].update(ends[0])
            assert all(isinstance(failure(one), OutcomeUnknown) for one, _ in waiting)
            waiting.clear()


def keys_written(journal: MemoryJournal) -> list[tuple[int, str]]:
    """Return the number and the key of each record in the stream of the keys."""
    records = (record for run in journal.read(STREAM, 1, 1 << 30) for record in run.records())
    return [(record.seq, json.loads(record.payload)["key"]) for record in records]


@pytest.mark.parametrize("seed", range(8))
def test_no_flood_makes_a_retry_of_a_small_holder_be_stored_twice(seed: int) -> None:
    dice = random.Random(seed)
    journal = MemoryJournal(auto=False)
    refusals = (PayloadTooLarge, NoRoomForKey)
    broker = make(journal, most_keys=40)
    broker.restrict("small", 1)
    holders = {f"10.0.0.{n}": [f"{n}-{m}" for m in range(8)] for n in range(1, 4)}
    answers: dict[str, int] = {}
    flooded = 0

    def answered(first: int, key: str) -> None:
        assert answers.setdefault(key, first) == first, "the same answer"

    for _ in range(600):
        host = dice.choice([*holders])
        key = dice.choice(holders[host])
        peer = broker.identified(Identity(host=host))
        publish_once(peer, [draft(key.encode())], key).addCallbacks(answered, lambda failure: None, (key,))
        flood = broker.identified(Identity(host="10.0.0.9"))
        for _ in range(dice.choice((0, 0, 1, 10, 60))):
            flooded += 1
            publish_once(flood, [draft(b"x", stream="flood")], str(flooded)).addErrback(lambda failure: None)
        for _ in range(dice.choice((0, 0, 5))):
            assert isinstance(failure(publish_once(flood, [draft(b"xx", stream="small")], "small")), refusals)
        if dice.random() < 0.7:
            journal.commit()
        if dice.random() < 0.03:
            journal.enter(JournalState.READ_ONLY, "full")
            journal.enter(JournalState.WRITABLE, "room")
        if dice.random() < 0.03:
            journal.enter(JournalState.FAILED, "crash")
            journal.enter(JournalState.WRITABLE, "restart")
            broker = make(journal, most_keys=40)
            broker.restrict("small", 1)
        assert broker.budget.used <= ENTRY * 80, "40 durable keys, and as many on their way to disk"
    journal.commit()
    stored = [bytes(payload) for run in journal.read("s", 1, 1 << 20) for payload in run.payloads()]
    assert len(stored) == len(set(stored)) == len(answers) == 24
    assert flooded > 20 * once.READ_BACK * 40, "far more than a start reads"
    latest = dict[str, int]()
    for seq, key in keys_written(journal):
        if key in answers:
            latest[key] = seq
        behind = {each: seq - before for each, before in latest.items() if seq - before > 40 + 2 * len(answers) + 2}
        assert not behind, f"at record {seq} keys are not written again, although so many follow them: {behind}"
