#!/usr/bin/env python3
"""Publish each line of standard input by HTTP, and confirm it: a program for rsyslog's omprog with confirmMessages.

    fyrehose-http.py http://127.0.0.1:8117/streams/syslog [TOKEN-FILE]

It needs Python 3 only. It writes OK when a message is on the server's disk; anything else makes rsyslog keep the
message and send it again.
"""

import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit


def main() -> None:
    url = urlsplit(sys.argv[1])
    headers = {"Content-Type": "application/json"}
    if len(sys.argv) > 2:
        headers["Authorization"] = "Bearer " + Path(sys.argv[2]).read_text().split()[0]
    connection = (HTTPSConnection if url.scheme == "https" else HTTPConnection)(url.netloc, timeout=30)
    print("OK", flush=True)  # ready for the first message
    for line in sys.stdin.buffer:
        try:
            connection.request("POST", url.path, line.rstrip(b"\n"), headers)
            answer = connection.getresponse()
            body = answer.read()
            said = "OK" if answer.status == 200 else f"{answer.status} {body.decode(errors='replace').strip()}"
        except (OSError, HTTPException) as error:
            connection.close()  # the next message connects again
            said = f"Error: {error!r}"
        print(said, flush=True)


if __name__ == "__main__":
    main()
