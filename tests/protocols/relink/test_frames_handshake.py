"""The fields of the handshake as bytes."""

from __future__ import annotations

from itertools import product

import pytest

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.protocols.relink import frames
from fyrehose.protocols.relink.frames import ID_SIZES, Hello, Terms

#: The example of the specification: a name of six bytes.
SIX = Hello(
    terms=Terms(endpoint="sports", connector_size=2, listener_size=4, connector_transactions=True),
    require=True,
    epoch=0x0102030405060708,
    link_id=0x1112131415161718,
)
SIX_TEXT = "06 73706f727473 02 04 05 000000000000 0807060504030201 1817161514131211"
SIX_BYTES = bytes.fromhex(SIX_TEXT)

SHORT = Hello(terms=Terms(endpoint="", listener_transactions=True))
SHORT_TEXT = "00 00 00 02 00000000 0000000000000000 0000000000000000"
GOLDEN = [(SIX, SIX_TEXT), (SHORT, SHORT_TEXT)]


@pytest.mark.parametrize(("hello", "text"), GOLDEN)
def test_hello_matches_its_golden_bytes(hello: Hello, text: str) -> None:
    data = bytes.fromhex(text)
    assert hello.serialize().hex() == data.hex()
    assert frames.unpack_hello(bytearray(data)) == hello


def test_hello_round_trip_with_every_name_length() -> None:
    for length in range(256):
        hello = Hello(terms=Terms(endpoint="n" * length, connector_size=8), epoch=1, link_id=2)
        data = hello.serialize()
        assert len(data) % 8 == 0
        assert frames.unpack_hello(bytearray(data)) == hello
        for size in range(len(data) + 1):
            needed = frames.hello_size(bytearray(data[:size]))
            assert (needed <= size) is (size == len(data)), "the size is known from the first byte on"


@pytest.mark.slow
def test_only_valid_id_sizes_are_accepted() -> None:
    for connector, listener in product(range(256), repeat=2):
        data = bytearray([1, ord("n"), connector, listener])
        if connector in ID_SIZES and listener in ID_SIZES:
            assert frames.hello_size(data) == 8 + 16
        else:
            with pytest.raises(RemoteProtocolError, match="bad-id-size"):
                frames.hello_size(data)
    with pytest.raises(RemoteProtocolError, match="bad-id-size"):
        frames.hello_size(bytearray([0, 3]))  # The other size has not arrived.


def test_padding_and_unused_flags_are_ignored() -> None:
    for place in (9, *range(10, 16)):
        for bit in range(8):
            if place == 9 and bit < 3:
                continue
            data = bytearray(SIX_BYTES)
            data[place] ^= 1 << bit
            assert frames.unpack_hello(data) == SIX


@pytest.mark.parametrize("name", [b"\xff", b"\xc3", b"\xed\xa0\x80"])
def test_names_must_be_utf_8(name: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="endpoint-not-utf-8"):
        frames.hello_size(bytearray([len(name)]) + name)


def test_link_ids_must_be_below_2_63() -> None:
    bad = bytearray(SIX_BYTES)
    bad[-1] |= 0x80
    with pytest.raises(RemoteProtocolError, match="bad-link-id"):
        frames.unpack_hello(bad)
    with pytest.raises(RemoteProtocolError, match="bad-link-id"):
        frames.unpack_reply(bytearray(b"\xff" * 16))
    assert frames.unpack_reply(bytearray(frames.pack_reply(5, frames.MAX_LINK_ID))) == (5, (1 << 63) - 1)


def test_version_is_the_first_byte() -> None:
    assert frames.pack_version(0) == bytes(8)
    assert frames.unpack_version(bytearray(b"\7" + b"\xff" * 7)) == 7


@pytest.mark.parametrize("wrong", [{"endpoint": "é" * 128}, {"endpoint": "\ud800"}, {"connector_size": 3}])
def test_invalid_handshake_parameters_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(LocalProtocolError):
        Terms(**{"endpoint": "", **wrong})  # type: ignore[arg-type]


def test_invalid_link_id_is_refused() -> None:
    with pytest.raises(LocalProtocolError):
        Hello(terms=Terms(endpoint=""), link_id=1 << 63)
    largest = Hello(terms=Terms(endpoint=""), epoch=(1 << 64) - 1, link_id=(1 << 63) - 1)
    assert frames.unpack_hello(bytearray(largest.serialize())) == largest


def test_first_error_is_reported_however_bytes_arrive() -> None:
    wrong = bytearray(b"\1\xff\3\3")
    for size in (2, 3, 4):
        with pytest.raises(RemoteProtocolError, match="endpoint-not-utf-8"):
            frames.hello_size(wrong[:size])
