"""Chromium's own EventSource and images, from pages of other sites, against a server that is killed and restarted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from fyrehose.testing.ports import free_port
from tests.live.conftest import PATIENCE, Start, TwistdServer, until

pytestmark = [pytest.mark.live, pytest.mark.slow]

SITE = Path(__file__).parents[2] / "examples" / "dashboard"
LISTEN = """
window.seen = [];
const source = window.source = new EventSource(arguments[0]);
for (const each of ["open", "error", "begin", "message", "gap", "restarted", "ended"]) {
  source.addEventListener(each, (event) => seen.push([each, event.data ? JSON.parse(event.data).payload ?? "" : ""]));
}
"""


def publish(port: int, payload: str) -> None:
    with urlopen(f"http://127.0.0.1:{port}/streams/s", payload.encode(), timeout=PATIENCE) as answer:
        assert answer.status == 200


def test_an_event_source_that_drops_before_its_first_event_misses_nothing(
    start: Start, browser: Any, site: str
) -> None:
    port = free_port()

    def serve() -> TwistdServer:
        return start("--listen", f"http=tcp:{port}:interface=127.0.0.1", "--option", f"http.origins={site}")

    def seen(kind: str) -> list[str]:
        return [payload for each, payload in browser.execute_script("return seen") if each == kind]

    server = serve()
    publish(port, "before")
    browser.get(f"{site}/index.html")
    browser.execute_script(LISTEN, f"http://127.0.0.1:{port}/streams/s/live")
    until(lambda: seen("begin"), lambda: seen("error"))
    server.process.kill()
    server.process.wait()
    serve()
    away = [f"away {number}" for number in range(3)]
    for each in away:
        publish(port, each)
    until(lambda: len(seen("begin")) == 2, lambda: seen("error"))
    publish(port, "after")
    until(lambda: len(seen("message")) >= 4, lambda: seen("message"))
    assert seen("message") == [*away, "after"]
    browser.execute_script("source.close()")


def test_an_image_of_another_site_creates_no_subscription_and_takes_none_over(
    start: Start, browser: Any, site: str
) -> None:
    """Over plain HTTP to a name of a network Chromium sends neither Origin nor Sec-Fetch-Site with an image."""
    server = start("--listen", "http=tcp:0:interface=127.0.0.1", "--option", "http.hosts=fyrehose.test")
    port = server.port("http")
    publish(port, "x")
    url = f"http://127.0.0.1:{port}"
    with urlopen(f"{url}/streams/s?subscription=mine", timeout=PATIENCE) as answer:
        generation = int(answer.headers["Fyrehose-Generation"])
    browser.get(f"{site}/index.html")
    for words in ("subscription=new", "subscription=mine&takeover=1", "limit=1"):
        browser.execute_async_script(
            """
            const image = new Image();
            image.onerror = () => arguments[1]();
            image.src = arguments[0];
            """,
            f"http://fyrehose.test:{port}/streams/s?{words}",
        )
    with urlopen(f"{url}/subscriptions", timeout=PATIENCE) as answer:
        found = json.load(answer)["subscriptions"]
    assert [(each["name"], each["generation"]) for each in found] == [("mine", generation)]
    assert "foreign-origin" in server.log
