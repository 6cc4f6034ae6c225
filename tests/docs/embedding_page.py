"""Run the programs in docs/embedding.md with clients, on whatever reactor is installed.

test_embedding_page.py runs them with pytest-twisted; ``trial tests/docs/embedding_page.py`` runs them, too.
"""

from __future__ import annotations

import re
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from twisted.application.service import IServiceCollection
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from fyrehose.protocols.figg import FiggClient
from fyrehose.protocols.lumberjack import LumberjackClient
from fyrehose.testing import until
from fyrehose.testing.ports import free_port

PAGE = Path(__file__).parents[2].joinpath("docs", "embedding.md").read_text()


def program(heading: str) -> str:
    """Return the first program of the section *heading*."""
    return re.findall(r"```python\n(.*?)```", PAGE.partition(f"\n## {heading}\n")[2], re.DOTALL)[0]


def run(heading: str, directory: str, **names: Any) -> tuple[dict[str, Any], list[int]]:
    """Run the program of *heading* with free ports, and with its journal in *directory*.

    :param names: names that the program takes from earlier programs
    :return: the program's names, and its ports in their order
    """
    ports: list[int] = []

    def replace(found: re.Match[str]) -> str:
        ports.append(free_port())
        return str(ports[-1])

    text = re.sub(r"\b(8119|5044|8080)\b", replace, program(heading)).replace('Path("data")', f"Path({directory!r})")
    exec(text, names)
    return names, ports


def client(port: int, kind: Any = FiggClient) -> Any:
    endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", port)
    return kind(reactor, endpoint if kind is FiggClient else [endpoint])


async def function_gets_the_messages() -> None:
    printed: list[tuple[str, bytes]] = []
    names, (port,) = run("Only the messages", "", print=lambda *words: printed.append(words))
    listening = await names["listening"]
    publisher = client(port)
    await publisher.connect()
    await publisher.publish("orders", b"one")
    assert printed == [("orders", b"one")]
    await publisher.close()
    await listening.stopListening()
    await listening.factory.drain()


async def protocols_share_their_streams() -> None:
    with TemporaryDirectory() as directory:
        names, ports = run("Several protocols, one journal", directory)
        assert list(IServiceCollection(names["application"])) == [names["fyrehose"]]
        opened = names["fyrehose"].when_open()
        names["fyrehose"].startService()
        await opened
        subscriber, publisher = client(ports[0]), client(ports[1], LumberjackClient)
        got: Deferred[bytes] = Deferred()
        subscriber.subscribe("lumberjack", lambda run: got.callback(bytes(run.payload)), 0)
        await subscriber.connect()
        await publisher.connect()
        await publisher.publish(None, b"text")
        assert b"text" in await got
        await publisher.close()
        await subscriber.close()
        await names["fyrehose"].stopService()


async def web_application_publishes() -> None:
    with TemporaryDirectory() as directory:
        imports, _ = run("Several protocols, one journal", directory)
        ports: list[Any] = []
        known = {name: imports[name] for name in ("Fyrehose", "FileJournal", "Path", "application")}
        names, (port,) = run("In a web application", directory, reactor=Listening(ports), **known)
        names["fyrehose"].startService()
        await names["fyrehose"].when_open()
        assert await post(port, b"first") == (200, b"1")
        assert await post(port, b"second") == (200, b"2")
        assert names["fyrehose"].broker.bounds("orders") == (1, 2)
        await names["fyrehose"].stopService()
        assert await post(port, b"too late") == (503, b"")
        for listening in ports:
            await listening.stopListening()
        # The connections of the site end soon after their clients, and then cancel their timeouts.
        await until(reactor, lambda: not any("TimeoutMixin" in str(call) for call in reactor.getDelayedCalls()))


class Listening:
    """A proxy of the reactor that records the ports it opens."""

    def __init__(self, ports: list[Any]) -> None:
        self.ports = ports

    def listenTCP(self, *args: Any, **more: Any) -> None:
        self.ports.append(reactor.listenTCP(*args, **more))

    def __getattr__(self, name: str) -> Any:
        return getattr(reactor, name)


def post(port: int, body: bytes) -> Deferred[tuple[int, bytes]]:
    """POST *body*; return the status and the body of the answer."""

    def ask() -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/", body)
        response = connection.getresponse()
        answer = response.status, response.read()
        connection.close()
        return answer

    return deferToThread(ask)


SCENARIOS = (function_gets_the_messages, protocols_share_their_streams, web_application_publishes)


class EmbeddingPage(TestCase):
    """The same tests under trial, which runs the reactor itself."""

    timeout = 300

    def test_function_gets_the_messages(self) -> Deferred[None]:
        return Deferred.fromCoroutine(function_gets_the_messages())

    def test_protocols_share_their_streams(self) -> Deferred[None]:
        return Deferred.fromCoroutine(protocols_share_their_streams())

    def test_web_application_publishes(self) -> Deferred[None]:
        return Deferred.fromCoroutine(web_application_publishes())
