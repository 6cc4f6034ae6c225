"""Test the engine of ``fyrehose forward``: batches, attempts, dead letters, and what is acknowledged."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from fyrehose.forward.destination import BatchOutcome, BatchSender, ForwardTable, place
from fyrehose.forward.engine import HIGH, LOW, Forwarding, dead_letter
from fyrehose.records import Run

Answer = BatchOutcome | Exception


class Tailer:
    """A tailer that notes when it is paused and resumed.

    :ivar on_resume: called then: a tailer may have records at once
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.on_resume: Callable[[], object] = lambda: None

    def pause(self) -> None:
        assert self.calls[-1:] != ["pause"], "reading is paused twice"
        self.calls.append("pause")

    def resume(self) -> None:
        assert self.calls[-1:] == ["pause"], "reading is resumed and was not paused"
        self.calls.append("resume")
        self.on_resume()


class Sender(BatchSender):
    """A sender whose batches wait for the answer of the test."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[str, int, int]]] = []
        self.runs: Sequence[Run] = ()
        self._answer: Deferred[BatchOutcome] = Deferred()

    async def send(self, runs: Sequence[Run]) -> BatchOutcome:
        self.runs = runs
        self.batches.append([(run.stream, run.first_seq, run.last_seq) for run in runs])
        self._answer = Deferred()
        return await self._answer

    def answer(self, outcome: Answer = BatchOutcome()) -> None:  # noqa: B008 - it is frozen
        answer = self._answer
        answer.callback(outcome) if isinstance(outcome, BatchOutcome) else answer.errback(outcome)


class Letters(BatchSender):
    """A sender of dead letters, which fails as often as the test wants."""

    def __init__(self) -> None:
        self.failures = 0
        self.largest = 1 << 20
        self.letters: list[dict[str, Any]] = []

    async def send(self, runs: Sequence[Run]) -> BatchOutcome:
        if self.failures:
            self.failures -= 1
            return BatchOutcome(again=runs, reason="the disk is full")
        if runs[0].size > self.largest:
            return BatchOutcome(refused=[(runs[0], "status 413: too large")])
        self.letters.append(json.loads(bytes(runs[0].payload)))
        return BatchOutcome()


class Bench:
    """A forwarding, and all that it talks to."""

    def __init__(self, **keys: Any) -> None:
        self.clock, self.tailer, self.sender, self.letters = Clock(), Tailer(), Sender(), Letters()
        values = {"linger": 0.0, "batch_count": 4, **keys}
        table = ForwardTable(name="n", streams="s*", to=(place("lumberjack://h:1"),), **values)
        self.forwarding = Forwarding(self.clock, table, self.tailer, self.sender, self.letters)
        self.acknowledged: list[tuple[str, int]] = []
        self.task = Deferred.fromCoroutine(self.forwarding.run())

    def take(self, first: int, count: int, stream: str = "s") -> None:
        run = Run.of(stream, [b"%d" % seq for seq in range(first, first + count)], source="figg", first_seq=first)
        self.forwarding.take(run).addCallback(lambda seq: self.acknowledged.append((stream, seq)))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_batches_are_acknowledged_when_they_are_delivered(bench: Bench) -> None:
    bench.take(1, 2)
    bench.take(3, 4)
    assert bench.sender.batches == [[("s", 1, 2)]]
    assert bench.acknowledged == []
    bench.sender.answer()
    assert bench.acknowledged == [("s", 2)]
    assert bench.sender.batches[1:] == [[("s", 3, 6)]]
    bench.sender.answer()
    assert bench.acknowledged == [("s", 2), ("s", 6)]
    assert bench.forwarding.counts.delivered == 6
    assert bench.forwarding.waiting_bytes == 0


def test_position_moves_to_the_end_of_a_batch_and_never_into_it(bench: Bench) -> None:
    """A batch that is repeated after a restart begins where it began before, so that its key is the same."""
    bench.take(1, 1)
    bench.take(2, 3)
    bench.take(5, 3)
    bench.sender.answer()
    assert bench.sender.batches[1] == [("s", 2, 4), ("s", 5, 5)]
    bench.sender.answer()
    assert bench.acknowledged[1:] == [("s", 5)]  # not 4, the end of the run


def test_records_that_fail_are_sent_again_after_a_growing_pause(bench: Bench) -> None:
    bench.take(1, 4)
    for _ in range(3):
        again = [bench.sender.runs[0].slice(2, 4)] if len(bench.sender.batches) == 1 else bench.sender.runs
        bench.sender.answer(BatchOutcome(again=again, reason="busy"))
        assert bench.forwarding.error == "busy"
        bench.clock.advance(0.05)
        before = len(bench.sender.batches)
        bench.clock.advance(1.0)
        assert len(bench.sender.batches) == before + 1
    assert bench.sender.batches == [[("s", 1, 4)], [("s", 3, 4)], [("s", 3, 4)], [("s", 3, 4)]]
    bench.sender.answer()
    assert bench.acknowledged == [("s", 4)]
    assert (bench.forwarding.error, bench.forwarding.counts.retries) == ("", 3)


def test_pause_that_the_destination_asks_for_is_kept(bench: Bench) -> None:
    bench.take(1, 1)
    bench.sender.answer(BatchOutcome(again=bench.sender.runs, reason="busy", pause=30.0))
    bench.clock.advance(29.9)
    assert len(bench.sender.batches) == 1
    bench.clock.advance(0.2)
    assert len(bench.sender.batches) == 2


def test_refused_records_are_dead_letters_before_the_batch_is_acknowledged(bench: Bench) -> None:
    bench.letters.failures = 1
    bench.take(1, 2)
    bench.sender.answer(BatchOutcome(refused=[(bench.sender.runs[0].slice(1, 2), "no JSON")]))
    assert bench.acknowledged == []
    assert "disk is full" in bench.forwarding.error
    bench.clock.advance(1.0)
    assert bench.letters.letters == [{"stream": "s", "seq": 2, "time": 0, "why": "no JSON", "payload": "2"}]
    assert bench.acknowledged == [("s", 2)]
    assert (bench.forwarding.counts.delivered, bench.forwarding.counts.dead) == (1, 1)


@pytest.mark.parametrize("payload", [b"", b"\0", "\ufffd".encode(), b"\xff", b"\xc3", b"a\xed\xa0\x80b"])
def test_dead_letter_has_the_payload_byte_for_byte(payload: bytes) -> None:
    """Whether it is text, ends within a character, or has half of a surrogate pair."""
    letter = json.loads(bytes(dead_letter(Run.of("s", [payload], source="figg", first_seq=1), "why").payload))
    restored = b64decode(letter["payload_base64"]) if "payload_base64" in letter else letter["payload"].encode()
    assert restored == payload


def test_dead_letter_that_is_too_large_goes_without_the_payload_and_records_behind_it_get_on(bench: Bench) -> None:
    bench.letters.largest = 200
    bench.forwarding.take(Run.of("s", [b"\xff" * 150, b"next"], source="figg", first_seq=1))
    runs = bench.sender.runs
    bench.sender.answer(BatchOutcome(refused=[(runs[0].slice(0, 1), "not UTF-8")]))
    bench.clock.advance(1.0)
    assert bench.letters.letters == [{"stream": "s", "seq": 1, "time": 0, "why": "not UTF-8", "payload_bytes": 150}]
    bench.take(3, 1)
    assert [bytes(run.payload) for run in bench.sender.runs] == [b"3"]


def test_dead_letters_are_tried_again_after_a_growing_pause() -> None:
    bench = Bench(longest_pause=1.0)
    bench.letters.failures = 7
    bench.take(1, 1)
    bench.sender.answer(BatchOutcome(refused=[(bench.sender.runs[0], "no JSON")]))
    for failures in range(7):
        assert bench.letters.letters == []
        (call,) = bench.clock.getDelayedCalls()
        pause = call.getTime() - bench.clock.seconds()
        assert pause == pytest.approx(min(0.1 * 2**failures, 1.0), rel=0.2)
        bench.clock.advance(pause)
    assert "record 1 of stream 's' is a dead letter: no JSON" in bench.forwarding.counts.error
    assert bench.forwarding.counts.error_at == bench.clock.seconds()


def test_end_within_a_batch_acknowledges_nothing(bench: Bench) -> None:
    bench.take(1, 1)
    bench.task.cancel()
    assert bench.task.called
    bench.task.addErrback(lambda failure: failure.trap(CancelledError))
    assert (bench.acknowledged, len(bench.sender.batches)) == ([], 1)


def test_error_of_a_sender_is_logged_and_the_batch_sent_again(bench: Bench, logged_errors: Any) -> None:
    bench.take(1, 1)
    bench.sender.answer(RuntimeError("a bug"))
    bench.clock.advance(1.0)
    assert len(bench.sender.batches) == 2
    assert "please report this bug" in logged_errors.take()[0]["log_format"]


def test_batch_is_filled_to_its_last_byte() -> None:
    bench = Bench(batch_bytes=4)
    bench.take(1, 1, "s0")
    bench.take(1, 3, "s1")
    bench.take(1, 2, "s2")
    bench.sender.answer()
    assert bench.sender.batches[1] == [("s1", 1, 3), ("s2", 1, 1)]


@pytest.mark.parametrize(
    ("limits", "first", "most"),
    [({"batch_count": 3}, 1, 3), ({"batch_bytes": 3}, 1, 3), ({"batch_bytes": 5}, 100, 1)],
    ids=["count", "bytes", "bytes, of which some are left"],
)
def test_each_stream_gets_its_turn(limits: dict[str, int], first: int, most: int) -> None:
    bench = Bench(**limits)
    bench.take(1, 1, "s0")
    for stream in ("s1", "s2", "s3"):
        bench.take(first, 6, stream)
    for _ in range(6 * 3 // most):
        bench.sender.answer()
    wanted = [
        [(stream, begin, begin + most - 1)] for begin in range(first, first + 6, most) for stream in ("s1", "s2", "s3")
    ]
    assert bench.sender.batches[1:] == wanted


def test_sender_that_needs_more_records_gets_them(bench: Bench) -> None:
    bench.take(1, 1)
    bench.take(2, 1)
    bench.sender.answer(BatchOutcome(again=bench.sender.runs, reason="incomplete", more=True))
    bench.clock.advance(1.0)
    assert bench.sender.batches[1] == [("s", 1, 1), ("s", 2, 2)]
    bench.sender.answer()
    assert bench.acknowledged == [("s", 2), ("s", 2)]


def test_small_batch_waits_for_more_records() -> None:
    bench = Bench(linger=0.5)
    bench.take(1, 1)
    bench.clock.advance(0.4)
    bench.take(2, 1)
    assert bench.sender.batches == []
    bench.clock.advance(0.2)
    assert bench.sender.batches == [[("s", 1, 1), ("s", 2, 2)]]


def test_lost_records_are_counted_and_reported(bench: Bench, log_lines: list[str]) -> None:
    bench.forwarding.lost(3, 5, "s1")
    assert bench.forwarding.counts.lost == 3
    assert any("records 3 to 5 of stream 's1' are no longer kept" in line for line in log_lines)


class Source:
    """A server with three streams, and what is known of each record: the model of the engine's promises.

    :ivar done: by stream, the numbers that the destination has confirmed, or that are dead letters
    :ivar acknowledged: by stream, the position of the subscription
    """

    NAMES = ("s1", "s2", "s3")

    def __init__(self, bench: Bench, dice: Random) -> None:
        self.bench, self.dice = bench, dice
        self.read = dict.fromkeys(self.NAMES, 0)
        self.acknowledged = dict.fromkeys(self.NAMES, 0)
        self.done: dict[str, set[int]] = {name: set() for name in self.NAMES}
        self.counts = {"delivered": 0, "delivered_bytes": 0, "dead": 0, "retries": 0}
        self.seen = 0  #: how many batches were answered
        self.journal = 0  #: how often the numbers have begun again
        self.owed = False  #: whether records of the last batch are wanted again
        bench.tailer.on_resume = lambda: [self.deliver() for _ in range(dice.randint(0, 9))]

    @staticmethod
    def payload(seq: int) -> bytes:
        return b"x" * (seq * 7 % 23)

    @property
    def paused(self) -> bool:
        return self.bench.tailer.calls[-1:] == ["pause"]

    def step(self) -> None:
        """Do something that may happen next, and check what holds always."""
        often = [self.deliver, self.deliver, self.answer, self.answer, self.wait, self.again]
        (self.restart if self.dice.random() < 0.02 else self.dice.choice(often))()
        most = self.bench.forwarding.table.batch_bytes
        assert self.paused or self.bench.forwarding.waiting_bytes <= HIGH * most, "much is waiting, and reading goes on"
        assert not self.paused or self.bench.forwarding.waiting_bytes > LOW * most, "reading pauses without a reason"

    def deliver(self) -> None:
        if self.paused:
            return
        stream, count = self.dice.choice(self.NAMES), self.dice.randint(1, 6)
        first = self.read[stream] + 1
        self.read[stream] += count
        payloads = [self.payload(seq) for seq in range(first, first + count)]
        run = Run.of(stream, payloads, source="figg", first_seq=first)
        self.bench.forwarding.take(run).addCallback(self.acknowledge, stream, self.journal)

    def acknowledge(self, seq: int, stream: str, journal: int) -> None:
        assert journal == self.journal, "a record of the journal before was acknowledged"
        assert self.done[stream] >= set(range(1, seq + 1)), f"{stream} is acknowledged up to {seq}, and not delivered"
        self.acknowledged[stream] = max(self.acknowledged[stream], seq)

    def again(self) -> None:
        """Begin again at the position that the server keeps, as after a lost connection."""
        stream = self.dice.choice(self.NAMES)
        self.read[stream] = self.acknowledged[stream]

    def restart(self) -> None:
        """Let the server have another journal, in which the numbers have begun again."""
        self.journal += 1
        self.read = dict.fromkeys(self.NAMES, 0)
        self.acknowledged = dict.fromkeys(self.NAMES, 0)
        self.done = {name: set() for name in self.NAMES}
        self.bench.forwarding.restarted(0)

    def wait(self) -> None:
        self.bench.letters.failures = self.dice.randint(0, 1)
        self.bench.clock.advance(self.dice.choice([0.01, 0.3, 70.0]))

    def answer(self, kinds: Sequence[str] = ("done", "done", "done", "again", "dead")) -> None:
        """Confirm some records of the batch that was sent, refuse some, and let the destination want some again."""
        sender = self.bench.sender
        if len(sender.batches) == self.seen:
            return
        self.seen = len(sender.batches)
        if not self.owed:
            sizes = [len(payload) for run in sender.runs for payload in run.payloads()]
            assert len(sizes) == 1 or (sum(sizes) <= 20 and len(sizes) <= 5), "a batch is larger than its limits"
            numbers = [(run.stream, seq) for run in sender.runs for seq in range(run.first_seq, run.last_seq + 1)]
            assert len(numbers) == len({*numbers}), f"a record is in a batch twice: {numbers}"
        again, refused = [], []
        for run in sender.runs:
            for at in range(len(run)):
                one = run.slice(at, at + 1)
                kind = self.dice.choice(kinds)
                if kind == "again":
                    again.append(one)
                    continue
                self.done[run.stream].add(one.first_seq)
                self.counts["dead" if kind == "dead" else "delivered"] += 1
                if kind == "dead":
                    refused.append((one, "no"))
                else:
                    self.counts["delivered_bytes"] += len(one.payload)
        self.counts["retries"] += bool(again)
        self.owed = bool(again)
        more = self.owed and self.dice.random() < 0.3
        sender.answer(BatchOutcome(again=again, reason="busy" if again else "", refused=refused, more=more))

    def finish(self) -> None:
        """Let everything succeed, and check what holds at the end."""
        self.bench.letters.failures = 0
        for _ in range(300):
            self.answer(["done"])
            self.bench.letters.failures = 0
            self.bench.clock.advance(70.0)
            if len(self.bench.sender.batches) == self.seen and not self.bench.clock.getDelayedCalls():
                break
        # A batch may end behind what the server has sent again.
        assert all(self.acknowledged[stream] >= self.read[stream] for stream in self.NAMES)
        assert (self.bench.forwarding.waiting_bytes, self.bench.forwarding.error, self.paused) == (0, "", False)
        counts = attrs.asdict(self.bench.forwarding.counts)
        assert {name: counts[name] for name in self.counts} == self.counts


@pytest.mark.parametrize("seed", range(0, 400, 20))
def test_every_record_is_delivered_or_a_dead_letter_before_it_is_acknowledged(seed: int) -> None:
    for each in range(seed, seed + 20):
        bench = Bench(batch_bytes=20, batch_count=5)
        source = Source(bench, Random(each))
        for _ in range(100):
            source.step()
        source.finish()
        bench.task.addErrback(lambda failure: failure.trap(CancelledError)).cancel()
