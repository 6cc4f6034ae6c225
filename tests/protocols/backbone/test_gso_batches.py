"""Trains of DELIVERs and PUSHes."""

from __future__ import annotations

from fyrehose.protocols.backbone.frames import MAX_DATA, Deliver, Push
from fyrehose.protocols.backbone.gso_batches import Train, serialize_delivers, serialize_pushes, single
from fyrehose.records import Run


def run(first: int, *payloads: bytes) -> Run:
    return Run.of("s", payloads, source="test").numbered(first, 1)


def datagrams(train: Train) -> list[bytes]:
    data = bytes(train.data)
    return [data[at : at + train.segment] for at in range(0, len(data), train.segment)]


def test_consecutive_small_runs_make_one_batch_of_datagrams() -> None:
    encoded = serialize_delivers((run(1, b"a"), run(2, b"b", b"c"), run(4, b"d")))
    assert [train.count for train in encoded.trains] == [4]
    assert datagrams(encoded.trains[0]) == [Deliver(seq=i + 1, data=b"abcd"[i : i + 1]).serialize() for i in range(4)]
    assert (encoded.count, encoded.left_out) == (4, 0)


def test_gap_ends_a_batch_of_datagrams() -> None:
    encoded = serialize_delivers((run(1, b"a", b"b"), run(9, b"c")))
    assert [datagrams(train) for train in encoded.trains] == [
        [Deliver(seq=1, data=b"a").serialize(), Deliver(seq=2, data=b"b").serialize()],
        [Deliver(seq=9, data=b"c").serialize()],
    ]


def test_oversized_records_are_left_out() -> None:
    large = bytes(MAX_DATA + 1)
    encoded = serialize_delivers((run(1, b"a", large, b"c", large), run(5, large), run(6, b"f")))
    sent = [datagram for train in encoded.trains for datagram in datagrams(train)]
    assert sent == [Deliver(seq=seq, data=data).serialize() for seq, data in ((1, b"a"), (3, b"c"), (6, b"f"))]
    assert (encoded.count, encoded.left_out) == (3, 3)
    assert serialize_delivers((run(1, large),)).trains == ()


def test_largest_record_is_a_batch_of_its_own() -> None:
    encoded = serialize_delivers((run(1, bytes(MAX_DATA), bytes(MAX_DATA)),))
    assert [(train.size, train.segment, train.count) for train in encoded.trains] == [(65_507, 65_507, 1)] * 2


def test_part_of_a_run_is_encoded_as_delivers() -> None:
    part = run(1, b"aa", b"bb", b"cc").slice(1, 3)
    assert (
        serialize_delivers((part,)).trains[0].data
        == Deliver(seq=2, data=b"bb").serialize() + Deliver(seq=3, data=b"cc").serialize()
    )


def test_pushes_are_encoded_as_batches_of_datagrams() -> None:
    trains = serialize_pushes([b"aa", b"bb", b"c", b"dd"])
    assert [datagrams(train) for train in trains] == [
        [Push(data=b"aa").serialize(), Push(data=b"bb").serialize(), Push(data=b"c").serialize()],
        [Push(data=b"dd").serialize()],
    ]
    assert serialize_pushes([]) == []
    assert [train.count for train in serialize_pushes([b"x" * 8] * 130)] == [64, 64, 2]


def test_single_datagram_is_a_batch() -> None:
    assert (single(b"abc").segment, single(b"abc").count, single(b"abc").size) == (3, 1, 3)
