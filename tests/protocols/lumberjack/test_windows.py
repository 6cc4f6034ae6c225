"""Windows: rules of acknowledgements that the golden sessions do not reach."""

from __future__ import annotations

import pytest

from fyrehose.protocols.lumberjack.windows import Windows


def made(version: int = 2, *sizes: int) -> Windows:
    windows = Windows()
    for size in sizes:
        windows.announce(version, size, True)
    windows.version = version
    return windows


def numbers(windows: Windows) -> list[int]:
    return [number for _, number in windows.acks()]


def test_room_is_the_rest_of_the_open_window() -> None:
    windows = Windows()
    assert windows.room == 1 << 32
    windows.announce(2, 3, True)
    assert windows.room == 3
    windows.receive(2, 7, True)
    assert windows.room == 1
    windows.receive(1, 8, True)
    assert windows.room == 1 << 32, "beyond the window"
    old = made(1, 3)
    old.receive(3, 3, True)
    assert old.room == 3, "the window slides"


def test_acknowledgements_keep_the_order_of_the_windows() -> None:
    windows = made(2, 1)
    windows.receive(1, 1, True)
    windows.announce(2, 0, True)
    windows.announce(2, 1, True)
    windows.receive(1, 5, True)
    assert numbers(windows) == []
    windows.durable(1)
    assert numbers(windows) == [1, 0]
    windows.durable(1)
    assert numbers(windows) == [5]
    assert not windows.unacknowledged


def test_consecutive_empty_windows_share_one_entry() -> None:
    windows = made(2, 1)
    windows.receive(1, 1, True)
    for _ in range(1000):
        windows.announce(2, 0, True)
    assert len(windows.unacknowledged) == 2
    windows.durable(1)
    assert numbers(windows) == [1] + [0] * 1000


def test_empty_windows_are_acknowledged_in_the_version_of_each() -> None:
    windows = made(2, 1)
    windows.receive(1, 7, True)
    for version in (1, 1, 2, 1):
        windows.announce(version, 0, True)
    windows.durable(1)
    assert windows.acks() == [(2, 7), (1, 0), (1, 0), (2, 0), (1, 0)]


def test_window_is_acknowledged_only_when_all_of_it_is_durable() -> None:
    windows = made(2, 5)
    windows.receive(3, 3, True)
    windows.receive(2, 5, True)
    windows.durable(4)
    assert (numbers(windows), windows.silence_acks()) == ([], [])
    windows.durable(1)
    assert numbers(windows) == [5]


@pytest.mark.parametrize("version", [1, 2])
def test_unverified_window_is_not_acknowledged(version: int) -> None:
    windows = made(version, 2)
    windows.receive(1, 1, True)
    windows.receive(1, 2, False)
    windows.durable(2)
    assert (numbers(windows), windows.silence_acks(), len(windows.unsealed)) == ([], [], 1)
    windows.seal()
    assert (numbers(windows), windows.unsealed) == ([2], [])


def test_window_announced_in_a_compressed_frame_waits_for_the_end_of_the_frame() -> None:
    windows = Windows()
    windows.announce(2, 0, False)
    windows.announce(2, 0, True)
    assert numbers(windows) == []
    windows.seal()
    assert numbers(windows) == [0, 0]
    windows.receive(1, 4, False)
    windows.durable(1)
    assert numbers(windows) == []
    windows.seal()
    assert numbers(windows) == [4]


def test_keep_alives_are_for_version_2_only() -> None:
    assert made(1, 3).keep_alive_acks() == []
    assert made(2, 3).keep_alive_acks() == [(2, 0)]
    mixed = made(1, 1)
    mixed.receive(1, 1, True)
    mixed.announce(2, 1, True)
    assert mixed.keep_alive_acks() == [], "the oldest window is of version 1"


def test_silent_version_1_writer_is_acknowledged_once() -> None:
    windows = made(1, 9)
    assert not windows.silence_ack_due
    windows.receive(2, 2, True)
    assert windows.ack_pending
    assert not windows.silence_ack_due
    windows.durable(2)
    assert windows.silence_ack_due
    assert windows.silence_acks() == [(1, 2)]
    assert not windows.silence_ack_due
    assert not windows.ack_pending
    windows.announce(1, 1, True)
    assert numbers(windows) == [], "it was acknowledged already"
