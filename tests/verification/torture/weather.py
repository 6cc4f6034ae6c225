#!/usr/bin/env python3
"""Run a cluster of three Fyrehose and three NATS servers as processes, and cause one fault after the other.

    weather.py [--rounds 10] [--each] [--minutes M] [--seed 1] [--kinds KIND,...] [--leaders] [--directory DIR]
               [--figures FILE] [--other CODE]

In each round one of these faults happens, or two of them at once (``double``), and then everything recovers:

    kill     kill -9 of a server, which starts again after up to 6 s       nats-kill      the same of a NATS server
    freeze   SIGSTOP of a server for 10 s, longer than the take-over       nats-freeze    the same of a NATS server
    stop     an orderly stop of a server                                   nats-stop      the same of a NATS server
    wipe     a server is killed and loses its disk; it comes back          cut            a proxy cuts a NATS server off
             under a new name, and fills itself from another one                          from the others for 8 to 12 s
    restore  the same, but an operator restores the journal of             half-cut       the same in one direction
             another server, or the server's own older backup, of
             which a copy that lacks something is refused first
    swap     two servers run for some seconds with each other's            delay          data between NATS servers is
             data directories, then with their own again                                  100 ms late, each way
    delete   the stream is deleted, and an operator begins again           slow           each sync of a NATS server, or
             with `cluster reseed`                                                        of all, takes 0.2 or 1 s more
    full     the disk of a server is full for 8 to 12 s                    nats-full      the same of a NATS server's
    slow-disk  each sync of a server takes 2 s more                        queue          data between NATS servers is
                                                                                          8 s late, each way
    machine  SIGSTOP of a server and of a NATS server together for 10 s, as if their machine were cut off
    all      kill -9 of all servers and all NATS servers, which start again at once
    purge    an operator empties the stream, while all servers run, or before a follower that was killed starts again

Publishers of five protocols know all addresses, and subscribers read from every server (cluster_load.py).  Checked
after each round: no acknowledged message is lost, no number has two messages, no message is stored more often than it
was sent, no answer of any server is older than its `Fyrehose-Age` says, all servers have recovered by themselves, and
no process has ended except by a fault.  With ``--leaders`` faults hit the leader, or the NATS server that leads the
stream, and otherwise these more often than others.  With ``--other`` each server starts at random with this version of
Fyrehose or with the one in that directory.  At the end the logs of all servers must be identical, `journal verify` must
find nothing, and subscribers must have received exactly the stored messages.

The kinds ``full`` and ``nats-full`` are chosen only by name, need root, who mounts small disks, and exclude ``swap``.
The kinds ``slow``, ``slow-disk`` and ``double`` need strace (Debian's package of that name).  Prints for how long no
message was acknowledged, by kind and by whether the fault hit the leader, and how long after the beginning of a fault
JetStream had elected another leader of the stream, if it did.  The exit status is 1 if a rule was broken, and then the
directory is kept.

With ``--each`` the kinds take turns, each as often as ``--rounds`` says.  The outages by kind in docs/cluster.md are of

    weather.py --leaders --each --rounds 20 --kinds kill,stop,freeze,nats-kill,half-cut,half-cut,machine,all
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import nats
import servers
import wire
from cluster_disks import SlowDisk, has_strace
from cluster_load import PUBLISHERS, SIZES, Ages, Http, Notes, Publisher, Subscriber
from cluster_proxy import Routes

from benchmarks.local_cluster import Cluster, ClusterServer
from benchmarks.nats_servers import NatsNodes
from fyrehose.cli.cluster.survey import leading, survey
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.journal import scan
from fyrehose.offline import dump
from fyrehose.offline.verify import verify

#: Seconds after which everything must have recovered.
PATIENCE = 120.0
#: How long a process is frozen, in seconds; longer than a take-over takes.
FREEZE = 10.0
#: The kinds of faults, with weights.
KINDS = {"kill": 4, "freeze": 3, "stop": 2, "nats-kill": 3, "nats-freeze": 2, "nats-stop": 1, "cut": 3, "half-cut": 3}
KINDS |= {"delay": 2, "slow": 2, "double": 3, "swap": 1, "purge": 1, "delete": 1, "slow-disk": 2, "queue": 1}
KINDS |= {"wipe": 1, "restore": 1, "machine": 1, "all": 1}
#: The kinds that need disks of their own, and the size of these.
FULL, ROOM = ("full", "nats-full"), "size=256m"
#: The kinds that may happen at the same time as another one.
DOUBLES = ("kill", "freeze", "stop", "nats-kill", "nats-freeze", "nats-stop", "cut", "half-cut", "delay", "slow")
#: How much later NATS servers receive each other's data during a delay, in seconds, in each direction.
DELAY = 0.1
#: How much longer each sync takes on a slow disk, in seconds; one of these.
SLOW = (0.2, 1.0)
#: The same for a server's own disk, and the delay of a long queue between NATS servers.
SLOW_DISK, QUEUE = 2.0, 8.0
#: The shortest and longest pause between two rounds, in seconds: when a NATS server is back, JetStream may elect a
#: leader once more, which delays messages, too.
REST = (2.0, 3.0)
#: How often a command is run again that asks for it.
AGAIN = 5
JOURNAL = (str(Path(sys.executable).with_name("fyrehose")), "journal")
CLUSTER = (str(Path(sys.executable).with_name("fyrehose")), "cluster")
#: The line of the log of a NATS server when it begins to lead the stream.
ELECTED = re.compile(r"(\d{4}/\d\d/\d\d [\d:.]{15}).* new stream leader for '.* > FYREHOSE_fyrehose'")
#: The listeners besides Figg, HTTP and the status page.
OTHERS = ("eventbus", "lumberjack", "relink")
MORE = '[option.relink]\nlinks = "torture"\n\n'


class Weather:
    """The cluster, its publishers and subscribers, and the faults."""

    def __init__(
        self, directory: Path, dice: random.Random, other: str = "", small: bool = False, leaders: bool = False
    ) -> None:
        self.dice = dice
        self.leaders = leaders  #: whether each fault hits a leader
        self.small = small  #: whether each server has a small disk of its own, which a fault may fill
        self.other = other
        self.cluster = Cluster(directory)
        self.nats: NatsNodes = self.cluster.nats
        self.routes = Routes(self.nats.routes)
        self.routes.start()
        self.nats.proxies = self.routes.ports
        names = list(self.cluster.servers)
        self._urls: dict[str, str] = {}
        ports = {name: servers.free_ports((*OTHERS, "journal")) for name in names}
        for name, server in self.cluster.servers.items():
            server.listen = {protocol: f"tcp:{ports[name][protocol]}" for protocol in OTHERS}
            self._urls[name] = f"http://127.0.0.1:{ports[name]['journal']}"
            server.more = MORE
            server.replication = f'journal = "{self._urls[name]}"\nmember-timeout = "60s"\n'
            server.code = self._version()
        self.notes = Notes()
        self._serving: list[subprocess.Popen[bytes]] = []
        places = {
            "figg": [server.ports[0] for server in self.servers],
            "http": [server.ports[1] for server in self.servers],
            **{
                protocol: [ports[name][protocol] for name in names] for protocol in ("eventbus", "lumberjack", "relink")
            },
        }
        self.publishers: list[Publisher] = [
            made(number, places[made.protocol], self.notes) for number, made in enumerate(PUBLISHERS, 1)
        ]
        streams = [publisher.stream for publisher in self.publishers]
        self.subscribers = [Subscriber(server.name, server.ports[0], streams, self.notes) for server in self.servers]
        by_http = next(publisher for publisher in self.publishers if isinstance(publisher, Http))
        self.ages = [Ages(server.name, server.ports[1], by_http, self.notes) for server in self.servers]
        self.problems: list[str] = []
        self.wipes = 0
        self.slow_disks = 0
        self.slow_syncs: list[int] = []  #: how many syncs of each slow disk were delayed
        #: the servers and NATS servers that a fault of this round has already hit
        self._hit: set[object] = set()
        self._held: set[str] = set()  #: servers that are down on purpose

    @property
    def servers(self) -> list[ClusterServer]:
        return list(self.cluster.servers.values())

    @property
    def disks(self) -> list[Path]:
        """Return the directories on small disks."""
        stores = [self.nats.directory / f"nats-{node}" / "store" for node in range(self.nats.count)]
        return [*(server.directory / "data" for server in self.servers), *stores] if self.small else []

    def start(self) -> None:
        for disk in self.disks:
            disk.mkdir(parents=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", ROOM, "tmpfs", str(disk)], check=True)
        self.cluster.__enter__()
        self.recover()
        self._serve_journals()
        self._back_up()
        for each in (*self.publishers, *self.subscribers, *self.ages):
            each.start()

    def stop(self) -> None:
        for each in (*self.publishers, *self.subscribers, *self.ages):
            each.stop()
        for serving in self._serving:
            serving.kill()
            serving.wait()
        self.cluster.__exit__()
        self.routes.stop()
        for disk in self.disks:
            subprocess.run(["umount", "-l", str(disk)], check=True)

    def look(self) -> tuple[str | None, int | None]:
        """Return the server that leads, and the NATS server that leads the stream."""
        found = asyncio.run(survey(ReplicationSettings(servers=tuple(self.nats.urls), cluster="fyrehose")))
        leader = next((said["name"] for said in found.servers if leading(said)), None)
        node = next((node["name"] for node in (found.log or {}).get("nodes", ()) if node["leads"]), None)
        names = {server.member or server.name: server.name for server in self.servers}
        return names.get(str(leader)), int(node[1:]) if node else None

    # Faults; each method returns after how many seconds the fault ends, and what ends it:

    def begin(self, kind: str, leader: str | None, node: int | None) -> tuple[str, float, Callable[[], object]]:
        """Cause a fault.

        :return: a description of what it has hit; after how many seconds it ends; what ends it
        """
        of_servers = {"kill": self._kill, "freeze": self._freeze, "stop": self._stop, "wipe": self._wipe}
        of_servers |= {"full": self._full, "slow-disk": self._slow_disk, "restore": self._restore}
        of_servers |= {"machine": self._machine}
        if kind in of_servers:
            server = self._server(leader)
            return f"{kind} of {'the leader' if server.name == leader else 'a follower'}", *of_servers[kind](server)
        if kind == "purge" and self.dice.random() < 0.5:
            return "purge before a follower starts", *self._purge_and_start(leader)
        whole = {"swap": self._swap, "delay": self._delay, "purge": self._purge, "delete": self._delete}
        whole |= {"queue": lambda: self._delay(QUEUE), "all": self._all}
        if kind in whole:
            return kind, *whole[kind]()
        if kind == "slow":
            return self._slow(node)
        at = self._node(node)
        what = f"{kind} of {'the node that leads the stream' if at == node else 'a node that follows'}"
        if kind in ("cut", "half-cut"):
            ways = (("closed",), ("mute", "deaf")) if kind == "cut" else (("mute",), ("deaf",))
            way = self.dice.choice(ways)
            self.routes.cut(at, way)
            what = what.replace("half-cut", f"half-cut ({way[0]})")
            return what, self.dice.uniform(8, 12), lambda: self.routes.heal(at)
        if kind == "nats-full":
            return what, *self._nats_full(at)
        if kind == "nats-freeze":
            self.nats.freeze(at)
            return what, FREEZE, lambda: self.nats.thaw(at)
        self.nats.kill(at, signal.SIGKILL if kind == "nats-kill" else signal.SIGTERM)
        return what, self.dice.uniform(0, 6), lambda: self.nats.start(at)

    def _server(self, leader: str | None) -> ClusterServer:
        names = [server.name for server in self.servers if server.name not in self._hit]
        name = leader if leader in names and self._hits_leader(0.6) else self.dice.choice(names)
        assert name is not None
        self._hit.add(name)
        return self.cluster.servers[name]

    def _node(self, leader: int | None) -> int:
        nodes = [at for at in range(self.nats.count) if at not in self._hit]
        at = leader if leader in nodes and self._hits_leader(0.5) else self.dice.choice(nodes)
        assert at is not None
        self._hit.add(at)
        return at

    def _hits_leader(self, often: float) -> bool:
        return self.leaders or self.dice.random() < often

    def _kill(self, server: ClusterServer) -> tuple[float, Callable[[], object]]:
        self._held.add(server.name)
        server.stop(signal.SIGKILL)
        return self.dice.uniform(0, 6), lambda: self._start(server)

    def _freeze(self, server: ClusterServer) -> tuple[float, Callable[[], object]]:
        assert server.process is not None
        process = server.process
        process.send_signal(signal.SIGSTOP)
        return FREEZE, lambda: process.send_signal(signal.SIGCONT)

    def _stop(self, server: ClusterServer) -> tuple[float, Callable[[], object]]:
        self._held.add(server.name)
        status = server.stop(signal.SIGTERM)
        if status:
            self.problems.append(f"server {server.name} ended with status {status} after SIGTERM")
        return self.dice.uniform(0, 3), lambda: self._start(server)

    def _wipe(
        self, server: ClusterServer, copy: Callable[[ClusterServer], object] = lambda server: None
    ) -> tuple[float, Callable[[], object]]:
        """Kill *server*, and empty its disk; it comes back under a new name, as docs/cluster.md says.

        :param copy: what the operator copies to the new disk before the start
        """
        delay, _ = self._kill(server)
        for each in (server.directory / "data").iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        self.wipes += 1
        old, server.member = server.member or server.name, f"{server.name}{self.wipes}"

        def come_back() -> None:
            urls = [word for url in server.urls for word in ("--nats", url)]
            self._run([*CLUSTER, "replace", old, server.member, *urls])
            copy(server)
            self._start(server)

        return delay, come_back

    def _restore(self, server: ClusterServer) -> tuple[float, Callable[[], object]]:
        return self._wipe(server, self.dice.choice((self._copy_another, self._copy_backup)))

    def _copy_another(self, server: ClusterServer) -> None:
        source = next(each for each in self.servers if each is not server)
        self._run([*JOURNAL, "restore", "--exact", self._urls[source.name], str(server.directory / "data")])

    def _copy_backup(self, server: ClusterServer) -> None:
        """Restore the server's backup; a copy of it that lacks its last bytes is refused first."""
        backup, short, data = (server.directory / name for name in ("backup", "short", "data"))
        shutil.copytree(backup, short)
        last = scan.segments(short)[-1].path
        os.truncate(last, self.dice.randrange(last.stat().st_size))
        words = [*JOURNAL, "restore", "--exact", str(short), str(data)]
        if subprocess.run(words, capture_output=True).returncode == 0:
            self.problems.append(f"{short}, a copy of {backup} that lacks something, was restored")
        shutil.rmtree(short)
        self._run([*JOURNAL, "restore", "--exact", str(backup), str(data)])

    def _swap(self) -> tuple[float, Callable[[], object]]:
        """Start two servers with each other's data directories."""
        one, other = self.dice.sample(self.servers, 2)

        def swap() -> None:
            for server in (one, other):
                self._held.add(server.name)
                server.stop(signal.SIGKILL)
            aside = one.directory / "swapped"
            (one.directory / "data").rename(aside)
            (other.directory / "data").rename(one.directory / "data")
            aside.rename(other.directory / "data")
            for server in (one, other):
                self._start(server)

        swap()
        return self.dice.uniform(4, 8), swap

    def _machine(self, server: ClusterServer) -> tuple[float, Callable[[], object]]:
        """Freeze *server* and the NATS server of its machine."""
        assert server.process is not None
        pids = (server.process.pid, self.nats.pid(self.servers.index(server)))
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        return FREEZE, lambda: [os.kill(pid, signal.SIGCONT) for pid in pids]

    def _all(self) -> tuple[float, Callable[[], object]]:
        nodes = range(self.nats.count)
        for server in self.servers:
            self._kill(server)
        for node in nodes:
            self.nats.kill(node)

        def start() -> None:
            for node in nodes:
                self.nats.start(node)
            for server in self.servers:
                self._start(server)

        return 0.0, start

    def _full(self, server: ClusterServer) -> tuple[float, Callable[[], object]]:
        ballast = fill(server.directory / "data")
        return self.dice.uniform(8, 12), ballast.unlink

    def _nats_full(self, node: int) -> tuple[float, Callable[[], object]]:
        """Fill the store of a NATS server; then an operator does what `fyrehose cluster status` says."""
        ballast = fill(self.nats.directory / f"nats-{node}" / "store")

        def end() -> None:
            ballast.unlink()
            self.nats.kill(node, signal.SIGTERM)
            self.nats.start(node)

        return self.dice.uniform(8, 12), end

    def _slow_disk(self, server: ClusterServer) -> tuple[float, Callable[[], object]]:
        assert server.process is not None
        self.slow_disks += 1
        disk = SlowDisk(server.process.pid, SLOW_DISK, self.cluster.directory / f"slow-{self.slow_disks}")
        return self.dice.uniform(8, 12), lambda: self.slow_syncs.append(disk.stop())

    def _delay(self, seconds: float = DELAY) -> tuple[float, Callable[[], object]]:
        self.routes.delay(seconds)
        return self.dice.uniform(8, 12), lambda: self.routes.delay(0.0)

    def _slow(self, leader: int | None) -> tuple[str, float, Callable[[], object]]:
        late = self.dice.choice(SLOW)
        if self.dice.random() < 0.3:
            nodes, whose = [at for at in range(self.nats.count) if at not in self._hit], "all nodes"
        else:
            nodes = [self._node(leader)]
            whose = "the node that leads the stream" if nodes == [leader] else "a node that follows"
        disks = []
        for node in nodes:
            self.slow_disks += 1
            record = self.cluster.directory / f"slow-{self.slow_disks}"
            disks.append(SlowDisk(self.nats.pid(node), late, record))

        def end() -> None:
            self.slow_syncs += [disk.stop() for disk in disks]

        return f"slow ({late:g} s) of {whose}", self.dice.uniform(8, 12), end

    def _purge(self) -> tuple[float, Callable[[], object]]:
        """Empty the stream, as an operator of NATS can by mistake, while all servers run and have its contents."""
        asyncio.run(manage(self.nats.urls, "purge_stream"))
        return 0.0, lambda: None

    def _purge_and_start(self, leader: str | None) -> tuple[float, Callable[[], object]]:
        """Empty the stream while a follower is down, which then lacks some of its contents."""
        server = self.dice.choice([server for server in self.servers if server.name != leader])
        delay, start = self._kill(server)
        self._purge()
        return delay, start

    def _delete(self) -> tuple[float, Callable[[], object]]:
        """Delete the stream; an operator ends this fault as docs/cluster.md says for a lost shared log."""
        asyncio.run(manage(self.nats.urls, "delete_stream"))
        return self.dice.uniform(2, 8), self._reseed

    def _reseed(self) -> None:
        for server in self.servers:
            self._stop(server)
        ends = {server.name: self._asked(server) for server in self.servers}
        longest = self.cluster.servers[max(ends, key=lambda name: ends[name])]
        self._run([*self._reseeding(longest), "--yes"])
        for server in (longest, *(each for each in self.servers if each is not longest)):
            self._start(server)

    def _asked(self, server: ClusterServer) -> int:
        """Return where the journal of *server* ends, which `cluster reseed` prints before it asks for confirmation."""
        said = subprocess.run(self._reseeding(server), capture_output=True, text=True, input="n\n")
        found = re.search(r"ends at position (\d+)", said.stdout)
        if found is None:
            self.problems.append(f"cluster reseed of {server.name}: {said.stdout} {said.stderr}")
        return int(found[1]) if found else 0

    def _reseeding(self, server: ClusterServer) -> list[str]:
        return [*CLUSTER, "reseed", "--config", str(server.directory / "fyrehose.toml")]

    def _run(self, words: list[str]) -> None:
        """Run a command, which has to succeed; repeat it if it asks for that, because NATS may be electing a leader."""
        for _ in range(AGAIN):
            done = subprocess.run(words, capture_output=True, text=True)
            if "run the command again" not in done.stderr:
                break
        if done.returncode:
            self.problems.append(f"{words[1:3]}: status {done.returncode}: {done.stderr}")

    def _back_up(self) -> None:
        """Back up each journal; a machine that loses its disk later may start with its backup."""
        for server in self.servers:
            self._run([*JOURNAL, "backup", str(server.directory / "data"), str(server.directory / "backup")])

    def _serve_journals(self) -> None:
        """Serve the journal of each machine to the others."""
        for server in self.servers:
            place = self._urls[server.name].removeprefix("http://")
            words = [*JOURNAL, "serve", str(server.directory / "data"), "--listen", place]
            self._serving.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def _start(self, server: ClusterServer) -> None:
        self._held.discard(server.name)
        server.code = self._version()
        server.start()

    def _version(self) -> str:
        return self.other if self.dice.random() < 0.5 else ""

    # Rounds:

    def round(self, kind: str) -> tuple[str, dict[str, float]]:
        """Cause faults, and wait until everything has recovered.

        :return: a description; the longest time without an acknowledgement, for each protocol and for all
        """
        leader, node = self.look()
        self._hit.clear()
        kinds = [kind] if kind != "double" else self.dice.choices(DOUBLES, [KINDS[each] for each in DOUBLES], k=2)
        marks = {publisher: max(0, len(publisher.acks) - 1) for publisher in self.publishers}
        before = time.time()
        faults = [self.begin(each, leader, node) for each in kinds]
        began = time.monotonic()
        for _, due, end in sorted(faults, key=lambda fault: fault[1]):
            while time.monotonic() < began + due:
                self.revive()
                time.sleep(0.05)
            end()
        self.recover()
        ends = {publisher: len(publisher.acks) for publisher in self.publishers}
        time.sleep(self.dice.uniform(*REST))
        found = {p.protocol: gap(p.acks[marks[p] : ends[p] + 1]) for p in self.publishers}
        found["all"] = gap(sorted(at for p in self.publishers for at in p.acks[marks[p] : ends[p] + 1]))
        self.check()
        return " + ".join(what for what, _, _ in faults), found | self.elected(before)

    def elected(self, since: float) -> dict[str, float]:
        """Return how long after the time *since* a NATS server began to lead the stream; empty if none did."""
        logs = [self.nats.directory.joinpath(f"nats-{node}", "log").read_text() for node in range(self.nats.count)]
        times = [datetime.strptime(at, "%Y/%m/%d %H:%M:%S.%f").timestamp() for at in ELECTED.findall("".join(logs))]
        later = [at - since for at in times if at > since]
        return {"election": min(later)} if later else {}

    def revive(self) -> None:
        """Record servers that have ended by themselves as problems, and start them again to continue the round."""
        for server in self.servers:
            if server.name in self._held or server.process is None or server.process.poll() is None:
                continue
            status = server.process.returncode
            self.problems.append(f"server {server.name} ended with status {status}: {server.log[-1500:]}")
            server.start()

    def recover(self) -> None:
        """Wait until every server is ready, and every publisher's messages are acknowledged again."""
        deadline = time.monotonic() + PATIENCE
        acked = {publisher: publisher.acked for publisher in self.publishers if publisher.is_alive()}
        waiting = self.servers
        while waiting or any(publisher.acked <= before for publisher, before in acked.items()):
            self.revive()
            waiting = [server for server in waiting if not servers.is_ready(server.ports[2], "?for=read")]
            if time.monotonic() > deadline:
                slow = [p.protocol for p, before in acked.items() if p.acked <= before]
                self.problems.append(f"after {PATIENCE:.0f} s: not ready: {[s.name for s in waiting]}, no acks: {slow}")
                return
            time.sleep(0.1)

    def check(self) -> None:
        """Wait until subscribers have caught up, and compare what they received with what publishers know."""
        deadline = time.monotonic() + PATIENCE
        acked = {publisher: publisher.acked for publisher in self.publishers}
        while not all(publisher.was_delivered(number) for publisher, number in acked.items()):
            if time.monotonic() > deadline:
                break  # the comparison reports what is missing
            self.revive()
            time.sleep(0.05)
        targets = {stream: len(numbers) for stream, numbers in self.notes.streams.items()}
        while any(s.positions[stream] < end for s in self.subscribers for stream, end in targets.items()):
            if time.monotonic() > deadline:
                behind = {s.name: s.positions for s in self.subscribers}
                self.problems.append(f"subscribers do not reach {targets}: {behind}")
                return
            self.revive()
            time.sleep(0.05)
        for publisher, number in acked.items():
            self.problems += publisher.check(number)
        taken, self.notes.problems = self.notes.problems, []
        self.problems += taken

    def finish(self) -> str:
        """Compare the journals with each other, byte for byte, and with the messages that subscribers received."""
        for publisher in self.publishers:
            publisher.stop()
        self.check()
        for reader in (*self.subscribers, *self.ages):
            reader.stop()
        for server in self.servers:
            self._stop(server)
        sizes = []
        directories = [server.directory / "data" for server in self.servers]
        for directory in directories:
            self.problems += [f"verify {directory}: {problem}" for problem in verify(directory).problems]
            sizes.append(scan.read_mark(directory))
        for other in directories[1:]:
            self.problems += compare(directories[0], other, min(sizes))
        longest = directories[sizes.index(max(sizes))]
        seen = dict.fromkeys(self.notes.streams, 0)
        for run in dump.runs(longest):
            if run.stream in seen:
                for number, record in enumerate(run.records(), run.first_seq):
                    self._compare(run.stream, number, record.payload)
                seen[run.stream] = run.last_seq
        for stream, numbers in self.notes.streams.items():
            if seen[stream] < len(numbers):
                self.problems.append(
                    f"{stream}: {len(numbers)} was delivered, but {seen[stream]} is the last stored record"
                )
        if not all(each.judged for each in self.ages):
            self.problems.append(f"no age was judged of a server: {[each.judged for each in self.ages]}")
        return (
            f"{max(sizes):,} bytes in each log, {sum(seen.values()):,} messages; {self.check_slow_disks()}; "
            f"{sum(each.judged for each in self.ages):,} ages judged"
        )

    def check_slow_disks(self) -> str:
        """Record a problem if disks were slowed down but no sync was delayed.

        :return: a description of how many syncs were delayed
        """
        if self.slow_disks and not sum(self.slow_syncs):
            self.problems.append(f"no sync was delayed on {self.slow_disks} slow disks")
        return f"{sum(self.slow_syncs):,} syncs delayed on {self.slow_disks} slow disks"

    def _compare(self, stream: str, number: int, payload: bytes) -> None:
        author = wire.whose(payload, SIZES)
        known = self.notes.streams[stream]
        if author is None or (number <= len(known) and known[number - 1] not in (0, author[0] << 40 | author[1])):
            self.problems.append(f"{stream} {number} is {author} in the log, but another message was delivered")


