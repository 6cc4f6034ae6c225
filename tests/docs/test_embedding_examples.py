"""Check that the example programs of docs/embedding.md work as the page says."""

from __future__ import annotations

import ast
import builtins
import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from zope.interface.verify import verifyObject

from fyrehose.interfaces import IBroker, ISink
from fyrehose.protocols.backbone.client import BackboneClient
from fyrehose.protocols.figg.client import FiggClient
from fyrehose.protocols.figg.frames import Publish
from fyrehose.protocols.figg.session import FiggClientSession
from fyrehose.protocols.lumberjack import LumberjackWriterSession
from fyrehose.records import Run
from fyrehose.server.service import Fyrehose
from fyrehose.testing import MemoryJournal, RecordingSink, every_chunking
from fyrehose.testing.ports import free_port

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


PAGE = EXAMPLES.parent.joinpath("embedding.md").read_text(encoding="utf-8")
#: Names that a program of the page takes from an earlier one, or that the reader must define.
GIVEN = {"reactor", "application", "journal", "port", "chunks", "after", "addresses"}
GIVEN |= {"answer", "self", "fyrehose", "Shop", "LastMessages", "make_service"}


def free_names(program: str) -> set[str]:
    """Return the names that *program* uses without defining them."""
    nodes = list(ast.walk(ast.parse(program)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    defined = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    defined |= {node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}
    defined |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return {name.id for name in names} - defined - set(dir(builtins))


def test_programs_of_the_page_import_what_they_use() -> None:
    imported: dict[str, Any] = {}
    for program in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                exec(ast.unparse(node), imported)
        assert free_names(program) - set(imported) <= GIVEN, program


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that imports an example by its name."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    imported: list[str] = []

    def load(name: str) -> Any:
        imported.append(name)
        return import_module(name)

    yield load
    for name in imported:
        del sys.modules[name]


def publish_frames(*messages: bytes, topic: str = "t") -> bytes:
    """Return the bytes that a Figg client sends to publish *messages*."""
    session = FiggClientSession()
    for number, message in enumerate(messages, 1):
        session.send(Publish(topic=topic, number=number, data=message))
    return b"".join(session.data_to_send())


def test_the_codec_finds_every_message_however_the_bytes_are_cut(example: Any) -> None:
    codec = example("codec")
    data = publish_frames(b"one", b"", b"two") + publish_frames(b"three", topic="u")
    for chunks in every_chunking(data, sizes=(1, 7, 64)):
        assert list(codec.published(chunks)) == [("t", b"one"), ("t", b""), ("t", b"two"), ("u", b"three")]


@pytest.mark.parametrize("level", [0, 3], ids=["plain", "compressed"])
def test_the_codec_finds_every_event_of_a_lumberjack_writer(example: Any, level: int) -> None:
    codec = example("codec")
    writer = LumberjackWriterSession(level=level)
    for number in range(1_200):  # more windows than may be unacknowledged
        run = Run.of("x", [b'{"n":%d}' % number], source="test")
        writer.send_window(run.lengths, run.payload)
    data = b"".join(writer.data_to_send())
    for size in (len(data), 1_000):
        chunks = [data[at : at + size] for at in range(0, len(data), size)]
        assert list(codec.shipped(chunks)) == [(None, b'{"n":%d}' % number) for number in range(1_200)]


def test_the_codec_yields_valid_messages_before_it_raises_for_a_violation(example: Any) -> None:
    published = example("codec").published([publish_frames(b"one") + b"\xff" * 20])
    assert next(published) == ("t", b"one")
    with pytest.raises(ValueError, match="-"):
        next(published)


def test_the_own_broker_keeps_and_delivers_the_last_messages(example: Any) -> None:
    broker = example("own_broker").LastMessages(Clock(), keep=2)
    assert verifyObject(IBroker, broker)
    for n in range(4):
        broker.publish([Run.of("s", [b"%d" % n], source="test")])
    assert broker.bounds("s") == (3, 4)
    sink = RecordingSink()
    broker.subscribe("s", 0, sink).resumeProducing()
    broker.clock.advance(0)
    assert sink.payloads == [b"2", b"3"]
    assert broker.bounds("none") == (1, 0)


@pytest.mark.live
@pytest_twisted.ensureDeferred
async def test_a_figg_client_publishes_and_subscribes_with_the_own_broker(example: Any) -> None:
    service = example("own_broker").make_service(reactor, "tcp:0:interface=127.0.0.1")
    port = await service.startService()
    client = FiggClient(reactor, TCP4ClientEndpoint(reactor, "127.0.0.1", port.getHost().port))
    got: Deferred[bytes] = Deferred()
    client.subscribe("t", lambda run: got.callback(bytes(run.payload)), 0)
    await client.connect()
    await client.publish("t", b"hello")
    assert await got == b"hello"
    await client.close()
    await service.stopService()


@pytest.mark.live
@pytest_twisted.ensureDeferred
async def test_the_news_example_publishes_over_udp_and_keeps_news_after_a_restart(example: Any) -> None:
    journal, module = MemoryJournal(), example("news")
    port = free_port()
    for payload in (b"first", b"second"):
        fyrehose = module.make_service(reactor, journal, port)
        await fyrehose.startService()
        client = BackboneClient(reactor, "127.0.0.1", port)
        await client.connect()
        await client.publish(None, payload)
        await client.close()
        await fyrehose.stopService()
    [run] = {run.stream: run for run in journal.read("news", 2, 100)}.values()
    assert (run.first_seq, list(map(bytes, run.payloads()))) == (2, [b"second"])


class Shop:
    """Run the example shop over a journal in memory."""

    def __init__(self, module: Any, journal: MemoryJournal) -> None:
        self.journal, self.reactor = journal, MemoryReactorClock()
        self.fyrehose: Fyrehose = module.make_service(self.reactor, journal, "tcp:8119:interface=127.0.0.1")
        self.fyrehose.startService()
        self.reactor.advance(0)

    def sell(self, *orders: bytes) -> None:
        self.fyrehose.broker.publish([Run.of("orders", orders, source="test")])
        self.journal.commit()
        self.reactor.advance(0)
        self.journal.commit()
        self.reactor.advance(0)

    def total(self) -> dict[str, int]:
        """Return the last published total."""
        run = self.fyrehose.broker.read("totals", self.fyrehose.broker.bounds("totals")[1], 1)[0]
        total: dict[str, int] = json.loads(bytes(run.payload))
        return total


def test_the_shop_example_adds_up_orders_and_continues_after_a_restart(example: Any, log_lines: list[str]) -> None:
    module = example("application")
    shop = Shop(module, MemoryJournal(auto=False))
    assert verifyObject(ISink, module.Shop(shop.fyrehose.broker))
    assert shop.reactor.tcpServers[0][0] == 8119
    shop.sell(b"250", b"199")
    shop.sell(b"free", b"1")
    assert shop.total() == {"total": 450, "orders": 4}
    assert "skipped an order that is not a number: b'free'" in log_lines
    assert shop.fyrehose.stopService().called
    again = Shop(module, shop.journal)
    again.sell(b"50")
    assert again.total() == {"total": 500, "orders": 5}
    assert again.fyrehose.stopService().called
