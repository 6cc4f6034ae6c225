#!/usr/bin/env python3
"""Kill the server under rsyslog's omrelp with a queue on disk: every message must be stored.

    syslog_kill.py [--messages 1000000] [--kills 20] [--seed N] [--directory DIR] [--sabotage]

rsyslogd runs with the action of deploy/recipes/rsyslog, and reads a file to which lines are appended.  The server is
killed while they arrive, at a random number.  In the end it stops in order, and its journal is read.  A message whose
answer was lost is sent again and stored again (docs/protocols/syslog.md, "What happens to a message"), so copies are
counted and no failure.  With --sabotage the last message is left out of the file, which must be noticed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import servers

FYREHOSE = Path(sys.executable).with_name("fyrehose")
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
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/streams", timeout=30) as answer:
            return max((each["last"] for each in json.load(answer)["streams"] if each["name"] == "syslog"), default=0)
    except OSError:
        return 0


def arrived(port: int, number: int) -> bool:
    """Return whether message *number* is the last one of the stream."""
    url = f"http://127.0.0.1:{port}/streams/syslog?from={max(1, last(port))}&limit=1"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return any(json.loads(line)["payload"].endswith(f" {number}") for line in answer)
    except OSError:
        return False


def stored(directory: Path) -> list[int]:
    """Return the number of each stored message."""
    words = [FYREHOSE, "journal", "dump", directory / "data", "--stream", "syslog", "--format", "json"]
    numbers = []
    with subprocess.Popen(words, stdout=subprocess.PIPE) as dump:
        assert dump.stdout is not None
        for line in dump.stdout:
            numbers.append(int(json.loads(line)["payload"].rpartition(" ")[2]))
    assert dump.returncode == 0, f"journal dump ended with {dump.returncode}"
    return numbers


def send(directory: Path, messages: int, kills: int, draw: random.Random) -> None:
    """Append *messages* lines, kill the server meanwhile, and wait until it has all of them."""
    program = shutil.which("rsyslogd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if program is None:
        raise SystemExit("rsyslogd is not installed: apt install rsyslog rsyslog-relp")
    ports = servers.free_ports(("syslog", "http"))
    server = servers.Server(directory, ports=ports, only=True)
    server.wait_until_serving()
    file = directory / "in.log"
    file.touch()
    words = [program, "-n", "-f", configure(directory, file, ports["syslog"]), "-i", directory / "rsyslog.pid"]
    shipper = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        before, part = 0, messages // (kills + 1) + 1
        for begin in range(0, messages, part):
            with file.open("a") as out:
                out.writelines(f"line {number}\n" for number in range(begin, min(messages, begin + part)))
            wanted, seen, since = before + draw.randrange(part), -1, time.monotonic()
            while (reached := last(ports["http"])) < wanted and time.monotonic() - since < SILENCE:
                seen, since = (reached, time.monotonic()) if reached > seen else (seen, since)
                time.sleep(0.05)
            if begin + part < messages:
                server.kill(signal.SIGKILL)
                server = servers.Server(directory, ports=ports, only=True)
                server.wait_until_serving()
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=servers.directory)
    parser.add_argument("--sabotage", action="store_true")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="fyrehose-syslog-", dir=options.directory))
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
