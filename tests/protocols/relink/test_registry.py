"""The links that a listener knows, over restarts and without end."""

from __future__ import annotations

from typing import Any

import pytest

from fyrehose.interfaces import JournalState
from fyrehose.protocols.relink import registry as module
from fyrehose.protocols.relink.linklog import SOURCE, Kind, pack

STREAM = ".relink/x"


def used(server: Any, *payloads: bytes) -> Any:
    peer = server.linked()
    for payload in payloads:
        peer.link.send((0,), (payload,))
    peer.talk()
    return peer


def test_the_epoch_stays_while_the_links_do(make_server: Any) -> None:
    server = make_server()
    epoch = server.registry.epoch
    assert epoch == server.now
    server.now += 5_000_000
    server.restart()
    assert server.registry.epoch == epoch


def test_without_them_it_goes_on_even_if_the_clock_goes_back(make_server: Any, logged_errors: Any) -> None:
    server = make_server()
    peer = used(server, b"x")
    epoch = server.registry.epoch
    server.broker.publish([module.Run.of(STREAM, [pack(Kind.ENTRY, epoch, 1, b"damaged")], source=SOURCE)])
    server.now = 7
    server.restart()
    assert server.registry.epoch == epoch + 1
    peer.leave()
    again = server.linked(old=peer.link)
    assert not again.events[0].resumed
    assert again.events[0].lost is peer.link
    assert logged_errors.take() == []


def test_a_snapshot_that_is_none_loses_the_links(make_server: Any) -> None:
    server = make_server()
    used(server, b"x")
    (entry,) = server.registry.entries.values()
    body = entry.name + b"\xff"
    server.broker.publish([module.Run.of(STREAM, [pack(Kind.DELTA, server.registry.epoch, 1, body)], source=SOURCE)])
    server.restart()
    assert not server.registry.entries


def test_checkpoints_keep_the_stream_short(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKPOINT", 200)
    server = make_server()
    peer = used(server)
    for number in range(40):
        peer.link.send((0,), (b"%d" % number,))
        peer.talk()
        server.clock.advance(1)
    last = server.journal.bounds(STREAM)[1]
    assert server.registry._checkpoint > last - 20
    server.journal.forget(STREAM, server.registry._checkpoint)
    peer.leave()
    server.restart()
    assert server.linked(old=peer.link).events[0].resumed
    assert len(server.payloads()) == 40


def test_a_checkpoint_that_retention_takes_is_written_again(make_server: Any) -> None:
    server = make_server()
    peer = used(server, b"x")
    server.journal.forget(STREAM, 2)
    assert server.registry._checkpoint == 1
    server.clock.advance(1)
    peer.leave()
    server.restart()
    assert server.linked(old=peer.link).events[0].resumed


def test_a_checkpoint_that_is_refused_is_tried_again(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKPOINT", 10)
    server = make_server()
    used(server, b"x", b"y", b"z")
    server.restart()
    server.registry._behind = 1_000_000
    server.journal.enter(JournalState.READ_ONLY, "full")
    server.clock.advance(1)
    before = server.registry._checkpoint
    server.journal.enter(JournalState.WRITABLE, "room")
    server.clock.advance(1)
    assert server.registry._checkpoint > before


def test_a_write_that_is_refused_is_forgotten_before_the_next_checkpoint(make_server: Any) -> None:
    server = make_server(auto=False)
    peer = server.connect()
    peer.talk()
    server.journal.commit()
    peer.talk()
    peer.link.send((0,), (b"x",))
    peer.talk()
    (entry,) = server.registry.entries.values()
    assert entry.link.receiving[0].done == 0
    server.journal.enter(JournalState.READ_ONLY, "full")
    assert entry.link.receiving[0].done == -1
    assert entry.writes == 0


def test_ids_are_unique_and_within_their_range(make_server: Any) -> None:
    server = make_server()
    peers = [server.linked(host=f"10.0.0.{i}") for i in range(5)]
    assert sorted(peer.link.id for peer in peers) == [2, 3, 4, 5, 6]
    bits = iter([1, 1, (1 << 63) - 1])
    server.registry.randbits = lambda count: next(bits)
    assert server.linked().link.id == 1