async def manage(urls: list[str], what: str) -> None:
    """Call *what*, a method of nats-py, for the stream of the cluster."""
    client = await nats.connect(urls)
    try:
        await getattr(client.jetstream(), what)("FYREHOSE_fyrehose")
    finally:
        await client.close()


def fill(folder: Path) -> Path:
    """Fill the disk of *folder* with a file, whose path is returned."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        disk = os.statvfs(folder)
        os.posix_fallocate(file.fileno(), 0, max(1, (disk.f_bavail - 64) * disk.f_bsize))
        file.seek(0, os.SEEK_END)
        while True:
            file.write(bytes(4096))
    return ballast


def gap(times: list[float]) -> float:
    """Return the longest time between two of *times*."""
    return max((after - before for before, after in itertools.pairwise(times)), default=math.nan)


def compare(one: Path, other: Path, size: int) -> list[str]:
    """Compare the first *size* bytes of two logs with the same segments; return the differences."""
    problems = []
    for segment in scan.segments(one):
        twin = other / segment.path.name
        count = min(size, segment.end) - segment.base
        if count > 0 and (not twin.exists() or segment.path.read_bytes()[:count] != twin.read_bytes()[:count]):
            problems.append(f"{segment.path} and {twin} differ")
    return problems


def plan(kinds: list[str], rounds: int, each: bool, dice: random.Random) -> list[str]:
    """Return the kinds of the rounds: each kind *rounds* times, by turns; or so many at random, by their weights."""
    return kinds * rounds if each else dice.choices(kinds, [KINDS.get(kind, 1) for kind in kinds], k=rounds)


def table(found: list[tuple[str, dict[str, float]]]) -> list[str]:
    """Return a table of outages as lines: number, median, 99th percentile and longest of each kind, and elections."""
    groups: dict[str, list[dict[str, float]]] = defaultdict(list)
    for what, outages in found:
        groups["two at once" if "+" in what else what].append(outages)
    heads = "nobody's was acknowledged: median", "p99", "longest", "one protocol's: median", "longest", "election"
    lines = [f"| what | rounds | {' | '.join(heads)} |"]
    for what, rounds in sorted(groups.items()):
        whole = [each["all"] for each in rounds]
        worst = [max(v for k, v in each.items() if k not in ("all", "election")) for each in rounds]
        elections = [each["election"] for each in rounds if "election" in each]
        election = f"{len(elections)}: {statistics.median(elections):.1f} s" if elections else ""
        p99 = sorted(whole)[min(len(whole) - 1, math.ceil(0.99 * len(whole)) - 1)]
        lines.append(
            f"| {what} | {len(rounds)} | {statistics.median(whole):.1f} s | {p99:.1f} s | {max(whole):.1f} s "
            f"| {statistics.median(worst):.1f} s | {max(worst):.1f} s | {election} |"
        )
    return lines


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--each", action="store_true", help="cause each of the kinds in so many rounds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(KINDS), help="choose among these only")
    parser.add_argument("--leaders", action="store_true", help="let each fault hit a leader")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after this time, if that is earlier")
    parser.add_argument("--other", default="", help="directory with the code of another version of Fyrehose")
    parser.add_argument("--directory", type=servers.directory, help="for everything; a temporary one by default")
    parser.add_argument("--figures", type=Path, help="write the outages to this file, as JSON")
    arguments = parser.parse_args(words)
    dice = random.Random(arguments.seed)
    kinds = arguments.kinds.split(",")
    if {*FULL} & {*kinds} and "swap" in kinds:
        parser.error("full and nats-full exclude swap: directories on different disks cannot be exchanged")
    if {"slow", "slow-disk", "double"} & {*kinds} and not has_strace():
        parser.error(
            "slow, slow-disk and double need strace: run `apt-get install strace`, or leave them out of --kinds"
        )
    root = Path(tempfile.mkdtemp(prefix="fyrehose-cluster-", dir=arguments.directory))
    small = bool({*FULL} & {*kinds})
    weather = Weather(root, dice, arguments.other, small, arguments.leaders)
    found: list[tuple[str, dict[str, float]]] = []
    kept = ""
    began = time.monotonic()
    try:
        weather.start()
        for number, kind in enumerate(plan(kinds, arguments.rounds, arguments.each, dice), 1):
            what, outages = weather.round(kind)
            found.append((what, outages))
            shown = ", ".join(f"{name} {seconds:.1f}" for name, seconds in outages.items())
            acked = sum(publisher.acked for publisher in weather.publishers)
            print(
                f"{time.monotonic() - began:5.0f} s, round {number}: {what}: {shown}; {acked} acknowledged", flush=True
            )
            if arguments.figures:
                arguments.figures.write_text(json.dumps(found))
            if weather.problems or time.monotonic() - began > 60 * arguments.minutes:
                break
        kept = weather.finish()
    finally:
        weather.stop()
    for problem in weather.problems[:20]:
        print(f"VIOLATION: {problem}")
    acked = {publisher.protocol: publisher.acked for publisher in weather.publishers}
    print(
        f"{len(found)} rounds (seed {arguments.seed}): {sum(acked.values()):,} messages acknowledged "
        f"({', '.join(f'{name} {count:,}' for name, count in acked.items())}), {weather.wipes} disks lost; {kept}: "
        f"{len(weather.problems)} violations"
    )
    print("\n".join(table(found)))
    if weather.problems:
        print(f"the directory is kept: {root}")
        return 1
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
