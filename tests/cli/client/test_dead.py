"""``fyrehose dead``: what a letter says about its message."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from click.testing import CliRunner

from fyrehose.cli import main
from fyrehose.cli.client.dead import Letter
from fyrehose.errors import FyrehoseError, PayloadTooLarge
from fyrehose.ndjson import objects
from fyrehose.records import MAX_NAME, Run
from fyrehose.subscriptions.letters import MOST, letter
from fyrehose.subscriptions.progress import SOURCE
from tests.doubles.awkward import NAMES


def read(run: Run) -> Letter:
    """Return *run*, which is a dead letter, as an object of the class that commands use."""
    from json import loads

    return Letter({"token": "1.1", **loads(next(objects(run.numbered(3, 0))))})


def of_a_listener(payload: bytes, stream: str = "my orders", **labels: Any) -> Letter:
    refused = Run.of(stream, [payload], source="figg", producer="h:1", **labels)
    return read(letter("figg", refused, PayloadTooLarge("too large")))


@pytest.mark.parametrize("stream", ["my orders", *NAMES])
def test_dead_letter_of_a_listener_is_published_to_its_original_stream_or_not_at_all(stream: str) -> None:
    found = of_a_listener(b"\xff\x00", stream, content_type="a/b")
    assert (found.name, found.about[:2]) == ("dead.figg/3", ("PayloadTooLarge", 2))
    assert stream.startswith(found.about[2]), "the name may be cut"
    part = len(f"PayloadTooLarge 2 {stream}".encode()) > MAX_NAME - 4
    with pytest.raises(FyrehoseError, match="only the beginning of the name") if part else nullcontext():
        assert found.message() == {"stream": stream, "payload_base64": "/wA=", "content_type": "a/b"}


def test_dead_letter_of_a_shared_subscription_is_published_to_its_original_stream() -> None:
    found = read(Run.of("orders.dead", [b"x"], source=SOURCE, producer="a/b", producer_seq=17, topic="t"))
    assert found.about == ("failed as record 17", 1, "a/b")
    assert found.message() == {"stream": "a/b", "payload": "x"}


def test_truncated_dead_letter_is_not_published_again() -> None:
    with pytest.raises(FyrehoseError, match=rf"has only {MOST} of the {MOST + 5} bytes of its message"):
        of_a_listener(bytes(MOST + 5)).message()


@pytest.mark.parametrize("topic", ["hello world", "Forbidden 1 payments"])
def test_a_record_of_a_peer_is_not_published_as_a_dead_letter(topic: str) -> None:
    forged = read(Run.of("dead.figg", [b"x"], source="figg", topic=topic))
    assert forged.about == ("not a dead letter", 1, "")
    with pytest.raises(FyrehoseError, match="a peer has published it"):
        forged.message()


@pytest.mark.parametrize("words", [["replay"], ["delete", "--all", "dead.figg/1"]])
def test_letters_are_selected_by_name_or_with_all(words: list[str]) -> None:
    result = CliRunner().invoke(main, ["dead", *words])
    assert result.exit_code == 2
    assert "pass the letters to handle as STREAM/SEQ, or pass --all" in result.output
