"""Trains of DELIVERs and PUSHes."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

from fyrehose.protocols.backbone.frames import MAX_DATA, Deliver, Push
from fyrehose.protocols.backbone.gso_batches import (
    MOST_BYTES,
    MOST_SEGMENTS,
    Train,
    serialize_delivers,
    serialize_pushes,
    single,
)
from fyrehose.records import Run

SIZES = (0, 1, 1, 1, 1_000, 1_000, MAX_DATA, MAX_DATA + 1)


def in_trains(datagrams: list[tuple[int, bytes]]) -> list[list[bytes]]:
    """Return *datagrams*, each with its sequence, as the kernel sends them at once: equal sizes, the last shorter."""
    trains: list[list[bytes]] = []
    before = 0
    for seq, datagram in datagrams:
        train = trains[-1] if trains else []
        follows = seq == before + 1 and train and len(train[-1]) == len(train[0]) >= len(datagram)
        if not follows or len(train) == MOST_SEGMENTS or sum(map(len, train)) + len(datagram) > MOST_BYTES:
            trains.append([])
        trains[-1].append(datagram)
        before = seq
    return trains


def cut(trains: tuple[Train, ...] | list[Train]) -> list[list[bytes]]:
    """Return the datagrams of *trains*, after a look at their sizes and at the first part of each."""
    found = []
    for train in trains:
        datagrams = [bytes(train.data)[at : at + train.segment] for at in range(0, len(train.data), train.segment)]
        assert list(map(bytes, train.datagrams())) == datagrams
        assert (train.size, train.count) == (sum(map(len, datagrams)), len(datagrams))
        for count in (0, 1, len(datagrams), len(datagrams) + 1):
            assert bytes(train.first(count).data) == b"".join(datagrams[:count])
        found.append(datagrams)
    return found


def test_records_are_sent_in_trains_of_equal_datagrams_and_those_too_large_for_one_are_left_out() -> None:
    """The runs are parts of runs, with and without gaps between them."""
    seen: Counter[str] = Counter()
    for seed in range(200):
        random, seq, runs, expected, large = Random(seed), 1, list[Run](), list[tuple[int, bytes]](), 0
        sizes = random.choice((random.choices(SIZES, k=3), (1, 2, MAX_DATA + 1)))
        for _ in range(random.randint(1, 5)):
            data = [
                random.randbytes(random.choice(sizes))
                for _ in range(random.choice((1, 2, 5, 80 if max(sizes) < MAX_DATA else 3)))
            ]
            first, end = random.choice((0, 0, 1)), len(data)
            run = Run.of("s", data, source="test").numbered(seq, 1).slice(first, end)
            runs += [run] if len(run) else []
            fitting = [(seq + at, each) for at, each in enumerate(data) if at >= first and len(each) <= MAX_DATA]
            expected += [(number, Deliver(seq=number, data=each).serialize()) for number, each in fitting]
            large += len(run) - len(fitting)
            seq += len(data) + random.choice((0, 0, 0, 3))
        encoded = serialize_delivers(tuple(runs))
        trains = cut(encoded.trains)
        assert trains == in_trains(expected), f"seed {seed}"
        assert (encoded.count, encoded.left_out) == (len(expected), large)
        for run, after in pairwise(runs):
            seen["large record between runs"] += run.sizes[-1] > MAX_DATA and run.last_seq + 1 == after.first_seq
        seen["one train of several runs"] += len(runs) > 1 and len(trains) == 1
        seen["full train"] += any(len(train) == MOST_SEGMENTS for train in trains)
    assert {name for name, count in seen.items() if count} == {
        "large record between runs",
        "one train of several runs",
        "full train",
    }


def test_pushes_are_sent_in_order_in_trains_of_equal_datagrams() -> None:
    for seed in range(100):
        random = Random(seed)
        data = [random.randbytes(random.choice((1, 1, 2, 1_000))) for _ in range(random.randrange(200))]
        expected = [(at, Push(data=each).serialize()) for at, each in enumerate(data)]
        assert cut(serialize_pushes(data)) == in_trains(expected)


def test_single_datagram_is_a_train() -> None:
    assert cut([single(b"abc")]) == [[b"abc"]]
