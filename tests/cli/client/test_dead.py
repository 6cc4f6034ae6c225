"""``fyrehose dead``: what a letter says about its message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from fyrehose.cli import main
from fyrehose.cli.client.dead import Letter
from fyrehose.errors import FyrehoseError, PayloadTooLarge
from fyrehose.ndjson import objects
from fyrehose.records import MAX_NAME, Run
from fyrehose.subscriptions.letters import MOST, letter
from fyrehose.subscriptions.letters import SOURCE as LISTENERS
from fyrehose.subscriptions.progress import SOURCE
from tests.doubles.answering import Answering, own
from tests.doubles.awkward import NAMES


def read(run: Run) -> Letter:
    """Return *run*, which is a dead letter, as an object of the class that commands use."""
    return Letter({"token": "1.1", **json.loads(next(objects(run.numbered(3, 0))))})


def of_a_listener(payload: bytes, stream: str = "my orders", **labels: Any) -> Letter:
    refused = Run.of(stream, [payload], source="figg", producer="h:1", **labels)
    return read(letter("figg", refused, PayloadTooLarge("too large")))


#: How long the name of a stream may be for the topic of a letter that says PayloadTooLarge and 2 bytes.
WHOLE = MAX_NAME - 4 - len("PayloadTooLarge 2 ")


@pytest.mark.parametrize("stream", ["my orders", *NAMES, *("x" * (WHOLE + more) for more in (-1, 0, 1))])
def test_dead_letter_of_a_listener_is_published_to_its_original_stream_or_not_at_all(stream: str) -> None:
    found = of_a_listener(b"\xff\x00", stream, content_type="a/b")
    assert (found.name, found.about[:2]) == ("dead.figg/3", ("PayloadTooLarge", 2))
    assert stream.startswith(found.about[2]), "the name may be cut"
    part = len(f"PayloadTooLarge 2 {stream}".encode()) > MAX_NAME - 4
    with pytest.raises(FyrehoseError, match="only the beginning of the name") if part else nullcontext():
        assert found.message() == {"stream": stream, "payload_base64": "/wA=", "content_type": "a/b"}


def test_dead_letter_of_a_shared_subscription_is_published_to_its_original_stream() -> None:
    found = read(Run.of("orders.dead", [b"x"], source=SOURCE, producer="a/b", producer_seq=17, topic="t" * MAX_NAME))
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


class Letters:
    """A server with dead letters, which leases some of them at a time, and refuses to settle some."""

    def __init__(self, names: list[str], lot: int, refuses: set[str]) -> None:
        self.names, self.lot, self.refuses = names, lot, refuses
        self.created: list[str] = []
        self.leased: set[str] = set()
        self.ended: list[str] = []
        self.published: list[str] = []
        self.leases: list[tuple[int, int]] = []
        self.there = Answering(self.answers())

    def answers(self) -> Iterator[bytes]:
        while True:
            method, target, _, body = self.there.requests[-1]
            fields = json.loads(body)
            if method == "PUT":
                assert fields == {
                    "match": "dead.*",
                    "lease": 5,
                    "limit": 0,
                    "window": 1000,
                    "most": 1000,
                    "shared": True,
                }
                self.created.append(target)
                yield own({"lag": 0})
            elif target.rpartition("/")[0] != self.created[-1]:
                yield own({"error": f"there is no {target}"}, 404)
            elif target.endswith("/lease"):
                self.leases.append((fields["wait"], fields["most"]))
                some = [name for name in self.names if name not in {*self.leased, *self.ended}][: self.lot]
                self.leased |= set(some)
                yield own({"records": [self.record(name) for name in some]})
            else:
                yield own(self.settle(fields))

    def record(self, name: str) -> dict[str, Any]:
        stream, seq = name.split("/")
        said = {"stream": stream, "seq": int(seq), "token": f"t{seq}", "time": 1_767_225_600_000_000, "payload": name}
        return said | {"source": LISTENERS, "producer": "h:1", "topic": f"Forbidden {len(name)} orders"}

    def settle(self, fields: dict[str, Any]) -> dict[str, Any]:
        for stream, seq, token, delay in fields.get("untried", []):
            assert (token, delay) == (f"t{seq}", {"delay": 0})
            self.leased.remove(f"{stream}/{seq}")
        for stream, seq, _ in fields.get("done", []):
            self.leased.remove(name := f"{stream}/{seq}")
            if name in self.refuses:
                return {"refused": [{"seq": seq, "why": "lease-lost"}]}
            self.ended.append(name)
            self.published += [message["payload"] for message in fields.get("publish", [])]
        return {"refused": []}


@pytest.mark.parametrize("seed", range(25))
def test_random_commands_end_the_chosen_letters_and_return_all_others(seed: int) -> None:
    dice = Random(seed)
    names = [f"dead.{dice.choice('ab')}/{seq}" for seq in dice.sample(range(1, 30), dice.randint(0, 6))]
    refuses = {name for name in names if dice.random() < 0.2}
    server, ended = Letters(names, dice.randint(1, 4), refuses), list[str]()
    with server.there:
        for number in range(1, 4):
            left = sorted(set(names) - set(ended), key=lambda name: (name[:6], int(name[7:])))
            command = dice.choice(("list", "replay", "delete"))
            chosen = dice.sample(left, min(len(left), dice.choice((0, 0, 2)))) + ["dead.a/99"] * (dice.random() < 0.2)
            words = chosen * dice.randint(1, 2) or ["--all"]
            wanted = chosen or left
            server.published.clear()
            said = CliRunner().invoke(
                main,
                ["dead", command, "--url", server.there.url, *(words if command != "list" else ["--format", "json"])],
            )
            assert not server.leased, "a letter stays leased"
            assert len(server.created) == number, "each command creates the subscription, which may be deleted"
            if command == "list":
                assert [json.loads(line)["letter"] for line in said.output.splitlines()] == left
                shown = CliRunner().invoke(main, ["dead", "--url", server.there.url], env={"COLUMNS": "120"}).output
                rows = [[name, "2026-01-01T00:00:00", "Forbidden", f"{len(name)}", "orders", "h:1"] for name in left]
                assert [line.split() for line in shown.splitlines()[1:]] == rows
                assert ("there are no dead letters in dead.*" in shown) == (not left)
                server.created.pop()
                continue
            stops = next((at for at, name in enumerate(wanted) if name in refuses), len(wanted))
            done = [] if "dead.a/99" in wanted else wanted[:stops]
            ended += done
            assert sorted(server.ended) == sorted(ended), said.output
            assert server.published == (done if command == "replay" else [])
            assert (
                f"{len(done)} letter{'s' * (len(done) != 1)} {'replayed' if command == 'replay' else 'deleted'}"
                in said.output
            )
            assert said.exit_code == (done != wanted)
            if "dead.a/99" in wanted:
                assert "there is no dead letter 'dead.a/99' in dead.*; see `fyrehose dead list`" in said.output
            elif done != wanted:
                assert f"letter {wanted[stops]} was left as it is: lease-lost; try again" in said.output
    for (wait, most), (_, before) in zip(server.leases[1:], server.leases, strict=False):
        assert wait == (6 if most == 1000 else 0), "only the first lease of a command waits for leases of others"
        assert most == 1000 or before - server.lot <= most < before
