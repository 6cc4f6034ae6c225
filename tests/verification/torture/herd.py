#!/usr/bin/env python3
"""Test a server with default options: herds of clients that reconnect at once, and hostile hosts beside honest ones.

    herd.py [--part herds|hostile]... [--clients N] [--protocol P]... [--attack A]... [--seconds S] [--patience S]

    herds    N clients of one protocol after the other, or of all of them --together, connect at once from one address,
             publish and read; the server is stopped (SIGTERM) and started again, and then killed (kill -9) and started
             again.  A client has recovered when a message or request on a new connection was acknowledged or answered.
             All must recover within --within seconds of the server's start.
    hostile  each attack of herd_attacks.py for --seconds from 127.0.0.2.  Meanwhile honest clients publish and read:
             one of each protocol at 127.0.0.1, one that reconnects for each message, one that first connects in the
             middle of the attack (to new streams), and one at the attacker's own address.
             No honest client at 127.0.0.1 may wait longer than --patience, and the server may not use more than
             --memory.

The clients share no code with the server: they use raw sockets, written from the protocols' texts, and pyzmq.  At the
end of each part all streams are read: acknowledged messages must be stored, in order, and messages of one Relink link
only once.  The exit status is 1 if any rule was broken.  The program ends by itself, after about 3 x --limit seconds
for each round.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import herd_attacks
import kills
import servers
from herd_checks import check
from herd_clients import Outcome, Spec
from herd_crowds import Crowd
from servers import Usage

from fyrehose.testing.certificates import Authority

PROTOCOLS = ("figg", "lumberjack", "relink", "http", "backbone", "eventbus")
ATTACKER = "127.0.0.2"


def secured(root: Path) -> list[str]:
    """Return the options of the listeners with TLS, of which one requires client certificates."""
    authority = Authority(servers.directory(str(root / "certificates")))
    own = authority.issue("server", "localhost")
    tls = {"tls-certificate": own.certificate, "tls-key": own.key}
    secured = {**tls, "tls-authorities": authority.certificate, "tls-client-auth": "required"}
    listeners = {herd_attacks.TLS: tls, herd_attacks.SECURED: secured}
    return [f"{listener}.{name}={value}" for listener, options in listeners.items() for name, value in options.items()]


class Run:
    """One journal, the servers that run on it one after the other, and crowds of clients."""

    def __init__(self, root: Path, specs: list[list[Spec]], options: list[str]) -> None:
        self.root, self.options = root, [*options, *secured(root)]
        self.problems: list[str] = []
        self.ports = servers.free_ports((*PROTOCOLS, herd_attacks.TLS, herd_attacks.SECURED))
        self.server = self.start()
        self.crowds = [Crowd(each) for each in specs]

    def start(self) -> servers.Server:
        server = servers.Server(
            self.root, *[word for option in self.options for word in ("--option", option)], ports=self.ports
        )
        server.wait_until_serving()
        return server

    def end(self, *, strangers: bool) -> list[Outcome]:
        """Disconnect all clients, check the streams and stop the server; add what is wrong to ``problems``."""
        outcomes = [outcome for crowd in self.crowds for outcome in crowd.outcomes()]
        self.close_crowds()
        self.look()
        self.problems += check(self.ports["figg"], outcomes, strangers=strangers)
        if status := self.server.kill(signal.SIGTERM):
            self.problems.append(f"status {status} after SIGTERM")
        return outcomes

    def look(self) -> None:
        signs = ("Traceback", "#critical]", "a turn of the reactor takes")
        bad = [line for line in self.server.log.splitlines() if any(sign in line for sign in signs)]
        self.problems += bad[:3]
        if self.server.process.poll() is not None:
            raise servers.ServerEnded(f"the server ended with {self.server.process.returncode}")

    def close_crowds(self) -> None:
        for crowd in self.crowds:
            crowd.close()

    def close(self) -> None:
        self.close_crowds()
        self.server.process.kill()
        self.server.process.wait()


def wait_for(crowds: list[Crowd], since: float, limit: float) -> list[tuple[float, list[str]]]:
    """Wait until all clients are served, at most ``limit`` seconds.

    :return: for each crowd, when the last client was served, in seconds after *since*, and the clients that were not
    """
    while True:
        found = [crowd.back() for crowd in crowds]
        if not any(away for _, away in found) or time.monotonic() - since > limit:
            return [(last - since, away) for last, away in found]
        time.sleep(0.1)


def unserved(crowds: list[Crowd], patience: float, when: str) -> list[str]:
    """Return a problem for each client that gets no acknowledgement or delivery within ``patience`` seconds."""
    found = wait_for(crowds, time.monotonic(), patience)
    return [f"{name} was not served {when} within {patience:g} s" for _, away in found for name in away]


def herds(protocols: list[str], arguments: argparse.Namespace, root: Path) -> list[str]:
    """Let herds of clients connect, and reconnect after two restarts; return the problems."""
    specs = [[Spec(name, arguments.clients, pause=arguments.pause)] for name in protocols]
    run = Run(root / "-".join(protocols), specs, arguments.option)
    try:
        for round_ in ("begin", "SIGTERM", "kill -9"):
            stop = start = 0.0
            if round_ == "begin":
                for crowd in run.crowds:
                    crowd.serve(run.ports)
                since = time.monotonic()
            else:
                time.sleep(random.uniform(1, 3))
                began = time.monotonic()
                run.look()
                run.server.kill(signal.SIGTERM if round_ == "SIGTERM" else signal.SIGKILL)
                stop = time.monotonic() - began
                for crowd in run.crowds:
                    crowd.mark()
                began = time.monotonic()
                run.server = run.start()
                since = time.monotonic()
                start = since - began
            for crowd, (last, away) in zip(run.crowds, wait_for(run.crowds, since, arguments.limit), strict=True):
                name, total = crowd.specs[0].label, crowd.specs[0].count
                back = total - len(away)
                memory = Usage(run.server.process.pid).largest >> 10
                print(
                    f"{round_:9}{name:12}{total:8}{back:7}{last:10.1f}{stop:10.1f}{start:11.1f}{memory:6}", flush=True
                )
                if back < total or last > arguments.within:
                    run.problems.append(
                        f"{round_}: {back} of {total} clients of {name} are back, the last after {last:.1f} s"
                    )
                if memory > arguments.memory:
                    run.problems.append(f"{round_}: the server took {memory} MiB")
        outcomes = run.end(strangers=False)
        for name in protocols:
            mine = [each for each in outcomes if each.spec.label == name]
            acked, read = sum(o.acked for o in mine), sum(len(o.read) for o in mine)
            print(f"{name}: {acked} acknowledged, {read} delivered", flush=True)
    except (OSError, ValueError, servers.ServerEnded, TimeoutError) as error:
        run.problems.append(f"{type(error).__name__}: {error}")
    finally:
        run.close()
    return [f"herd: {problem}" for problem in run.problems]


def honest(address: str, suffix: str, *, fresh: bool) -> list[list[Spec]]:
    """Return the honest clients of an attack: one of each protocol (two of Relink); some messages are large."""
    large = {"figg": 1 << 20, "http": 300_000, "relink": 200_000, "eventbus": 8 << 10}
    specs = [
        Spec(
            name,
            2 if name == "relink" else 1,
            f"{name}-{suffix}",
            address,
            pause=0.2,
            large=large.get(name, 0),
            fresh=fresh,
        )
        for name in PROTOCOLS
        if not fresh or name not in ("backbone", "eventbus", "relink")
    ]
    return [[each for each in specs if each.protocol != "eventbus"], [s for s in specs if s.protocol == "eventbus"]]


def waits_of(outcome: Outcome) -> str:
    """Return the median, 99 % and longest wait of the messages of one client, as text."""
    waits = sorted(outcome.waits)
    middle = f"{waits[len(waits) // 2] * 1e3:.0f}/{waits[len(waits) * 99 // 100] * 1e3:.0f} ms, " if waits else ""
    return f"{outcome.spec.protocol} {middle}{outcome.worst:.1f} s ({outcome.acked or len(outcome.read)})"


def hostile(name: str, arguments: argparse.Namespace, root: Path) -> list[str]:
    """Run one attack on a server of its own; return the problems."""
    near, far = honest(ATTACKER, "near", fresh=False), honest("127.0.0.1", "honest", fresh=False)
    anew = honest("127.0.0.1", "fresh", fresh=True)[0]
    options = [*herd_attacks.OPTIONS.get(name, []), *arguments.option]
    run = Run(root / name, [far[0], far[1], anew, near[0], near[1]], options)
    try:
        for crowd in run.crowds:
            crowd.serve(run.ports)
        run.problems += unserved(run.crowds, arguments.patience, "before the attack")
        idle = Usage(run.server.process.pid)
        attack = herd_attacks.Attack(name, run.ports, ATTACKER)
        began = time.monotonic()
        time.sleep(arguments.seconds / 2)
        for crowd in run.crowds:
            crowd.forget()
        newcomers = [Crowd(each) for each in honest("127.0.0.1", "new", fresh=False)]
        run.crowds += newcomers
        for crowd in newcomers:
            crowd.serve(run.ports)
        time.sleep(arguments.seconds / 2)
        run.problems += unserved([*run.crowds[:3], *newcomers], arguments.patience, "during the attack")
        after = Usage(run.server.process.pid)
        cpu = (after.cpu - idle.cpu) / (time.monotonic() - began)
        said, wrong = attack.end()
        run.problems += wrong
        outcomes = run.end(strangers=True)
        print(
            f"{name}: {said}; memory {idle.resident >> 10} MiB before, {after.largest >> 10} at most; "
            f"{cpu:.2f} CPU, {after.descriptors} descriptors; waits: p50/p99, longest (messages)"
        )
        for suffix in ("honest", "fresh", "new", "near"):
            mine = [each for each in outcomes if each.spec.label.endswith(suffix)]
            print(f"  {suffix:8}{', '.join(map(waits_of, mine))}", flush=True)
            late = [each for each in mine if each.worst > arguments.patience]
            if suffix != "near":
                run.problems += [f"{o.spec.label} {o.number} waited for {o.worst:.1f} s" for o in late]
        if after.largest >> 10 > arguments.memory:
            run.problems.append(f"the server took {after.largest >> 10} MiB")
    except (OSError, ValueError, servers.ServerEnded, TimeoutError) as error:
        run.problems.append(f"{type(error).__name__}: {error}")
    finally:
        run.close()
    return [f"{name}: {problem}" for problem in run.problems]


def main() -> int:
    parser = kills.parser_of(__doc__, clients=200)
    parser.add_argument("--part", choices=("herds", "hostile"), action="append")
    parser.add_argument("--protocol", choices=PROTOCOLS, action="append", help="protocol of the herds; all by default")
    parser.add_argument("--together", action="store_true", help="the herds of all protocols at the same time")
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two messages of a client of a herd")
    parser.add_argument(
        "--within", type=float, default=10.0, help="seconds within which a whole herd must be served again"
    )
    parser.add_argument("--limit", type=float, default=30.0, help="how long to wait for clients that are not served")
    parser.add_argument("--attack", choices=herd_attacks.ATTACKS, action="append", help="all by default")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long each attack lasts")
    parser.add_argument("--patience", type=float, default=10.0, help="the longest that an honest client may wait")
    parser.add_argument(
        "--memory", type=int, default=768, help="the most memory that the server may use, in MiB: 512, and slack"
    )
    parser.add_argument(
        "--option", action="append", default=[], help="option of the server, which has its defaults otherwise"
    )
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    random.seed(arguments.seed)
    root = kills.root_of(arguments, "herd")
    print(f"seed {arguments.seed}", flush=True)
    problems: list[str] = []
    parts = arguments.part or ("herds", "hostile")
    if "herds" in parts:
        print("round    protocol     clients   back  last (s)  stop (s)  start (s)   MiB")
        protocols = arguments.protocol or list(PROTOCOLS)
        for some in [protocols] if arguments.together else [[name] for name in protocols]:
            problems += herds(some, arguments, root)
    if "hostile" in parts:
        for name in arguments.attack or herd_attacks.ATTACKS:
            problems += hostile(name, arguments, root)
    for problem in problems:
        print(f"VIOLATION: {problem}")
    print(f"{len(problems)} violations")
    return servers.verdict(bool(problems), root)


if __name__ == "__main__":
    sys.exit(main())
