"""Each counter of a protocol exists when its listener is made, so that its metric begins at 0."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.plugins import load
from fyrehose.testing import MemoryJournal

ROOT = Path(__file__).parents[2] / "fyrehose"
ENDPOINTS = {
    "backbone": "udp:0:interface=127.0.0.1",
    "eventbus": "tcp:0:interface=127.0.0.1",
    "figg": "tcp:0:interface=127.0.0.1",
    "http": "tcp:0:interface=127.0.0.1",
    "lumberjack": "tcp:0:interface=127.0.0.1",
    "relink": "tcp:0:interface=127.0.0.1",
    "syslog": "tcp:0:interface=127.0.0.1",
}
#: Calls with a string that is the cause of a refusal.
REFUSING = {"RemoteProtocolError", "refuse", "_refuse", "Dropped", "count_refusal"}
#: Modules of the clients, which have counters of their own, and the client's classes in a module of both sides.
CLIENTS = re.compile(r"client|reader|publisher")
CLIENT_CLASSES = {
    *("BackboneClientSession", "ConnectorSession", "EventBusClientSession", "LumberjackWriterSession"),
    *("CurveClient", "RelpClientSession"),
}


def declared(protocol: str) -> dict[str, bool]:
    """Return the counters that the listener of *protocol* declares when it is made."""
    broker = Broker(Clock(), MemoryJournal(), Sequencer())
    plugin = load(protocol)
    plugin.make_service(Clock(), broker, ENDPOINTS[protocol], plugin.settings())
    assert {name for name, _ in broker.counters.known} == {protocol}
    return {name: refuses for (_, name), refuses in broker.counters.known.items()}


def counted(folder: Path) -> Iterator[str]:
    """Yield the strings in calls that count or refuse something, in the sources of *folder*."""
    for path in folder.glob("*.py"):
        module = ast.parse("" if CLIENTS.search(path.name) else path.read_text())
        module.body = [each for each in module.body if getattr(each, "name", "") not in CLIENT_CLASSES]
        for call in ast.walk(module):
            if not isinstance(call, ast.Call):
                continue
            name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
            counts = name == "add" and "counters" in ast.unparse(call.func)
            for word in ast.walk(call) if counts or name in REFUSING else ():
                if isinstance(word, ast.Constant) and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", str(word.value)):
                    yield str(word.value)


@pytest.mark.parametrize("protocol", ENDPOINTS)
def test_every_counter_of_a_protocol_is_declared(protocol: str) -> None:
    found = set(counted(ROOT / "protocols" / protocol))
    assert found, "the calls were recognized"
    assert found <= declared(protocol).keys(), found - declared(protocol).keys()


@pytest.mark.parametrize("protocol", ["figg", "http", "lumberjack", "relink", "syslog"])
def test_every_counter_of_tcp_is_declared(protocol: str) -> None:
    found = set(counted(ROOT / "net")) - {"dropped-by-kernel", "receive-error"}  # of UDP
    assert len(found) > 5, "the calls were recognized"
    assert found <= declared(protocol).keys(), found - declared(protocol).keys()


def test_every_refusal_of_the_broker_is_declared_as_a_counter() -> None:
    known: Any = declared("figg")
    assert known["Forbidden"] is known["PayloadTooLarge"] is known["ReadOnly"] is True
    assert known["connections"] is known["skipped"] is False
