"""The client without a reactor: one connection for several requests, and what ends it."""

from __future__ import annotations

import pytest

from fyrehose.errors import RemoteProtocolError
from fyrehose.web.blocking_client import BlockingClient
from tests.doubles.answering import Answering, answer, own, proxy


def test_requests_share_a_connection_until_the_server_or_the_client_closes_it() -> None:
    last = answer(200, b"2", Connection="close")
    with Answering([own({"a": 1}), last, own({"a": 3}), own({"a": 4})], stays=True) as there:
        with BlockingClient(there.url) as client:
            assert client.ask("GET", "/a").json_object == {"a": 1}
            assert client.ask("POST", "/b", b"body", (("Range", "bytes=0-1"),)).body == b"2"
            assert there.connections == 1
            assert client.ask("GET", "/c").json_object == {"a": 3}
            client.close()
            assert client.ask("GET", "/d").json_object == {"a": 4}
        assert there.connections == 3
    assert [(method, target, body) for method, target, _, body in there.requests] == [
        ("GET", "/a", b""),
        ("POST", "/b", b"body"),
        ("GET", "/c", b""),
        ("GET", "/d", b""),
    ]
    assert there.requests[1][2]["range"] == "bytes=0-1"


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"", ConnectionError),
        (own({"a": 1})[:-1], ConnectionError),
        (b"SSH-2.0\r\n\r\n", RemoteProtocolError),
        (answer(200, bytes(1_001)), RemoteProtocolError),
    ],
)
def test_a_connection_without_a_complete_answer_is_not_used_again(said: bytes, error: type[Exception]) -> None:
    with Answering([said, own({"a": 1})]) as there, BlockingClient(there.url, largest=1_000) as client:
        with pytest.raises(error):
            client.ask("GET", "/")
        assert client.ask("GET", "/").json_object == {"a": 1}


def test_an_answer_of_another_program_is_returned_as_it_is() -> None:
    with Answering([proxy(502)]) as there, BlockingClient(there.url) as client:
        found = client.ask("GET", "/")
    assert (found.status, found.json_object) == (502, None)
