"""Check that the streams have what the clients of herd.py were told, and nothing else."""

from __future__ import annotations

import zlib
from collections import defaultdict

import load
import wire
from herd_clients import PAYLOAD, Outcome

#: The stream of each protocol whose streams are not named after the clients.
STREAMS = {"lumberjack": "lumberjack", "backbone": "backbone", "eventbus": "eventbus"}
#: How many violations of one kind are listed.
SHOWN = 3

Stored = list[tuple[int, bytes]]


def streams_of(outcome: Outcome) -> str:
    """Return the stream to which a client publishes."""
    label = outcome.spec.label
    if outcome.spec.protocol == "figg":
        return f"{label}-{outcome.number % 10}"
    return STREAMS.get(outcome.spec.protocol, label)


def check(port: int, outcomes: list[Outcome], *, strangers: bool) -> list[str]:
    """Compare the streams with what clients were told; return the problems.

    :param strangers: whether other clients wrote to the streams, too
    """
    names = sorted({streams_of(outcome) for outcome in outcomes if outcome.acked})
    stored: dict[str, Stored] = {}
    for name in names:
        stored[name] = wire.read_all(port, [name.encode()])[name.encode()]
    problems = [f"{o.spec.label} {o.number}: {wrong}" for o in outcomes for wrong in o.wrong[:1]]
    said = [f"{len(problems)} clients were told something wrong, such as {problems[0]}"] if problems else []
    return said + _published(stored, outcomes, strangers=strangers) + _delivered(stored, outcomes)


def _published(stored: dict[str, Stored], outcomes: list[Outcome], *, strangers: bool) -> list[str]:
    """Check that acknowledged messages are stored, in order, and those of Relink once; return the problems."""
    numbers: dict[tuple[str, int], list[int]] = defaultdict(list)
    foreign = 0
    for records in stored.values():
        for _, data in records:
            match = PAYLOAD.fullmatch(data)
            if match is None:
                foreign += 1
            else:
                numbers[match[1].decode(), int(match[2])].append(int(match[3]))
    wrong = []
    for outcome in outcomes:
        found = numbers.get((outcome.spec.label, outcome.number), [])
        if outcome.spec.protocol != "relink":  # whose links send nothing again that is stored
            found = list(dict.fromkeys(found))
        if outcome.spec.protocol == "backbone":  # datagrams come in any order
            found.sort()
        told = (outcome.acked, outcome.sent)
        wrong += [f"{outcome.spec.label} {outcome.number}: {problem}" for problem in load.judge(found, told)]
    problems = [f"{len(wrong)} stored messages are wrong, such as {wrong[:SHOWN]}"] if wrong else []
    return problems + [f"{foreign} records were sent by no client"] * (foreign > 0 and not strangers)


def _delivered(stored: dict[str, Stored], outcomes: list[Outcome]) -> list[str]:
    """Check that deliveries are as stored, in rising order, by a Relink link once each; return the problems."""
    sums = {name: {seq: zlib.crc32(data) for seq, data in records} for name, records in stored.items()}
    wrong: list[str] = []
    for outcome in outcomes:
        relink = outcome.spec.protocol == "relink"
        before = 0
        for stream, seq, checksum in outcome.read:
            if stream in sums and sums[stream].get(seq) != checksum:
                wrong.append(
                    f"{outcome.spec.label} {outcome.number} received another record as {seq} of {stream} than is stored"
                )
            # Datagrams may be delivered late, because a client may ask again for a gap between datagrams.
            if seq <= before and outcome.spec.protocol not in ("backbone",) and (relink or seq == before):
                wrong.append(f"{outcome.spec.label} {outcome.number} received {seq} of {stream} after {before}")
            before = seq
    return [f"{len(wrong)} deliveries are wrong, such as {wrong[:SHOWN]}"] if wrong else []
