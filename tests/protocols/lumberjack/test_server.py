"""Lumberjack's server: acknowledgements, keep-alives, time-outs, fairness, and bounds of memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from struct import pack
from typing import Any

import pytest
from twisted.internet.interfaces import IHalfCloseableProtocol
from zope.interface.verify import verifyObject

from fyrehose import kernels
from fyrehose.broker.policy import parse
from fyrehose.broker.streams import StreamRule, StreamRules
from fyrehose.errors import ConfigError
from fyrehose.net.connections import READS
from fyrehose.net.inflight import InFlight
from fyrehose.options import build
from fyrehose.protocols.lumberjack.frames import Data, Json, Window
from fyrehose.protocols.lumberjack.server import KEEP_ALIVE, READ, SILENCE, LumberjackSettings
from fyrehose.protocols.lumberjack.session import LumberjackLimits
from fyrehose.records import Run
from tests.doubles.compressed import compressed_frame

Make = Callable[..., Any]
both = pytest.mark.parametrize("version", [1, 2])


def announce(size: int, version: int = 2) -> bytes:
    return Window(version=version, number=size).serialize()


def doc(sequence: int, payload: bytes = b"{}", version: int = 2) -> bytes:
    return Json(version=version, sequence=sequence, payload=payload).serialize()


@both
@pytest.mark.parametrize("compressed", [False, True])
def test_window_is_acknowledged_when_it_is_durable(server: Make, window: Make, version: int, compressed: bool) -> None:
    made = server(auto=False)
    peer = made.connect()
    peer.send(window(3, version=version, first=5, compressed=compressed))
    made.settle()
    assert peer.acks == []
    made.journal.commit()
    assert peer.acks == [(version, 7)]
    assert [record.producer_seq for record in made.records] == [5, 6, 7]


def test_read_size_is_smaller_than_a_turn(server: Make) -> None:
    assert server().connect().transport.bufferSize == READ < LumberjackLimits().turn_bytes


def test_record_holds_the_metadata_of_its_event(server: Make, window: Make) -> None:
    made = server()
    made.connect().send(window(1) + announce(1) + Data(sequence=9, pairs=((b"k", b"\xff"),)).serialize())
    first, second = made.records
    assert first.payload == b'{"@metadata":{"beat":"fb"},"n":0}'
    assert (first.source, first.producer, first.topic) == ("lumberjack", "10.0.0.1:5000", "fb")
    assert (first.content_type, first.producer_seq) == ("application/json", 1)
    assert (second.content_type, second.producer_seq, second.topic) == ("application/x-lumberjack-d", 9, None)


def test_the_stream_and_the_topic_are_options(server: Make) -> None:
    made = server(stream="logs", topic="log.level")
    made.connect().send(announce(1) + doc(1, b'{"log":{"level":"warn"}}'))
    (run,) = made.journal.read("logs", 1, 1000)
    assert run.topic == "warn"


# Keep-alives and partial acknowledgements


def test_version_2_writer_is_kept_alive_during_a_long_commit(server: Make, window: Make) -> None:
    made = server(auto=False)
    peer = made.connect()
    peer.send(window(3))
    made.clock.advance(KEEP_ALIVE - 0.1)
    assert peer.acks == []
    made.clock.advance(0.1)
    assert peer.acks == [(2, 0)]
    made.clock.pump([1.0] * 8)
    assert peer.acks == [(2, 0)] * 3
    made.journal.commit()
    assert peer.acks == [(2, 0)] * 3 + [(2, 3)]
    made.clock.pump([1.0] * 20)
    assert peer.acks[-1] == (2, 3), "no keep-alive without an unacknowledged event"


def test_version_1_writer_is_never_kept_alive(server: Make, window: Make) -> None:
    """An established server sends such frames, and its writers take them for acknowledgements."""
    made = server(auto=False)
    peer = made.connect()
    peer.send(window(3, version=1))
    made.clock.pump([1.0] * 30)
    assert peer.acks == []
    assert not peer.transport.disconnecting
    made.journal.commit()
    assert peer.acks == [(1, 3)]


def test_slow_window_of_version_2_is_acknowledged_in_part(server: Make) -> None:
    made = server()
    peer = made.connect()
    peer.send(announce(10) + doc(1))
    for number in range(2, 8):
        made.clock.advance(1.0)
        peer.send(doc(number))
    assert peer.acks == [(2, 4)]
    peer.send(b"".join(doc(number) for number in range(8, 11)))
    assert peer.acks == [(2, 4), (2, 10)]


def test_silent_version_1_writer_is_acknowledged_once(server: Make) -> None:
    made = server()
    peer = made.connect()
    peer.send(announce(5, 1) + doc(1, version=1) + doc(2, version=1))
    made.clock.advance(SILENCE / 2)
    peer.send(doc(3, version=1) + b"1J")
    made.clock.pump([SILENCE / 2] * 6)
    assert peer.acks == [], "a frame is incomplete"
    peer.send(doc(4, version=1)[2:])
    made.clock.advance(SILENCE)
    assert peer.acks == [(1, 4)]
    made.clock.pump([SILENCE] * 5)
    assert peer.acks == [(1, 4)], "acknowledged once"


def test_silence_does_not_count_during_a_commit(server: Make) -> None:
    made = server(auto=False)
    peer = made.connect()
    peer.send(announce(5, 1) + doc(1, version=1))
    made.clock.pump([SILENCE] * 5)
    assert peer.acks == []
    made.journal.commit()
    made.clock.advance(SILENCE)
    assert peer.acks == [(1, 1)]


# Time-outs and closing


def test_idle_connection_is_closed_without_a_log_line(server: Make, window: Make, log_lines: list[str]) -> None:
    made = server(idle_timeout=60.0)
    peer = made.connect()
    made.clock.advance(25)
    peer.send(window(1))
    made.clock.pump([10] * 5)
    assert not peer.transport.disconnecting
    made.clock.advance(10)
    assert peer.transport.disconnecting
    assert made.count("idle") == 1
    assert log_lines == []


def test_writer_that_sends_only_empty_windows_is_not_idle(server: Make) -> None:
    made = server(idle_timeout=60.0)
    peer = made.connect()
    for _ in range(5):
        made.clock.pump([10] * 5)
        peer.send(announce(0))
        assert not peer.transport.disconnecting
    assert peer.acks == [(2, 0)] * 5


def test_writer_that_waits_for_a_commit_is_not_idle(server: Make, window: Make) -> None:
    made = server(auto=False)
    peers = [made.connect(port=5000 + version) for version in (1, 2)]
    for version, peer in enumerate(peers, 1):
        peer.send(window(1, version=version))
    made.clock.pump([5] * 60)
    assert not any(peer.transport.disconnecting for peer in peers)
    made.journal.commit()
    assert [peer.acks[-1] for peer in peers] == [(1, 1), (2, 1)]


def test_stalled_window_is_idle_after_its_durable_events_are_acknowledged(server: Make) -> None:
    made = server(idle_timeout=60.0)
    peer = made.connect()
    peer.send(announce(9) + doc(1))
    made.clock.pump([5] * 13)
    assert peer.transport.disconnecting
    assert peer.acks == [(2, 1)], "durable events are acknowledged before closing"


def test_slow_frame_is_not_idle(server: Make) -> None:
    made = server(idle_timeout=60.0)
    peer = made.connect()
    frame = doc(1, b"x" * (8 << 20))
    peer.send(announce(1))
    step = 128 << 10
    for begin in range(0, len(frame), step):
        peer.send(frame[begin : begin + step])
        made.clock.advance(1.2)
    assert peer.acks == [(2, 1)]


def test_half_closed_writer_is_acknowledged(server: Make, window: Make) -> None:
    made = server(auto=False)
    for compressed in (False, True):
        peer = made.connect()
        assert verifyObject(IHalfCloseableProtocol, peer.protocol)
        peer.send(window(200, compressed=compressed) * 5)
        peer.protocol.readConnectionLost()
        made.settle()
        assert not peer.transport.disconnecting
        made.journal.commit()
        assert peer.acks == [(2, 200)] * 5
        assert peer.transport.disconnecting


def test_data_after_half_close_is_ignored(server: Make, window: Make) -> None:
    made = server(auto=False)
    peer = made.connect()
    peer.send(window(2))
    peer.protocol.readConnectionLost()
    peer.send(b"ignored")
    made.journal.commit()
    assert peer.acks == [(2, 2)]
    assert peer.transport.disconnecting
    assert made.count("bad-version") == 0


@both
@pytest.mark.parametrize("announced", [3, 5])
def test_stop_finishes_the_open_window_and_reads_no_further_one(server: Make, version: int, announced: int) -> None:
    made = server()
    peer = made.connect()
    peer.send(announce(announced, version) + doc(1, version=version))
    drained = made.factory.drain()
    made.clock.advance(0.5)
    assert not peer.transport.disconnecting
    more = b"".join(doc(n, version=version) for n in (2, 3))
    peer.send(more + announce(1, version) + doc(4, version=version))
    made.settle()
    assert (peer.acks, len(made.payloads)) == ([(version, 3)], 3)
    assert peer.transport.disconnecting
    peer.lose()
    assert drained.called


def test_stop_waits_two_seconds_for_the_rest_of_a_window(server: Make, window: Make) -> None:
    made = server()
    peer = made.connect()
    peer.send(window(2, size=9))
    made.factory.drain()
    made.clock.advance(1.9)
    assert not peer.transport.disconnecting
    made.clock.advance(0.2)
    assert (peer.transport.disconnecting, peer.acks) == (True, [])


def test_stop_handles_data_that_waits_for_a_turn(server: Make, window: Make) -> None:
    made = server()
    peer, idle = made.connect(), made.connect(port=5001)
    peer.send(window(1_000, compressed=True, level=0))
    made.factory.drain()
    assert idle.transport.disconnecting, "nothing of it is open"
    made.settle()
    assert (peer.acks, len(made.payloads), made.broker.budget.used) == ([(2, 1_000)], 1_000, 0)
    assert peer.transport.disconnecting


def test_forbidden_new_stream_closes_the_connection_without_an_acknowledgement(server: Make, window: Make) -> None:
    made = server(rules=StreamRules((StreamRule(names=("lumberjack",), new_streams=False),)), refused="close")
    peer = made.connect()
    peer.send(window(3))
    made.settle()
    assert peer.acks == []
    assert peer.transport.disconnecting
    assert made.count("NewStreamForbidden") == 1
    made.broker.publish([Run.of("lumberjack", [b"first"], source="test")])
    again = made.connect()
    again.send(window(3))
    made.settle()
    assert again.acks == [(2, 3)], "a writer may publish as soon as the stream exists"


def test_lost_connection_releases_everything(server: Make, window: Make) -> None:
    made = server(auto=False)
    peer = made.connect()
    peer.send(window(2) + window(500, compressed=True) + b"2")
    peer.lose()
    assert [call for call in made.clock.getDelayedCalls() if call.getTime() > 0] == []
    made.settle()
    made.journal.commit()
    assert made.broker.budget.used == 0
    assert made.broker.counters.gauges["lumberjack", "connections"] == 0


def test_connections_are_counted(server: Make) -> None:
    made = server()
    peers = [made.connect(port=5000 + n) for n in range(3)]
    peers[0].lose()
    peers.append(made.connect())
    counters, key = made.broker.counters, ("lumberjack", "connections")
    assert (counters.counts[key], counters.gauges[key], counters.peaks[key]) == (4, 3, 3)


# Protocol violations


def test_protocol_violation_closes_only_its_connection(server: Make, window: Make, log_lines: list[str]) -> None:
    made = server(auto=False)
    violator, honest = made.connect(), made.connect(port=5001)
    violator.send(window(1) + b"GET / HTTP/1.1")
    honest.send(window(2))
    made.journal.commit()
    assert violator.acks == [(2, 1)]
    assert violator.transport.disconnecting
    assert honest.acks == [(2, 2)]
    assert not honest.transport.disconnecting
    assert made.count("bad-version") == 1
    assert len(log_lines) == 1
    assert "lumberjack: bad-version from 10.0.0.1" in log_lines[0]


def test_exception_in_a_session_aborts_only_its_connection(server: Make, window: Make, logged_errors: Any) -> None:
    made = server()
    peer, other = made.connect(), made.connect(port=5001)
    peer.send(window(5_000, compressed=True, level=0))
    other.send(window(5_000, compressed=True, level=0))
    peer.protocol.session.use(lambda topic, strings: str(1 / 0))
    made.settle()
    assert peer.transport.aborted
    assert other.acks == [(2, 5_000)]
    assert len(logged_errors.take()) == 1
    peer.lose()


# Memory and turns


def test_huge_window_is_paused_by_data_that_is_not_durable(server: Make) -> None:
    """W = 2^32-1 allocates nothing; data that is not durable is bounded, and pauses reading."""
    made = server(auto=False, budget=InFlight(each=1 << 20))
    peer = made.connect()
    peer.send(announce(0xFFFFFFFF))
    sent = 0
    while peer.transport.reads:
        peer.send(doc(sent + 1, b"x" * 1000) * 50)
        sent += 50
        assert sent < 2_000
    assert made.broker.budget.used < 2 << 20
    made.journal.commit()
    assert peer.transport.reads
    assert made.broker.budget.used == 0


def test_reading_is_paused_while_the_session_has_work(server: Make, window: Make) -> None:
    made = server()
    peer = made.connect()
    peer.send(window(5_000, compressed=True, level=0))
    assert not peer.transport.reads
    assert made.broker.budget.used > 0
    made.settle()
    assert peer.transport.reads
    assert made.broker.budget.used == 0


def test_large_compressed_frame_waits_for_the_journal(server: Make, window: Make) -> None:
    made = server(auto=False, budget=InFlight(each=64 << 10))
    peer = made.connect()
    peer.send(window(20_000, compressed=True))
    made.settle()
    taken = peer.protocol.unsettled
    assert taken
    made.settle()
    assert peer.protocol.unsettled == taken, "held back"
    assert made.broker.budget.used < 4 << 20
    for _ in range(1000):
        if peer.acks:
            break
        made.journal.commit()
        made.settle()
    assert peer.acks == [(2, 20_000)]
    assert made.broker.budget.used == 0
    assert len(made.payloads) == 20_000


def test_data_received_during_work_is_processed_after_it(server: Make, window: Make) -> None:
    """TLS delivers data that it has decrypted already, even after it was paused."""
    made = server()
    peer = made.connect()
    peer.send(window(5_000, compressed=True, level=0))
    peer.send(window(3))
    assert peer.acks == []
    made.settle()
    assert peer.acks == [(2, 5_000), (2, 3)]


def test_small_compressed_window_is_published_without_a_turn(server: Make, window: Make) -> None:
    made = server()
    peer = made.connect()
    peer.send(window(3, compressed=True))
    assert (peer.acks, peer.transport.reads, made.broker.budget.used) == ([(2, 3)], True, 0)


def test_small_window_does_not_wait_behind_large_ones_of_its_network(server: Make, window: Make) -> None:
    made = server()
    heavy, light = [made.connect(port=6000 + n) for n in range(20)], made.connect()
    for peer in heavy:
        peer.send(window(5_000, compressed=True, level=0))
    light.send(window(3, compressed=True))
    assert not light.acks, "it waits for a turn"
    made.settle()
    assert light.acks == [(2, 3)]
    assert all(peer.acks == [(2, 5_000)] for peer in heavy)
    producers = [record.producer for record in made.records]
    assert producers.index("10.0.0.1:5000") < len(producers) // 4


def test_small_window_waits_for_the_journal_and_then_not_behind_large_ones(server: Make, window: Make) -> None:
    made = server(auto=False, in_flight=1 << 20)
    heavy = [made.connect(port=6000 + n) for n in range(20)]
    for peer in heavy:
        peer.send(window(20_000))
    light = made.connect()
    light.send(window(3))
    made.settle()
    assert made.broker.budget.held >= 1 << 20
    for _ in range(2):
        made.journal.commit()
        made.settle()
    made.journal.commit()
    assert light.acks == [(2, 3)]
    assert not any(peer.acks for peer in heavy[10:])


def test_large_compressed_frame_waits_for_memory_after_its_first_turn(server: Make, window: Make) -> None:
    made = server(budget=InFlight(limit=64 << 20))
    peer, other = made.connect(), made.connect(port=5001)
    other.protocol.account.hold(63 << 20)
    peer.send(window(50_000, compressed=True))
    made.settle()
    taken = len(made.payloads)
    assert 0 < taken < 50_000
    other.protocol.account.release(63 << 20)
    made.settle()
    assert peer.acks == [(2, 50_000)]
    assert made.broker.budget.used == 0


def test_work_waits_while_too_much_data_is_in_flight(server: Make, window: Make) -> None:
    made = server(auto=False, budget=InFlight(each=1_000))
    peer = made.connect()
    peer.send(window(100) + window(2, compressed=True))
    made.settle()
    taken = made.broker.budget.used
    made.settle()
    assert made.broker.budget.used == taken
    made.journal.commit()
    made.settle()
    made.journal.commit()
    assert peer.acks == [(2, 100), (2, 2)]
    assert peer.transport.reads


#: Events of a window: as many as Filebeat sends, and fewer with the pure-Python kernels.
HERD = 2_048 if kernels.NATIVE else 256


@pytest.mark.slow
@both
def test_hundreds_of_writers_stay_within_the_budget(
    server: Make, window: Make, version: int, ladder: Callable[[int, int], int]
) -> None:
    """Writers send 5 windows of 2,048 events each: none is closed, all take turns, and waiting writers of version 2 are
    kept alive.  ``make test`` has 150 writers, ``make torture`` 500, with as much budget for each, but at least 3 MiB:
    with less, hardly more than one frame at a time fits into the part of the budget that is for large ones."""
    count = ladder(150, 500)
    budget = InFlight(limit=(24 << 20) * count // 500 if kernels.NATIVE else 3 << 20)
    made = server(auto=False, budget=budget, max_per_host=1000)
    data = window(HERD, version=version, compressed=True, topic="herd")
    writers = [made.connect(port=1000 + n) for n in range(count)]
    left = {writer: [data[i : i + 65_536] for i in range(0, len(data), 65_536)] * 5 for writer in writers}
    heard = dict.fromkeys(writers, (0, 0.0))
    most, rounds = 0, 0
    while any(left.values()) or any(len(final(writer)) < 5 for writer in writers):
        rounds += 1
        assert rounds < 5_000, "a writer is not served"
        for writer, chunks in left.items():
            if chunks and writer.transport.reads:
                writer.send(chunks.pop(0))
        made.clock.advance(0.2)
        most = max(most, budget.used)
        if rounds % 30 == 0:
            made.journal.commit()
        now = made.clock.seconds()
        for writer in writers if version == 2 else ():
            said = len(writer.transport.value())
            if said > heard[writer][0]:
                heard[writer] = said, now
            waits = len(final(writer)) < 5
            assert not waits or now - heard[writer][1] < KEEP_ALIVE + 1.0, "a writer was not kept alive in time"
    assert most <= budget.limit + (8 << 20), "the budget, and the data inflated by granted turns"
    assert not any(writer.transport.disconnecting for writer in writers)
    assert all(final(writer) == [(version, HERD)] * 5 for writer in writers)
    assert made.journal.bounds("lumberjack")[1] == count * 5 * HERD
    assert any((2, 0) in writer.acks for writer in writers) == (version == 2), (
        "some writers of version 2 waited for long"
    )
    assert budget.used == 0


def final(writer: Any) -> list[tuple[int, int]]:
    """Return the acknowledgements of whole windows."""
    return [ack for ack in writer.acks if ack[1] == HERD]


@pytest.mark.slow
@both
def test_uncompressed_writers_have_bounded_data_in_flight(
    server: Make, window: Make, version: int, ladder: Callable[[int, int], int]
) -> None:
    """The data in flight also bounds how long a light writer among them waits.  ``make torture`` has 500 writers."""
    made = server(auto=False, max_per_host=1000, in_flight=16 << 20)
    writers = [made.connect(port=1000 + n) for n in range(ladder(150, 500))]
    data = window(2_000, version=version)
    left = dict.fromkeys(writers, 5 * data)
    most = 0
    for _ in range(10_000):
        for writer, rest in left.items():
            if rest and writer.transport.reads:
                size = writer.transport.bufferSize
                writer.send(rest[:size])
                left[writer] = rest[size:]
        most = max(most, made.broker.budget.used)
        made.clock.advance(0.01)
        made.journal.commit()
        if all(len(writer.acks) == 5 for writer in writers):
            break
    assert most <= 2 * READS + (16 << 20)
    assert all(writer.acks == [(version, 2_000)] * 5 for writer in writers)
    assert made.broker.budget.used == 0


def test_light_writers_do_not_wait_while_heavy_ones_saturate_the_disk(
    server: Make,
) -> None:
    made = server(auto=False, in_flight=16 << 20)
    heavy, other = (made.connect(port=5000 + number) for number in range(2))
    light = made.connect("10.0.0.2")
    event = doc(1, b"x" * (1 << 20))
    heavy.send(announce(16) + event * 8)
    heavy.send(event * 8)
    other.send(announce(16) + event * 8)
    made.settle()
    assert made.broker.budget.used > 16 << 20
    assert [peer.transport.reads for peer in (heavy, other, light)] == [False, False, True]
    light.send(announce(1) + doc(1))
    assert light.transport.reads
    light.send(announce(1) + doc(2))
    made.settle()
    assert made.broker.sequencer.last("lumberjack") == 18, "its network has not used its part"
    made.journal.commit()
    for _ in range(5):
        made.settle()
        made.journal.commit()
    assert light.acks == [(2, 1), (2, 2)]
    assert heavy.acks == [(2, 1)]
    assert all(peer.transport.reads for peer in (heavy, other, light))


@both
def test_large_window_is_published_in_pieces_and_acknowledged_once(server: Make, version: int) -> None:
    """2,048 events of 40 KB that hardly compress: 30 MB, in several commits; version 2 is kept alive meanwhile."""
    made = server(auto=False)
    peer = made.connect()
    documents = [random.Random(n).randbytes(15_000) + bytes(25_000) for n in range(2_048)]
    inner = b"".join(doc(n, document, version) for n, document in enumerate(documents, 1))
    wire = announce(2_048, version) + compressed_frame(inner, version)
    assert len(wire) > 30_000_000
    commits = most = 0
    while wire or not [ack for ack in peer.acks if ack[1]]:
        if wire and peer.transport.reads:
            peer.send(wire[: peer.transport.bufferSize])
            wire = wire[peer.transport.bufferSize :]
        made.clock.advance(0.5)
        most = max(most, made.broker.budget.used)
        if not peer.transport.reads or not wire:
            before = len(made.payloads)
            made.journal.commit()
            commits += len(made.payloads) > before
    made.settle()
    assert [ack for ack in peer.acks if ack[1]] == [(version, 2_048)]
    assert ((2, 0) in peer.acks) == (version == 2)
    assert made.payloads == documents
    assert commits > 5
    assert most < 16 << 20
    assert made.broker.budget.used == 0


# Options


@pytest.mark.parametrize(
    "wrong",
    [
        {"max-frame": "0"},
        {"idle-timeout": "8s"},
        {"topic": "a..b"},
        {"tls-client-auth": "maybe"},
        {"tls-minimum": "1.0"},
    ],
)
def test_invalid_options_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="lumberjack"):
        build(LumberjackSettings, "lumberjack", wrong)


def test_options_become_limits() -> None:
    limits = build(LumberjackSettings, "lumberjack", {"topic": "log.level", "max-frame": "9MiB"}).limits
    assert limits.topic == (b"log", b"level")
    assert limits.max_frame == 9 << 20
    assert build(LumberjackSettings, "lumberjack", {"topic": ""}).limits.topic == ()


def test_false_lengths_and_counts_close_the_connection_without_allocating(server: Make) -> None:
    """Lengths and counts of 2^32-1 close the connection as soon as the header arrived."""
    for false_header in (
        b"2J" + pack(">II", 1, 0xFFFFFFFF),
        b"1D" + pack(">II", 1, 0xFFFFFFFF),
        b"1D" + pack(">IIII", 1, 1, 0, 0xFFFFFFFF),
    ):
        made = server(refused="close")
        peer = made.connect()
        peer.send(false_header)
        assert peer.transport.disconnecting
        assert made.broker.budget.used == 0


def test_writer_that_may_publish_nothing_is_closed_without_an_acknowledgement(server: Make, window: Any) -> None:
    made = server()
    made.broker.guard.change(parse({"allow": [{"network": "0.0.0.0/0", "subscribe": "*"}]}))
    peer = made.connect()
    peer.protocol.dataReceived(window(3))
    made.clock.advance(0)
    assert peer.transport.value() == b""
    assert peer.transport.disconnecting
    assert (made.broker.bounds("lumberjack"), made.broker.bounds("dead.lumberjack")) == ((1, 0), (1, 0))
    assert made.count("Forbidden") == 1


def test_events_of_a_forbidden_stream_become_dead_letters(server: Make, window: Any) -> None:
    made = server()
    made.broker.guard.change(parse({"allow": [{"network": "0.0.0.0/0", "publish": "other"}]}))
    peer = made.connect()
    peer.protocol.dataReceived(window(3))
    made.settle()
    assert (peer.acks, len(made.records_of("dead.lumberjack"))) == ([(2, 3)], 3)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("size", [101, 3 << 20, 20 << 20])
def test_event_beyond_the_limit_becomes_a_dead_letter_and_blocks_no_others(
    server: Make, size: int, compressed: bool
) -> None:
    made = server(max_frame=100)
    frames = doc(1) + doc(2, b"x" * size) + doc(3)
    wire = announce(3) + (compressed_frame(frames) if compressed else frames)
    peer = made.connect()
    for at in range(0, len(wire), 1 << 20):
        peer.send(wire[at : at + (1 << 20)])
        made.settle()
        assert made.broker.budget.used <= 5 << 20
    (letter,) = made.records_of("dead.lumberjack")
    assert (peer.acks, made.payloads) == ([(2, 3)], [b"{}", b"{}"])
    assert (len(letter.payload), letter.topic) == (min(size, 1 << 20), f"PayloadTooLarge {size} lumberjack")
    assert made.broker.budget.used == 0


@both
def test_events_too_large_for_the_stream_become_dead_letters_and_the_window_is_acknowledged(
    server: Make, version: int
) -> None:
    made = server(auto=False, refused="dead-letter")
    made.broker.restrict("lumberjack", 8)
    peer = made.connect()
    events = [b"{}", b'{"too": "large"}', b"[1]", b'{"large": "too"}', b"[2]"]
    sent = [doc(at, event, version) for at, event in enumerate(events, 1)]
    peer.send(announce(5, version) + b"".join(sent))
    made.settle()
    assert peer.acks == []
    made.journal.commit()
    assert peer.acks == [(version, 5)]
    assert made.payloads == [b"{}", b"[1]", b"[2]"]
    first, second = made.records_of("dead.lumberjack")
    assert (first.payload, second.payload) == (events[1], events[3])
    assert (first.topic, first.producer_seq) == ("PayloadTooLarge 16 lumberjack", 2)
    assert made.count("dead-letters") == 2
