#!/usr/bin/env python3
"""Simulate groups of servers that divide the streams, a map that says which group has which, and moves between them.

    groups.py [--count 1000] [--first 0] [--seed 1] [--steps 300] [--break RULE]

A model of the design only: no product code knows groups yet.  A group is what a cluster is today, so it is modelled as
one log: what its leader appends becomes durable later and in order, and a crash of the leader keeps some prefix of what
was not durable.  The map is state of the first group: one decision for each stream, with an epoch that rises by one.
A stream moves in these steps, each of which may come late, again, or never:

    begin    the map decides that the stream moves from its home to a target
    freeze   the home appends a freeze; from there on it refuses publishes, and the number of its last record is the end
    copy     the home's records and keys are appended at the target, in order
    finish   the map decides that the target is the home, once the target has everything up to the end; or
    cancel   the map decides that the home stays the home
    own      each group appends the decision: the home serves the stream, and others forget it

Coordinators do that; they are stateless but for answers that they have, several act at once, and they crash.  Clients
send transactions with a key to any server; the server passes them to the group that its copy of the map names.  Rules:

    epochs          an order with an epoch that the group has already seen, or an older one, does nothing
    owner-checks    a group stores only in streams that it owns by a decision in its own log, whatever a sender believes
    freeze-durable  a freeze is answered when it is durable
    freeze-in-log   the end is the last number that the log has before the freeze, not the last durable number
    copy-frozen     records are copied only from a stream whose freeze is durable
    copy-continues  a copy begins with the number behind the last one that the target has, or what is there is skipped
    keys-go         the keys of records go with them
    map-decides     a target serves a stream when the map has decided so, not when it has everything
    whole-copy      the map decides only when the target has everything up to the end
    forward-waits   a server answers a client when the group has answered
    one-group       a transaction whose streams are in several groups is refused as a whole
    unknown         what a leader had not made durable when it crashed is neither acknowledged nor refused
    read-durable    readers get what is durable

Checked after every step:

    A  an acknowledged message has its number in the stream's group when all has become calm
    B  a key has one number in a stream, wherever the stream was
    C  the numbers of a stream have no holes
    D  no number of a stream is given twice, in one group or in two
    E  a reader sees each number once and in order, and the message that was acknowledged with it
    F  a transaction is stored in all its streams or in none, and not at all if a client says so
    G  when all faults have ended, moves end and clients get their answers within a bounded number of steps

``--break`` removes one rule, and the exit status must then be 1.  Prints a line for each violation, with the number of
its schedule, and how often each branch of the rules ran; the exit status is also 1 if one never did.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import attrs
import schedules

RULES = (
    "epochs",
    "owner-checks",
    "freeze-durable",
    "freeze-in-log",
    "copy-frozen",
    "copy-continues",
    "keys-go",
    "map-decides",
    "whole-copy",
    "forward-waits",
    "one-group",
    "unknown",
    "read-durable",
)
#: What must have happened in some schedule: see World.ran.
BRANCHES = (
    "begin", "finish", "finish-late", "cancel", "cancel-late", "frozen", "frozen-again", "old-freeze", "copied",
    "copied-again", "copy-ahead", "old-copy", "owned", "forgotten", "old-decision", "stored", "repeated", "elsewhere",
    "divided", "lost-in-crash", "kept-in-crash", "read", "read-frozen", "read-elsewhere", "lost-message",
    "acknowledged",
)  # fmt: skip
STREAMS = ("a", "b", "c")
GROUPS = 3
SERVERS = 2


class Violation(Exception):
    """An invariant does not hold."""


class Role(Enum):
    """The part of a group in a stream."""

    ABSENT = "absent"
    COPYING = "copying"
    FROZEN = "frozen"
    OWNER = "owner"


@attrs.define
class Stream:
    """A stream in one group.

    :ivar seen: the highest epoch of an order that the group has appended
    :ivar end: the number of the last record at the freeze
    :ivar records: the transactions whose messages the stream has; the first has number 1
    :ivar keys: the number of each transaction that the group remembers
    """

    role: Role = Role.ABSENT
    seen: int = 0
    end: int = 0
    records: list[int] = attrs.field(factory=list)
    keys: dict[int, int] = attrs.field(factory=dict)


@attrs.frozen
class Decision:
    """An entry of the map for a stream; *target* is None unless the stream moves."""

    epoch: int
    home: int
    target: int | None = None


@attrs.define(eq=False)
class Group:
    """A group: its durable log, and what its leader has appended but is not durable."""

    number: int
    world: World
    log: list[tuple[Any, ...]] = attrs.field(factory=list)
    durable: dict[str, Stream] = attrs.field(factory=lambda: {name: Stream() for name in STREAMS})
    view: dict[str, Stream] = attrs.field(factory=lambda: {name: Stream() for name in STREAMS})
    #: entries that are not durable: the entry, and what is done with its result then
    pending: list[tuple[tuple[Any, ...], Callable[[Any], object]]] = attrs.field(factory=list)

    def append(self, entry: tuple[Any, ...], answer: Callable[[Any], object]) -> None:
        """Append *entry*; *answer* is called with its result when it is durable."""
        if entry[0] == "freeze" and self.world.broken == "freeze-in-log":
            entry = (*entry, len(self.durable[entry[1]].records))
        result = self.apply(self.view, entry)
        if entry[0] == "freeze" and self.world.broken == "freeze-durable":
            answer(result)
        self.pending.append((entry, answer))

    def commit(self) -> None:
        """Make the oldest entry durable."""
        entry, answer = self.pending.pop(0)
        self.log.append(entry)
        result = self.apply(self.durable, entry)
        self.world.judge(self, entry)
        answer(result)

    def crash(self) -> None:
        """Replace the leader: a prefix of what was not durable stays, without answers."""
        kept = self.world.rnd.randint(0, len(self.pending))
        lost = self.pending[kept:]
        waiting, self.pending = self.pending, [(entry, lambda result: None) for entry, _ in self.pending[:kept]]
        if self.world.broken == "unknown":
            for _, answer in waiting:
                answer(("elsewhere",))
        while self.pending:
            self.world.ran["kept-in-crash"] += 1
            self.commit()
        self.world.ran["lost-in-crash"] += bool(lost)
        self.view = copy.deepcopy(self.durable)

    def apply(self, state: dict[str, Stream], entry: tuple[Any, ...]) -> Any:
        """Change *state* as *entry* says; return the answer to its sender."""
        kind, *arguments = entry
        result = getattr(self, f"_{kind}")(state, *arguments)
        if state is self.durable:
            self.world.ran[result[0]] += 1
        return result

    def _publish(self, state: dict[str, Stream], key: int, streams: tuple[str, ...]) -> tuple[Any, ...]:
        touched = [state[name] for name in streams]
        if any(stream.role is not Role.OWNER for stream in touched) and self.world.broken != "owner-checks":
            return ("elsewhere",)
        if all(key in stream.keys for stream in touched):
            return ("repeated", tuple(stream.keys[key] for stream in touched))
        for stream in touched:
            stream.records.append(key)
            stream.keys[key] = len(stream.records)
        return ("stored", tuple(stream.keys[key] for stream in touched))

    def _freeze(self, state: dict[str, Stream], name: str, epoch: int, early: int | None = None) -> tuple[Any, ...]:
        stream = state[name]
        if stream.role is Role.FROZEN and stream.seen == epoch:
            return ("frozen-again", name, epoch, stream.end)
        # Only a home is told to freeze.  If it does not know that it is one, its copy is complete, or there are no
        # records, or it is frozen for a move that was cancelled.
        if epoch <= stream.seen and self.world.broken != "epochs":
            return ("old-freeze",)
        end = len(stream.records) if early is None else early
        stream.role, stream.seen, stream.end = Role.FROZEN, epoch, end
        return ("frozen", name, epoch, end)

    def _copy(
        self, state: dict[str, Stream], name: str, epoch: int, after: int, records: list[int], keys: bool
    ) -> tuple[Any, ...]:
        stream = state[name]
        if stream.role is Role.OWNER or (epoch < stream.seen and self.world.broken != "epochs"):
            return ("old-copy",)
        if (
            epoch > stream.seen
        ):  # a group that was the home is frozen, until it hears that it is the target of another move
            state[name] = stream = Stream(Role.COPYING, epoch)
        have = len(stream.records)
        if self.world.broken == "copy-continues":
            have = after
        if after > have:
            return ("copy-ahead", name, epoch, have)
        new = records[have - after :]
        for key in new:
            stream.records.append(key)
            if keys:
                stream.keys[key] = len(stream.records)
        return ("copied" if new else "copied-again", name, epoch, len(stream.records))

    def _decided(self, state: dict[str, Stream], name: str, epoch: int, home: int) -> tuple[Any, ...]:
        stream = state[name]
        if epoch <= stream.seen and self.world.broken != "epochs":
            return ("old-decision",)
        stream.seen = max(stream.seen, epoch)
        if home == self.number:
            stream.role = Role.OWNER
            return ("owned",)
        state[name] = Stream(seen=stream.seen)
        return ("forgotten",)


@attrs.define(eq=False)
class Client:
    """A client with one transaction, which it sends again until it has an answer that is final."""

    key: int
    streams: tuple[str, ...]
    numbers: tuple[int, ...] = ()
    #: attempts whose outcome is not known
    open: int = 0
    #: whether the client sends no more without knowing a number, and whether it says that nothing is stored
    ended: bool = False
    refused: bool = False

    @property
    def waits(self) -> bool:
        """Return whether the client sends its transaction again."""
        return not self.numbers and not self.ended

    def give_up(self) -> None:
        """End without a number, unless the client has one; what was not answered may have been stored."""
        if self.waits:
            self.ended, self.refused = True, not self.open


@attrs.define(eq=False)
class Coordinator:
    """A coordinator: what it has heard about moves."""

    ends: dict[tuple[str, int], int] = attrs.field(factory=dict)
    copied: dict[tuple[str, int], int] = attrs.field(factory=dict)


class World:
    """Groups, the map, servers, clients, readers, coordinators, and the messages between them."""

    def __init__(self, rnd: random.Random, broken: str | None = None) -> None:
        self.rnd, self.broken = rnd, broken
        self.ran: Counter[str] = Counter()
        self.calm = False
        self.map = {name: Decision(1, rnd.randrange(GROUPS)) for name in STREAMS}
        self.groups = [Group(number, self) for number in range(GROUPS)]
        self.maps = [dict(self.map) for _ in range(SERVERS)]
        self.coordinators = [Coordinator(), Coordinator()]
        self.clients: list[Client] = []
        self.positions = dict.fromkeys(STREAMS, 0)
        self.flying: list[Callable[[], object]] = []
        #: the transaction that has each number, and the number of each transaction, of every stream
        self.truth: dict[tuple[str, int], int] = {}
        self.number_of: dict[tuple[str, int], int] = {}

    # What may happen next.

    def step(self) -> None:
        """Let one thing happen."""
        luck = self.rnd.random()
        if luck < 0.38:
            self.deliver()
        elif luck < 0.55:
            self.commit()
        elif luck < 0.70:
            self.coordinate()
        elif luck < 0.86:
            self.publish()
        elif luck < 0.92:
            self.read()
        elif luck < 0.95:
            self.learn(self.rnd.randrange(SERVERS))
        elif not self.calm:
            self.fault()

    def fault(self) -> None:
        luck = self.rnd.random()
        if luck < 0.45:
            self.rnd.choice(self.groups).crash()
        elif luck < 0.52:
            self.coordinators[self.rnd.randrange(2)] = Coordinator()
        elif luck < 0.7 and self.flying:
            self.flying.pop(self.rnd.randrange(len(self.flying)))
            self.ran["lost-message"] += 1
        else:
            name = self.rnd.choice(STREAMS)
            now = self.map[name]
            if now.target is None:
                target = self.rnd.choice([group for group in range(GROUPS) if group != now.home])
                self.map[name] = Decision(now.epoch + 1, now.home, target)
                self.ran["begin"] += 1

    def send(self, message: Callable[[], object]) -> None:
        """Send a message, which arrives at any time, or never."""
        self.flying.append(message)

    def deliver(self) -> None:
        if self.flying:
            self.flying.pop(self.rnd.randrange(len(self.flying)))()

    def commit(self) -> None:
        waiting = [group for group in self.groups if group.pending]
        if waiting:
            self.rnd.choice(waiting).commit()

    # Clients, servers and readers.

    def publish(self) -> None:
        """Let a client send its transaction, again if it has no answer; or a new client."""
        waiting = [client for client in self.clients if client.waits]
        if not self.calm and (not waiting or self.rnd.random() < 0.4):
            streams = tuple(sorted(self.rnd.sample(STREAMS, self.rnd.choice((1, 1, 2)))))
            self.clients.append(Client(len(self.clients) + 1, streams))
            waiting = self.clients[-1:]
        if waiting:
            client, server = self.rnd.choice(waiting), self.rnd.randrange(SERVERS)
            client.open += 1
            self.send(lambda: self.forward(client, server))

    def forward(self, client: Client, server: int) -> None:
        """Pass a transaction on to the group that the server's copy of the map names."""
        homes = {name: self.maps[server][name].home for name in client.streams}
        places = sorted(set(homes.values()))
        if len(places) > 1 and self.broken != "one-group":
            self.ran["divided"] += 1
            self.send(lambda: self.answered(client, ("divided",), server))
            return
        for place in places:
            names = tuple(name for name in client.streams if homes[name] == place)
            self.send(partial(self.arrived, client, self.groups[place], names, server))

    def arrived(self, client: Client, group: Group, names: tuple[str, ...], server: int) -> None:
        if self.broken == "forward-waits":
            client.numbers = client.numbers or tuple(len(group.view[name].records) + 1 for name in names)
        group.append(
            ("publish", client.key, names), lambda result: self.send(lambda: self.answered(client, result, server))
        )

    def answered(self, client: Client, result: tuple[Any, ...], server: int) -> None:
        """Let *client* learn the outcome of an attempt."""
        client.open -= 1
        match result:
            case ("stored" | "repeated", numbers):
                client.numbers = client.numbers or numbers
            case ("divided",):
                client.give_up()
            case ("elsewhere",):
                self.learn(server)
                if not self.calm and self.rnd.random() < 0.1:
                    client.give_up()

    def learn(self, server: int) -> None:
        """Let a server read the map."""
        self.maps[server] = dict(self.map)

    def read(self) -> None:
        name, server = self.rnd.choice(STREAMS), self.rnd.randrange(SERVERS)
        group = self.groups[self.maps[server][name].home]
        stream = (group.view if self.broken == "read-durable" else group.durable)[name]
        if stream.role not in (Role.OWNER, Role.FROZEN):
            self.ran["read-elsewhere"] += 1
            self.learn(server)
            return
        self.ran["read" if stream.role is Role.OWNER else "read-frozen"] += 1
        position = self.positions[name]
        if position > len(stream.records):
            raise Violation(f"E: a reader of {name} has read {position}, and group {group.number} ends before")
        for key in stream.records[position : position + 3]:
            position += 1
            if self.truth.setdefault((name, position), key) != key:
                raise Violation(f"E: a reader of {name} gets {key} as number {position}, which was another message")
        self.positions[name] = position

    # Coordinators.

    def coordinate(self) -> None:
        """Let a coordinator do something for a stream, as an older or the newest state of the map asks for it."""
        who, name = self.rnd.choice(self.coordinators), self.rnd.choice(STREAMS)
        now = self.map[name]
        if now.target is None:
            self.order(self.rnd.choice(self.groups), ("decided", name, now.epoch, now.home))
            return
        move = name, now.epoch
        if not self.calm and self.rnd.random() < 0.05:
            self.send(lambda: self.decide(name, now, now.home, "cancel"))
            return
        end, have = who.ends.get(move), who.copied.get(move, 0)
        home, target = self.groups[now.home], self.groups[now.target]
        if end is None:
            self.order(home, ("freeze", name, now.epoch), lambda result: self.heard(who, result))
        if end is not None and (have >= end or self.broken == "whole-copy"):
            self.send(partial(self.decide, name, now, now.target, "finish"))
        elif end is not None or self.broken == "copy-frozen":
            first = max(0, have + self.rnd.choice((0, 0, -1, 2)))
            self.send(lambda: self.fetch(who, name, now, home, target, first))

    def order(
        self, group: Group, entry: tuple[Any, ...], answer: Callable[[Any], object] = lambda result: None
    ) -> None:
        if self.rnd.random() < (0.7 if self.calm else 0.4):
            self.send(lambda: group.append(entry, lambda result: self.send(lambda: answer(result))))

    def fetch(self, who: Coordinator, name: str, now: Decision, home: Group, target: Group, after: int) -> None:
        """Read some records of the home, and append them at the target."""
        stream = (home.view if self.broken == "copy-frozen" else home.durable)[name]
        if self.broken != "copy-frozen" and (stream.role is not Role.FROZEN or stream.seen != now.epoch):
            return
        records = stream.records[after : after + self.rnd.randint(1, 4)]
        entry = ("copy", name, now.epoch, after, records, self.broken != "keys-go")
        self.order(target, entry, lambda result: self.heard(who, result))

    def heard(self, who: Coordinator, result: tuple[Any, ...]) -> None:
        match result:
            case ("frozen" | "frozen-again", name, epoch, end):
                who.ends[name, epoch] = end
            case ("copied" | "copied-again" | "copy-ahead", name, epoch, have):
                who.copied[name, epoch] = have
                now = self.map[name]
                if self.broken == "map-decides" and now.target is not None and have >= who.ends.get((name, epoch), 99):
                    self.groups[now.target].append(("decided", name, epoch + 1, now.target), lambda result: None)

    def decide(self, name: str, seen: Decision, home: int, what: str) -> None:
        """Let the map decide that *home* has the stream, if its decision is still the one that the sender saw."""
        if self.map[name] != seen:
            self.ran[f"{what}-late"] += 1
            return
        self.ran[what] += 1
        self.map[name] = Decision(seen.epoch + 1, home)

    # Invariants.

    def judge(self, group: Group, entry: tuple[Any, ...]) -> None:
        """Check what *group* has just made durable."""
        names = entry[2] if entry[0] == "publish" else (entry[1],)
        for name in names:
            stream = group.durable[name]
            if entry[0] == "publish" and stream.role is not Role.OWNER and self.broken != "owner-checks":
                continue
            for number, key in enumerate(stream.records, 1):
                if self.truth.setdefault((name, number), key) != key:
                    raise Violation(f"D: number {number} of {name} is {key} in group {group.number}, and another one")
                if self.number_of.setdefault((name, key), number) != number:
                    raise Violation(f"B: {key} is number {number} of {name}, and {self.number_of[name, key]}")

    def finish(self, bound: int) -> None:
        """End all faults; check that everything ends well within *bound* steps."""
        self.calm = True
        for _ in range(bound):
            self.step()
            waiting = any(client.waits for client in self.clients)
            if not waiting and all(now.target is None for now in self.map.values()):
                break
        else:
            raise Violation(f"G: after {bound} calm steps a move or a client still waits")
        for group in self.groups:
            while group.pending:
                group.commit()
        for name, now in self.map.items():
            while self.groups[now.home].durable[name].seen < now.epoch:
                self.groups[now.home].append(("decided", name, now.epoch, now.home), lambda result: None)
                self.groups[now.home].commit()
        self.compare()

    def compare(self) -> None:
        """Compare what clients were told with what the groups have."""
        records = {name: self.groups[now.home].durable[name].records for name, now in self.map.items()}
        for name, number in self.truth:
            if number > len(records[name]):
                raise Violation(f"A: number {number} of {name} was durable, and its group ends at {len(records[name])}")
        for client in self.clients:
            stored = [client.key in records[name] for name in client.streams]
            if any(stored) and (client.refused or not all(stored)):
                said = "was refused" if client.refused else "is a transaction"
                raise Violation(f"F: {client.key} {said}, and {sum(stored)} of its {len(stored)} streams have it")
            for name, number in zip(client.streams, client.numbers, strict=False):
                if records[name][number - 1 : number] != [client.key]:
                    raise Violation(f"A: {client.key} was acknowledged as number {number} of {name}, which it is not")


def schedule(seed: str, steps: int, broken: str | None = None) -> tuple[World, str]:
    """Run one schedule; return the world at its end, and the violation, or ""."""
    world = World(random.Random(seed), broken)
    try:
        for _ in range(steps):
            world.step()
        world.finish(60 * steps)
    except Violation as violation:
        return world, str(violation)
    finally:
        world.ran["acknowledged"] = sum(bool(client.numbers) for client in world.clients)
    return world, ""


if __name__ == "__main__":
    raise SystemExit(schedules.main(__doc__, schedule, 300, RULES, BRANCHES))
