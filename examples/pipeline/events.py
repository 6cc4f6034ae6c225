#!/usr/bin/env python3
"""Print events as Filebeat sends them, one a line, to try the pipeline with.

events.py 20000 | fyrehose publish --protocol lumberjack
"""

from __future__ import annotations

import json
import random
import sys
from datetime import UTC, datetime, timedelta


def event(dice: random.Random, at: datetime, number: int) -> dict[str, object]:
    """Return an event of a web server's access log; one in a hundred has a status that is no number."""
    status: object = dice.choices([200, 301, 404, 500, 503], [80, 8, 8, 3, 1])[0]
    if dice.random() < 0.01:
        status = "unknown"
    return {
        "@timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "message": "request",
        "host": {"name": f"web-{dice.randrange(4)}"},
        "log": {"file": {"path": "/var/log/nginx/access.log"}, "offset": 200 * number},
        "http": {"request": {"method": "GET"}, "response": {"status_code": status}},
        "url": {"path": f"/{dice.randrange(1000)}"},
        "event": {"duration": dice.randrange(1_000_000)},
    }


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    dice, now = random.Random(), datetime.now(UTC)
    for number in range(count):
        # Spread over the last half an hour.
        print(json.dumps(event(dice, now - timedelta(minutes=30) * (1 - number / count), number)))


if __name__ == "__main__":
    main()
