"""Test the example dashboard in a real browser, served by another web server than the one whose data it shows."""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from fyrehose.broker.signed import sign
from fyrehose.identity import Action
from tests.live.conftest import PATIENCE, until

pytestmark = [pytest.mark.live, pytest.mark.slow]

SITE = Path(__file__).parents[2] / "examples" / "dashboard"
KEY = "0123456789abcdef" * 4
#: The directory for screenshots, if any.
LOOK = os.environ.get("SCREENSHOTS", "")


@attrs.define(eq=False)
class Dashboard:
    """The page in a browser, and the server whose data it shows."""

    browser: Any
    site: str
    server: str

    def open(self, **settings: str) -> None:
        fragment = "&".join(f"{name}={value}" for name, value in {"server": self.server, **settings}.items())
        self.browser.get("about:blank")
        self.browser.get(f"{self.site}/index.html#{fragment}")

    def publish(self, *lines: str, token: str = "") -> None:
        headers = {"Content-Type": "application/x-ndjson"} | ({"Authorization": f"Bearer {token}"} if token else {})
        body = "\n".join(lines).encode()
        request = urllib.request.Request(f"{self.server}/streams/notes", body, headers, method="POST")
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            assert answer.status == 200

    def text(self, selector: str) -> str:
        found: str = self.browser.find_element("css selector", selector).text
        return found

    def click(self, selector: str) -> None:
        self.browser.find_element("css selector", selector).click()

    def until(self, seen: Callable[[], Any]) -> Any:
        return until(seen, lambda: self.text("body"))


Open = Callable[..., Dashboard]


@pytest.fixture
def dashboard(start: Any, browser: Any, site: str) -> Iterator[Open]:
    def opened(*words: str, origins: str = "") -> Dashboard:
        listed = ("--option", f"http.origins={origins or site}")
        server = start("--listen", "http=tcp:0:interface=127.0.0.1", *listed, *words)
        return Dashboard(browser, site, f"http://127.0.0.1:{server.port('http')}")

    yield opened
    browser.get("about:blank")


def test_a_page_of_another_site_follows_publishes_and_consumes(dashboard: Open) -> None:
    page = dashboard()
    page.open(stream="notes", name="reader")
    page.until(lambda: page.text("#state").endswith("live"))
    page.publish("first", "<b>second</b>")
    page.until(lambda: "<b>second</b>" in page.text("#tail"))
    page.until(lambda: page.text("#last") == "2")
    page.until(lambda: page.text("#count") == "2")
    page.until(lambda: page.text("#highest") != "0")
    page.click("#next")
    page.until(lambda: "<b>second</b>" in page.text("#batch"))
    page.publish("third")
    page.click("#ack")
    page.until(lambda: "Acknowledged up to 2; 1 more" in page.text("#position"))
    page.click("#next")
    page.until(lambda: "third" in page.text("#batch"))
    assert "second" not in page.text("#batch")
    page.click("#ack")
    page.until(lambda: "Acknowledged up to 3; 0 more" in page.text("#position"))
    page.click("#next")
    page.until(lambda: "No message" in page.text("#position"))
    assert [entry for entry in page.browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_a_page_whose_origin_is_not_listed_sees_nothing(dashboard: Open) -> None:
    page = dashboard(origins="https://other.example")
    page.publish("secret")
    page.open(stream="notes")
    page.until(lambda: "Failed to fetch" in page.text("#state"))
    assert "secret" not in page.text("body")
    page.browser.get_log("browser")  # read the complaints of the browser, so that the next test begins without them


def test_a_signed_token_gives_access_to_one_stream_until_the_token_expires(dashboard: Open, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "policy.toml").write_text('[[allow]]\nsigned = "key"\npublish = "*"\nsubscribe = "*"\n')
    rights = {Action.PUBLISH: ["notes"], Action.SUBSCRIBE: ["notes"]}
    page = dashboard("--policy", str(tmp_path / "policy.toml"))
    page.open(stream="notes")
    page.until(lambda: "may not read stream" in page.text("#state"))
    long = sign(rights, int(time.time()) + 3600, KEY.encode())
    ended, seconds = "with its token: it ended", 4
    while True:  # until the page is faster than its token
        page.open(stream="notes", token=sign(rights, int(time.time()) + seconds, KEY.encode()))
        page.until(lambda: page.text("#state").endswith("live") or ended in page.text("#state"))
        page.publish("in time", token=long)
        page.until(lambda: "in time" in page.text("#tail") or ended in page.text("#state"))
        if "in time" in page.text("#tail"):
            break
        seconds *= 2
    page.until(lambda: ended in page.text("#state"))
    page.publish("too late", token=long)
    assert "too late" not in page.text("body")
    page.browser.get_log("browser")


@pytest.mark.parametrize("width", [400, 1400])
def test_the_dashboard_fits_small_and_large_screens_in_both_themes(dashboard: Open, width: int) -> None:
    page, colours = dashboard(), []
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.open(stream="notes", name="reader")
        page.until(lambda: page.text("#state").endswith("live"))
        page.publish(*(f"a message that is rather long, number {n} of many: {'x' * n}" for n in range(60)))
        page.until(lambda: page.text("#last") == "60")
        page.click("#next")
        page.until(lambda: page.text("#highest") != "0")
        for scheme in ("light", "dark"):
            media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            colours.append(page.browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
            assert page.browser.execute_script("return document.documentElement.scrollWidth") <= width
            if LOOK:
                page.browser.save_screenshot(f"{LOOK}/dashboard-{scheme}-{width}.png")
        assert len(set(colours)) == 2
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
