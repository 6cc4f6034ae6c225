"""Check the streams against what the clients of herd.py have sent and received."""

from __future__ import annotations

import zlib
from collections import defaultdict

import wire
from herd_clients import PAYLOAD, Outcome

#: The streams of protocols whose streams are not named after the clients.
STREAMS = {"lumberjack": "lumberjack", "backbone": "backbone", "eventbus": "eventbus"}
#: How many violations of one kind are listed.
SHOWN = 3

Stored = list[tuple[int, bytes]]


def streams_of(outcome: Outcome) -> str:
    """Return the stream that a client publishes into."""
    label = outcome.spec.label
    if outcome.spec.protocol == "figg":
        return f"{label}-{outcome.number % 10}"
    return STREAMS.get(outcome.spec.protocol, label)


def check(port: int, outcomes: list[Outcome], *, strangers: bool) -> list[str]:
    """Return the problems.

    :param strangers: whether other clients have published to the streams, too
    """
    names = sorted({streams_of(outcome) for outcome in outcomes if outcome.acked})
    stored: dict[str, Stored] = {}
    for name in names:
        stored[name] = wire.read_all(port, [name.encode()])[name.encode()]
    problems = [f"{o.spec.label} {o.number}: {wrong}" for o in outcomes for wrong in o.wrong[:1]]
    said = [f"{len(problems)} clients were told something wrong, such as {problems[0]}"] if problems else []
    return said + _published(stored, outcomes, strangers=strangers) + _delivered(stored, outcomes)


def _published(stored: dict[str, Stored], outcomes: list[Outcome], *, strangers: bool) -> list[str]:
    """Return the problems: acknowledged messages are stored in the order of sending, those of Relink once."""
    numbers: dict[tuple[str, int], list[int]] = defaultdict(list)
    foreign = 0
    for records in stored.values():
        for _, data in records:
            match = PAYLOAD.fullmatch(data)
            if match is None:
                foreign += 1
            else:
                numbers[match[1].decode(), int(match[2])].append(int(match[3]))
    missing, disordered, doubled, unsent = [], [], [], []
    if strangers:
        foreign = 0
    for outcome in outcomes:
        found = numbers.get((outcome.spec.label, outcome.number), [])
        first = list(dict.fromkeys(found))
        name = f"{outcome.spec.label} {outcome.number}"
        missing += [f"{n} of {name}" for n in sorted(set(range(1, outcome.acked + 1)) - set(first))]
        unsent += [name] if first and max(first) > outcome.sent else []
        if outcome.spec.protocol != "backbone":
            disordered += [name] if first != sorted(first) else []
        doubled += [name] if outcome.spec.protocol == "relink" and len(found) != len(first) else []
    counted = {
        "acknowledged messages are missing": missing,
        "clients have messages that they never sent": unsent,
        "clients have messages out of order": disordered,
        "clients of Relink have messages twice": doubled,
        "records are of nobody": [str(foreign)] * (foreign > 0),
    }
    return [f"{len(each)} {what}, such as {each[:SHOWN]}" for what, each in counted.items() if each]


def _delivered(stored: dict[str, Stored], outcomes: list[Outcome]) -> list[str]:
    """Return the problems: deliveries are as stored, in rising order; a Relink link gets each record once."""
    sums = {name: {seq: zlib.crc32(data) for seq, data in records} for name, records in stored.items()}
    wrong: list[str] = []
    for outcome in outcomes:
        relink = outcome.spec.protocol == "relink"
        before = 0
        for stream, seq, checksum in outcome.read:
            if stream in sums and sums[stream].get(seq) != checksum:
                wrong.append(f"{seq} of {stream} at {outcome.spec.label} {outcome.number} is something else")
            # Datagrams may come late; a client that lacks one may ask for the gap, as the specification says.
            if seq <= before and outcome.spec.protocol not in ("backbone",) and (relink or seq == before):
                wrong.append(f"{seq} of {stream} after {before} at {outcome.spec.label} {outcome.number}")
            before = seq
    return [f"{len(wrong)} deliveries are wrong, such as {wrong[:SHOWN]}"] if wrong else []
