"""The kernel of runs: how many records fit into a number of bytes, native and pure."""

from __future__ import annotations

import json
from itertools import accumulate, product
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fyrehose.journal import format as fmt
from fyrehose.journal.packing import batch
from fyrehose.jsontext import dumped
from fyrehose.kernels.pure import columns as pure
from fyrehose.kernels.pure import figg
from fyrehose.records import MAX_NAME, Run
from tests.doubles.kernels import column, native_kernel

native = native_kernel("columns")
only_native = pytest.mark.skipif(native is None, reason="the native kernels are not built")

ALL = (1 << 64) - 1


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 3), (2, 1), (3, 3)])
def test_missing_records_are_refused(kernel: ModuleType, start: int, stop: int) -> None:
    with pytest.raises(IndexError):
        kernel.span(column(1, 2), start, stop, ALL)


def test_invalid_columns_are_refused(kernel: ModuleType) -> None:
    with pytest.raises(TypeError):
        kernel.span(b"12345", 0, 1, ALL)


@given(st.lists(st.sampled_from([0, 1, 10, 20, 30, (1 << 32) - 1]), max_size=30), st.data())
@settings(max_examples=300, deadline=None)
def test_span_ends_before_the_record_that_exceeds_the_limit(lengths: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(lengths)))
    stop = data.draw(st.integers(start, len(lengths)))
    sums = list(accumulate(lengths[start:stop], initial=0))
    most = max(0, data.draw(st.sampled_from([*sums, ALL])) + data.draw(st.sampled_from([-1, 0, 0])))
    count = max(at for at, size in enumerate(sums) if size <= most)
    for kernel, view in product((pure, native or pure), (bytes, memoryview, bytearray)):
        assert kernel.span(view(column(*lengths)), start, stop, most) == (start + count, sums[count])


def test_figg_topic_limit_equals_the_stream_name_limit() -> None:
    """Kernels do not import fyrehose.records, so the limit is defined twice."""
    assert figg.MAX_TOPIC == MAX_NAME


def body_of(*runs: Run) -> bytes:
    return batch(fmt.Kind.RECORDS, runs, position=0, durable=0, time=0, clock=0, chain=0)[1][fmt.BATCH_HEADER.size :]


class Walk:
    """The tables of a walk, and the Python code that handles the runs at which the kernel stops."""

    def __init__(self, kernel: ModuleType, **streams: tuple[int, int, int]) -> None:
        self.kernel, self.known, self.names = kernel, dict[bytes, int](), list(streams)
        self.kinds = np.zeros((20, 3), np.int64)
        self.streams = np.array(list(streams.values()), np.int64).reshape(-1, 3)
        self.found = np.zeros((50, 10), np.int64)
        self.used = 0

    def learn(self, body: bytes, at: int) -> None:
        run = fmt.runs(body[at : at + int.from_bytes(body[at : at + 4], "little")], 0)[0]
        has, *sizes = fmt.RUN_HEADER.unpack_from(body, at)[5:]
        stream = self.names.index(run.stream) if run.stream in self.names else -1
        width = 8 * bool(has & fmt.Has.PRODUCER_SEQS) + 16 * bool(has & fmt.Has.EVENT_IDS)
        width += 8 * bool(has & fmt.Has.EVENT_TIMES)
        self.kinds[len(self.known)] = stream, 40 + sum(sizes) + -sum(sizes) % 8, width
        self.known[body[at + 28 : at + 40 + sum(sizes)]] = len(self.known)

    def go(self, body: bytes, at: int = 0, stop: int | None = None) -> int:
        at, self.used = self.kernel.walk(
            body,
            at,
            len(body) if stop is None else stop,
            3,
            77,
            self.known,
            self.kinds,
            self.streams,
            self.found,
            self.used,
        )
        return int(at)


def run_of(stream: str, first: int, count: int, **columns: Any) -> Run:
    payloads = [b"%d" % n * (n % 3) for n in range(count)]
    return Run.of(stream, payloads, source="test", **columns).numbered(first, 0)


def test_walk_finds_the_columns_of_each_run(kernel: ModuleType) -> None:
    body = body_of(
        run_of("a", 1, 3, producer_seq=7, topic="t"),
        run_of("skipped", 1, 2),
        run_of("b", 5, 2, event_ids=bytes(range(32)), event_times=bytes(16)),
        run_of("a", 4, 1, producer_seq=(1 << 64) - 1, topic="t"),
    )
    walk, at = Walk(kernel, a=(-1, 1, 1 << 48), b=(4, 1, 1 << 48)), 0
    while (at := walk.go(body, at)) < len(body):
        walk.learn(body, at)
    assert walk.used == 3
    assert walk.streams[:, 0].tolist() == [4, 6]
    assert walk.found[: walk.used, :6].tolist() == [
        [0, 3, 1, 77, 7, 3],
        [2, 2, 5, 77, 0, 3],
        [0, 1, 4, 77, -1, 3],
    ]
    for row, run in zip(walk.found.tolist(), [fmt.runs(body, 0)[i] for i in (0, 2, 3)], strict=False):
        optional, lengths, payload, size = row[6:]
        assert body[lengths : lengths + 4 * row[1]] == bytes(run.lengths)
        assert body[payload : payload + size] == bytes(run.payload)
        if run.event_ids is not None:
            assert body[optional : optional + 32] == bytes(run.event_ids)


