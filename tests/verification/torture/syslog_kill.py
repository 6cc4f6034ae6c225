#!/usr/bin/env python3
"""Kill the server under rsyslog's omrelp with a queue on disk: every message must be stored.

    syslog_kill.py [--messages 1000000] [--kills 20] [--seed N] [--directory DIR] [--sabotage]

rsyslogd runs with the action of deploy/recipes/rsyslog, and reads a file to which lines are appended.  The server is
killed while they arrive, at a random number.  In the end it stops in order, and its journal is read.  A message whose
answer was lost is sent again and stored again (docs/protocols/syslog.md, "What happens to a message"), so copies are
counted and no failure.  With --sabotage the last message is left out of the file, which must be noticed.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import kills
import servers

RECIPE = Path(__file__).parents[3] / "deploy" / "recipes" / "rsyslog" / "fyrehose.conf"
#: The longest time without a new message, in seconds.
SILENCE = 60.0


def configure(directory: Path, file: Path, port: int) -> Path:
    """Write the configuration of rsyslogd, which sends the lines of *file* to *port*; return its path."""
    action = RECIPE.read_text().replace('"2514"', f'"{port}"')
    path = directory / "rsyslog.conf"
    path.write_text(
        f'global(workDirectory="{directory}")\nmodule(load="imfile")\n'
        f'input(type="imfile" file="{file}" tag="app:")\n{action}\n'
    )
    return path


def last(port: int) -> int:
    """Return the last number of the stream; 0 if there is none, or the server does not answer."""
    try:
        streams = json.loads(kills.ask(port, "GET", "/streams")[1])["streams"]
    except kills.LOST:
        return 0
    return max((each["last"] for each in streams if each["name"] == "syslog"), default=0)


def arrived(port: int, number: int) -> bool:
    """Return whether message *number* is the last one of the stream."""
    try:
        _, said = kills.ask(port, "GET", f"/streams/syslog?from={max(1, last(port))}&limit=1")
    except kills.LOST:
        return False
    return any(json.loads(line)["payload"].endswith(f" {number}") for line in said.splitlines())


def stored(directory: Path) -> list[int]:
    """Return the number of each stored message."""
    words = [kills.FYREHOSE, "journal", "dump", directory / "data", "--stream", "syslog", "--format", "json"]
    numbers = []
    with subprocess.Popen(words, stdout=subprocess.PIPE) as dump:
        assert dump.stdout is not None
        for line in dump.stdout:
            numbers.append(int(json.loads(line)["payload"].rpartition(" ")[2]))
    assert dump.returncode == 0, f"journal dump ended with {dump.returncode}"
    return numbers


def send(directory: Path, messages: int, times: int, draw: random.Random) -> None:
    """Append *messages* lines, kill the server meanwhile, and wait until it has all of them."""
    program = shutil.which("rsyslogd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if program is None:
        raise SystemExit("rsyslogd is not installed: apt install rsyslog rsyslog-relp")
    ports = servers.free_ports(("syslog", "http"))
    server = kills.Serving(directory, ports=ports, only=True)
    file = directory / "in.log"
    file.touch()
    words = [program, "-n", "-f", configure(directory, file, ports["syslog"]), "-i", directory / "rsyslog.pid"]
    shipper = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        before, part = 0, messages // (times + 1) + 1
        for begin in range(0, messages, part):
            with file.open("a") as out:
                out.writelines(f"line {number}\n" for number in range(begin, min(messages, begin + part)))
            wanted, seen, since = before + draw.randrange(part), -1, time.monotonic()
            while (reached := last(ports["http"])) < wanted and time.monotonic() - since < SILENCE:
                seen, since = (reached, time.monotonic()) if reached > seen else (seen, since)
                time.sleep(0.05)
            if begin + part < messages:
                server.kill()
                server.start()
            before = begin + part
        reached, since = -1, time.monotonic()
        # What comes again has come ten seconds after the last message, for which a busy machine needs longer.
        while time.monotonic() - since < (10.0 if arrived(ports["http"], messages - 1) else SILENCE):
            if (now := last(ports["http"])) > reached:
                reached, since = now, time.monotonic()
            time.sleep(0.2)
    finally:
        shipper.kill()
        shipper.wait()
        server.kill(signal.SIGTERM)


def main() -> int:
    parser = kills.parser_of(__doc__, messages=1_000_000, kills=20)
    parser.add_argument("--sabotage", action="store_true")
    options = parser.parse_args()
    root = kills.root_of(options, "syslog")
    began = time.monotonic()
    send(root, options.messages - options.sabotage, options.kills, random.Random(options.seed))
    found = stored(root)
    lost = set(range(options.messages)) - set(found)
    print(
        f"{options.messages} messages, {options.kills} kills, seed {options.seed}: {len(found)} stored, "
        f"{len(found) - len(set(found))} copies, {len(lost)} lost, {time.monotonic() - began:.0f} s"
    )
    if lost:
        print(f"lost: {sorted(lost)[:200]}")
    return servers.verdict(bool(lost), root)


if __name__ == "__main__":
    sys.exit(main())
