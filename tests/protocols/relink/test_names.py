"""Endpoint names, and streams whose names have special characters."""

from __future__ import annotations

from typing import Any

import pytest

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.relink.frames import Terms
from fyrehose.protocols.relink.names import EndpointName, parse, publish_name, subscribe_name
from fyrehose.records import MAX_NAME
from tests.doubles.awkward import NAMES


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("publish:a", EndpointName(stream="a", subscribe=False)),
        ("publish:a@5", EndpointName(stream="a@5", subscribe=False)),
        ("publish:50%", EndpointName(stream="50%", subscribe=False)),
        ("publish:a%3Fb", EndpointName(stream="a?b", subscribe=False)),
        ("subscribe:a", EndpointName(stream="a", subscribe=True)),
        ("subscribe:a@0", EndpointName(stream="a", subscribe=True, after=0)),
        ("subscribe:a@b", EndpointName(stream="a@b", subscribe=True)),
        ("subscribe:a@b@7", EndpointName(stream="a@b", subscribe=True, after=7)),
        ("subscribe:a%407", EndpointName(stream="a@7", subscribe=True)),
        ("subscribe:a?seq", EndpointName(stream="a", subscribe=True, seqs=True)),
        ("subscribe:a@7?seq", EndpointName(stream="a", subscribe=True, after=7, seqs=True)),
        ("subscribe:%C3%A9@7?seq", EndpointName(stream="é", subscribe=True, after=7, seqs=True)),
        ("publish:é:x", EndpointName(stream="é:x", subscribe=False)),
    ],
)
def test_valid_endpoint_names_are_parsed(name: str, place: EndpointName) -> None:
    assert parse(Terms(endpoint=name)) == place


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x",
        "publish",
        "publish:",
        "subscribe:@5",
        "PUBLISH:a",
        "subscribe:a@" + "1" * 16,
        "publish:a?seq",
        "publish:a?",
        "subscribe:a?",
        "subscribe:a?seq=1",
        "subscribe:a?seq&seq",
        "subscribe:a?name",
        "subscribe:a?name=a&name=b",
        "subscribe:a?takeover",
        "subscribe:a?takeover=1&name=a",
        "publish:a?name=n",
        "subscribe:a?other",
        "subscribe:?seq",
        "subscribe:a%FF",
    ],
)
def test_invalid_endpoint_names_are_refused(name: str) -> None:
    with pytest.raises(RemoteProtocolError, match="endpoint-unknown"):
        parse(Terms(endpoint=name))


@pytest.mark.parametrize("stream", [*NAMES, *(chr(0xFC) * size for size in range(100, 128))])
def test_epoch_is_left_out_of_a_name_that_would_be_too_long(stream: str) -> None:
    epoch, found = "0123456789abcdef", subscribe_name(stream, 7, epoch="0123456789abcdef")
    without = subscribe_name(stream, 7)
    whole = f"{without}?epoch={epoch}"
    assert found == (whole if len(whole.encode()) <= MAX_NAME else without)


@pytest.mark.parametrize("stream", ["a", "7", "a@5", "a?seq", "a@5?seq", "50%", "a%405", "%", "?", "@", "@1", "é:x?"])
@pytest.mark.parametrize("after", [None, 0, 7])
@pytest.mark.parametrize("seqs", [False, True])
@pytest.mark.parametrize("epoch", ["", "1f"])
@pytest.mark.parametrize("named", [{}, {"name": "n"}, {"name": "n", "takeover": True}])
def test_escaped_stream_names_round_trip(
    stream: str, after: int | None, seqs: bool, epoch: str, named: dict[str, Any]
) -> None:
    assert parse(Terms(endpoint=publish_name(stream))) == EndpointName(stream=stream, subscribe=False)
    place = EndpointName(stream=stream, subscribe=True, after=after, seqs=seqs, epoch=epoch, **named)
    assert parse(Terms(endpoint=subscribe_name(stream, after, seqs=seqs, epoch=epoch, **named))) == place