@pytest.mark.parametrize(
    ("last", "first_wanted", "last_wanted", "passes"),
    [(-1, 1, 9, True), (4, 1, 9, True), (3, 1, 9, False), (4, 6, 9, False), (4, 1, 6, False), (4, 5, 7, True)],
)
def test_walk_stops_before_gaps_and_parts_of_runs(
    kernel: ModuleType, last: int, first_wanted: int, last_wanted: int, passes: bool
) -> None:
    body, walk = body_of(run_of("a", 5, 3)), Walk(kernel, a=(last, first_wanted, last_wanted))
    walk.learn(body, 0)
    assert walk.go(body) == (len(body) if passes else 0)
    assert (walk.used, walk.streams[0, 0]) == ((1, 7) if passes else (0, last))


def test_walk_stops_before_lengths_that_contradict_each_other(kernel: ModuleType) -> None:
    body = bytearray(body_of(run_of("a", 1, 3)))
    walk = Walk(kernel, a=(-1, 1, 9))
    walk.learn(bytes(body), 0)
    for at, value in ((0, 0), (0, len(body) + 8), (0, 40), (24, 4000), (4, 1 << 31)):
        wrong = bytearray(body)
        wrong[at : at + 4] = value.to_bytes(4, "little")
        assert walk.go(bytes(wrong)) == 0
    assert walk.go(bytes(body[:-8])) == 0
    assert walk.used == 0


@only_native
@given(st.integers(0, 1 << 32), st.data())
@settings(max_examples=200, deadline=None)
def test_native_walk_equals_pure_walk(seed: int, data: st.DataObject) -> None:
    dice, ends, runs = Random(seed), {"a": 0, "b": 0, "c": 0}, []
    for _ in range(dice.randint(1, 12)):
        stream, count = dice.choice("abc"), dice.randint(1, 4)
        ids = bytes(16 * count) if dice.random() < 0.3 else None
        runs.append(run_of(stream, ends[stream] + 1 + (dice.random() < 0.05), count, event_ids=ids))
        ends[stream] += count
    body = bytearray(body_of(*runs))
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    walks = [Walk(each, a=(-1, 1, 9), b=(0, 2, 9)) for each in (native, pure)]
    for walk in walks:
        for at in (0, *[sum(len(body_of(run)) for run in runs[:i]) for i in range(1, len(runs))]):
            try:
                walk.learn(bytes(body), at)
            except (fmt.Damage, UnicodeDecodeError, IndexError):
                pass
    ends_of = [walk.go(bytes(body)) for walk in walks]
    assert ends_of[0] == ends_of[1]
    assert walks[0].used == walks[1].used
    assert walks[0].found.tolist() == walks[1].found.tolist()
    assert walks[0].streams.tolist() == walks[1].streams.tolist()


def test_gather_copies_pieces_in_order(kernel: ModuleType) -> None:
    chunks = [b"abcdef", memoryview(b"012345"), b""]
    pieces = np.array([[1, 2, 3], [0, 0, 1], [2, 0, 0], [0, 5, 1]], np.int64)
    out = bytearray(5)
    kernel.gather(chunks, pieces, out)
    assert out == b"234af"


@pytest.mark.parametrize(
    ("piece", "size"),
    [((0, 0, 7), 7), ((0, -1, 2), 2), ((2, 0, 1), 1), ((0, 3, 3), 2), ((0, 3, 3), 4), ((0, 2, -1), 0)],
)
def test_gather_refuses_pieces_that_are_not_there(kernel: ModuleType, piece: tuple[int, int, int], size: int) -> None:
    with pytest.raises(IndexError):
        kernel.gather([b"abcdef", b""], np.array([piece], np.int64), bytearray(size))


#: Characters at which some programs end a line, and some that have bytes in common with them.
LINE_ENDS = "a\x85b\u2028\u2029c\u2027\u202a\x84\x86"


