"""Let a server of a cluster open its journal and all its listeners again and again, and check that nothing leaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.nats_servers import NatsNodes
from fyrehose.testing.ports import free_ports
from tests.live.conftest import with_nats

pytestmark = with_nats(300)

#: How many of the last counts are compared with as many before them: a connection that is being closed may be in one.
SOME = 3
LISTENERS = ("figg", "http", "admin", "relink", "eventbus", "lumberjack")

#: A program that runs a server with the configuration in its argument, reopens it whenever it leads, and prints counts.
SERVER = """
import gc, json, os, sys, threading
from twisted.internet import reactor
from twisted.internet.task import LoopingCall
from fyrehose.interfaces import JournalState
from fyrehose.journal.journal import FileJournal
from fyrehose.server.stack import Stack
from fyrehose.server import tap

options = tap.Options()
options.parseOptions(["--config", sys.argv[1]])
server = tap.makeService(options)
left = int(sys.argv[2])

def look():
    global left
    stack = server.stack
    if stack.fyrehose._unstarted() or stack.journal.state is not JournalState.WRITABLE or not server._serving:
        return
    gc.collect()
    kept = [each for each in gc.get_objects() if isinstance(each, (Stack, FileJournal))]
    print(json.dumps({
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "sockets": len(reactor.getReaders()),
        "timers": len(reactor.getDelayedCalls()),
        "stacks": len(kept),
    }), flush=True)
    left -= 1
    if left < 0:
        reactor.stop()
    else:
        stack.on_reopen("a test asks for it")

server.startService()
reactor.addSystemEventTrigger("before", "shutdown", server.stopService)
LoopingCall(look).start(0.05)
reactor.run()
"""


def test_a_server_that_reopens_its_journal_again_and_again_leaks_nothing(
    tmp_path: Path, ladder: Callable[[int, int], int]
) -> None:
    times = ladder(6, 12)
    ports = free_ports(len(LISTENERS))
    listen = "".join(
        f'{name} = "tcp:{port}:interface=127.0.0.1"\n' for name, port in zip(LISTENERS, ports, strict=True)
    )
    nats = NatsNodes(tmp_path, count=1)
    config = tmp_path / "fyrehose.toml"
    config.write_text(
        f'data-dir = "{tmp_path / "data"}"\n[listen]\n{listen}[option.journal]\nmin-free = "16MiB"\n'
        f'[option.server]\nretire-idle = "1h"\n'
        f'[replication]\nservers = {json.dumps(nats.urls)}\nname = "a"\nmembers = 1\nreplicas = 1\n'
        'takeover-after = "1s"\n'
    )
    with nats:
        words = [sys.executable, "-c", SERVER, str(config), str(times)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        ended = subprocess.run(words, capture_output=True, text=True, timeout=250, env=environment)
    assert ended.returncode == 0, ended.stderr
    counts = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert len(counts) == times + 1, ended.stdout + ended.stderr
    for name in counts[0]:
        before = max(each[name] for each in counts[-2 * SOME : -SOME])
        assert min(each[name] for each in counts[-SOME:]) <= before, (name, counts)