def test_texts_are_escaped_as_json(kernel: ModuleType) -> None:
    payloads = [b"plain", b"", bytes(range(128)), 'é€𝄞 "\\"'.encode(), b'{"a": 1}\n', LINE_ENDS.encode()]
    lengths = column(*map(len, payloads))
    found = kernel.texts(lengths, b"".join(payloads), 8, b'[{"seq": ', b', "payload": "', b'"}],')
    expected = [[{"seq": seq, "payload": payload.decode()}] for seq, payload in enumerate(payloads, 8)]
    assert json.loads(b"[%b]" % found[:-1]) == expected
    assert found[:-1] == dumped(expected).replace(b"}], [{", b"}],[{")[1:-1]
    assert len(found.decode().splitlines()) == 1
    assert kernel.texts(b"", b"", 1, b"a", b"b", b"c") == b""


@pytest.mark.parametrize(
    "payload", [b"\x80", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"12345678\xff", b"\xe2\x82"]
)
def test_texts_that_are_not_utf8_are_noticed(kernel: ModuleType, payload: bytes) -> None:
    assert kernel.texts(column(2, len(payload)), b"ab" + payload, 1, b"", b"", b"") is None


def test_a_character_is_not_completed_by_the_next_text(kernel: ModuleType) -> None:
    assert kernel.texts(column(1, 1), "é".encode(), 1, b"", b"", b"") is None


def test_texts_beyond_their_bytes_are_refused(kernel: ModuleType) -> None:
    with pytest.raises(IndexError):
        kernel.texts(column(2, 2), b"abc", 1, b"", b"", b"")


@only_native
@given(
    st.lists(
        st.binary(max_size=40)
        | (st.text(max_size=40) | st.text(LINE_ENDS, max_size=40)).map(lambda text: text.encode(errors="replace"))
    )
)
@settings(max_examples=300, deadline=None)
def test_native_texts_equal_pure_texts(payloads: list[bytes]) -> None:
    given_ = (column(*map(len, payloads)), b"".join(payloads), (1 << 63) - 50, b"<", b"|", b">")
    assert native is not None
    assert native.texts(*given_) == pure.texts(*given_)


@only_native
@given(
    names=st.tuples(st.text(max_size=3), st.text(max_size=3), *[st.none() | st.text(max_size=3)] * 3),
    count=st.integers(0, 3),
    producer_seq=st.none() | st.integers(0, 9) | st.just(b"8" * 8),
    others=st.tuples(st.none() | st.just(b"1" * 16), st.none() | st.just(b"2" * 8)),
    numbers=st.tuples(st.integers(0, 1 << 48), st.integers(0, 1 << 60)),
)
def test_both_versions_build_the_same_run_and_delivery(
    names: Any, count: int, producer_seq: Any, others: Any, numbers: Any
) -> None:
    stream, source, producer, topic, content_type = names
    fields = {
        "lengths": bytes(4 * count),
        "payload": b"payload",
        "stream": stream,
        "source": source,
        "producer": producer,
        "topic": topic,
        "content_type": content_type,
        "producer_seq": producer_seq,
        "event_ids": others[0],
        "event_times": others[1],
        "first_seq": numbers[0],
        "time": numbers[1],
    }
    runs, deliveries = [], []
    for version in (native, pure):
        run, delivery = SimpleNamespace(), SimpleNamespace()
        version.build_run(run, **fields)
        runs.append(run)
        version.build_delivery(delivery, (runs[0], run))
        deliveries.append(delivery)
    assert runs[0] == runs[1]
    assert {name: vars(runs[0])[name] for name in fields} == fields
    assert {**vars(deliveries[0]), "runs": ()} == {**vars(deliveries[1]), "runs": ()}
    assert [len(delivery.runs) for delivery in deliveries] == [2, 2]


@pytest.mark.parametrize("version", [pytest.param(native, marks=only_native), pure])
def test_a_run_without_its_columns_and_a_delivery_without_runs_are_not_built(version: ModuleType) -> None:
    with pytest.raises(TypeError, match="lengths"):
        version.build_run(SimpleNamespace(), payload=b"", stream="s", source="t")
    with pytest.raises(TypeError, match="unexpected"):
        version.build_run(SimpleNamespace(), lengths=b"", payload=b"", stream="s", source="t", other=1)
    with pytest.raises(IndexError):
        version.build_delivery(SimpleNamespace(), ())


@pytest.mark.parametrize("version", [pytest.param(native, marks=only_native), pure])
def test_a_delivery_is_encoded_once_for_each_encoder(version: ModuleType) -> None:
    delivery, calls = SimpleNamespace(), []
    version.build_delivery(delivery, (Run.of("s", [b"a", b"b"], source="t"),))

    def count(runs: Any) -> int:
        calls.append(runs)
        return sum(map(len, runs))

    assert [version.encoded(delivery, encode) for encode in (count, count, len, count)] == [2, 2, 1, 2]
    assert calls == [delivery.runs]
