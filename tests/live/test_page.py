"""Test the page of a real server in a real browser: what it shows while messages flow."""

from __future__ import annotations

import json
import re
import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import pytest
from selenium.common.exceptions import StaleElementReferenceException

from fyrehose.testing.ports import free_ports
from tests.live.conftest import PATIENCE, until

pytestmark = [pytest.mark.live, pytest.mark.slow]

#: The name of a stream that would run as a script if the page did not escape it.
MARKUP = "<img src=x onerror=\"document.title='broken into'\">"


@attrs.define(eq=False)
class Page:
    """A server, and its page in a browser."""

    server: Any
    browser: Any
    http: str
    admin: str

    def post(self, stream: str, body: bytes, kind: str = "text/plain") -> None:
        request = urllib.request.Request(
            f"{self.http}/streams/{quote(stream, safe='')}", data=body, headers={"Content-Type": kind}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            assert answer.status == 200

    def lumberjack(self, count: int) -> None:
        """Send a window of lumberjack, and wait for its acknowledgement."""
        documents = [json.dumps({"message": f"line {n}"}).encode() for n in range(count)]
        frames = b"".join(b"2J" + struct.pack(">II", n + 1, len(d)) + d for n, d in enumerate(documents))
        with socket.create_connection(("127.0.0.1", self.server.port("lumberjack")), PATIENCE) as connection:
            connection.sendall(b"2W" + struct.pack(">I", count) + frames)
            while (answer := connection.recv(6, socket.MSG_WAITALL)) == b"2A" + bytes(4):
                pass  # on a busy machine the server asks for patience
            assert answer == b"2A" + struct.pack(">I", count)

    def find(self, selector: str) -> Any:
        return self.browser.find_element("css selector", selector)

    def rows(self, table: str) -> dict[str, list[str]]:
        """Return the cells of each row of a table, by its first cell."""
        script = """return [...document.querySelectorAll(arguments[0] + " tbody tr")].map(
            (row) => [...row.cells].map((cell) => cell.textContent))"""
        return {cells[0]: cells[1:] for cells in self.browser.execute_script(script, table)}

    def cell(self, table: str, row: str, column: str) -> str:
        """Return the cell under *column* in the row of *table* that begins with *row*, or "" without such a row."""
        script = """return [...document.querySelectorAll(arguments[0] + " th")].map((head) => head.textContent)"""
        heads = self.browser.execute_script(script, table)
        return self.rows(table).get(row, [""] * len(heads))[heads.index(column) - 1]

    def until(self, seen: Callable[[], Any]) -> Any:
        """Wait until ``seen`` returns something true; return it."""

        def found() -> Any:
            with suppress(StaleElementReferenceException):  # the page has replaced the element meanwhile
                return seen()

        return until(found, lambda: self.find("body").text + self.server.log)

    def follow(self, stream: str, shown: str) -> None:
        """Show the tail of *stream*, the first one of the table, and wait until *shown* is in it."""
        self.until(lambda: stream in self.rows("#streams"))
        self.find("#streams td button").click()
        self.until(lambda: shown in self.find("#tail").text)

    def errors(self) -> list[str]:
        """Return the errors that the browser has reported since the last call."""
        return [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] != "INFO"]


@pytest.fixture
def page(start: Any, browser: Any) -> Iterator[Page]:
    # The browser tries to connect again while a server is restarted, so the ports are none that the kernel gives out.
    ports = dict(zip(("admin", "http", "lumberjack"), free_ports(3), strict=True))
    listeners = [f"{plugin}=tcp:{port}:interface=127.0.0.1" for plugin, port in ports.items()]
    words = [word for listener in listeners for word in ("--listen", listener)]
    # A connection without a request is closed soon, so that those that are open have an answer that goes on.
    server = start(*words, "--option", "admin.idle-timeout=2s")
    made = Page(server, browser, f"http://127.0.0.1:{server.port('http')}", f"http://127.0.0.1:{server.port('admin')}")
    made.errors()  # those of an earlier test, whose server had stopped
    browser.get(made.admin)
    made.until(lambda: made.find("#connection").text == "live")
    yield made
    if server.process.poll() is None:  # a browser reports a server that does not answer as an error
        assert made.errors() == [], "errors that the browser has reported"
    browser.get("about:blank")


def test_the_page_shows_lumberjack_while_events_arrive(page: Page) -> None:
    assert page.find("#journal-state").text == "writable"
    page.until(lambda: page.find("#streams").get_property("hidden"))
    page.lumberjack(500)
    cells = page.until(lambda: page.rows("#protocols").get("lumberjack"))
    page.until(lambda: page.cell("#protocols", "lumberjack", "published") == "500")
    assert len(cells) == 11
    assert page.cell("#writers", "127.0.0.1", "events") == "500"
    assert page.cell("#writers", "127.0.0.1", "acknowledged").endswith(("now", "ago"))
    assert page.cell("#protocols", "lumberjack", "publishers") == "1"
    # at the next sample of the statistics
    page.until(lambda: "≤" in page.cell("#protocols", "lumberjack", "acknowledged in"))
    page.until(lambda: page.cell("#streams", "lumberjack", "last number") == "500")
    page.lumberjack(300)
    page.until(lambda: page.cell("#streams", "lumberjack", "messages") == "800")
    assert "KiB" in page.cell("#streams", "lumberjack", "size")
    drawn = (
        "const pen = document.getElementById('chart-published').getContext('2d');"
        "return pen.getImageData(60, 30, 800, 100).data.some(Boolean)"
    )
    page.until(lambda: page.browser.execute_script(drawn))
    assert "durability batch" in page.find("header").text


def test_listeners_are_listed(page: Page) -> None:
    listeners = page.until(lambda: page.rows("#listeners"))
    assert {name: cells[1:3] for name, cells in listeners.items()} == {
        plugin: ["none", "this machine"] for plugin in ("admin", "http", "lumberjack")
    }
    assert listeners["http"][0] == f"tcp:{page.server.port('http')}:interface=127.0.0.1"
    with socket.create_connection(("127.0.0.1", page.server.port("lumberjack")), PATIENCE):
        page.until(lambda: page.rows("#listeners")["lumberjack"][3] == "1")
    page.until(lambda: page.rows("#listeners")["lumberjack"][3] == "0")


def test_the_page_escapes_names_with_invisible_characters(page: Page) -> None:
    page.post(" a\u202eb\x1b[2J\n", b"x")
    page.follow(r"\u{20}a\u{202e}b\u{1b}[2J\u{a}", "x")


def test_the_page_follows_a_stream_as_text_json_and_hex(page: Page) -> None:
    page.post("orders", b'{"order": 1, "of": "\xc3\xa4"}', "application/json")
    page.follow("orders", '{"order": 1, "of": "ä"}')
    page.post("orders", b"\xff\x00not json")
    page.until(lambda: "not json" in page.find("#tail").text)
    page.find("input[value=json]").find_element("xpath", "..").click()
    page.until(lambda: '{\n  "order": 1,\n  "of": "ä"\n}' in page.find("#tail").get_property("innerText"))
    page.find("input[value=hex]").find_element("xpath", "..").click()
    page.until(lambda: "ff 00 6e 6f 74 20 6a 73 6f 6e" in page.find("#tail").text)
    page.find("#tail-pause").click()
    page.find("#tail-clear").click()
    page.post("orders", b"while it is paused")
    page.until(lambda: page.cell("#streams", "orders", "last number") == "3")
    assert "No new messages" in page.find("#tail").text
    page.find("#tail-pause").click()
    page.post("orders", b"and after")
    page.until(lambda: "61 6e 64" in page.find("#tail").text)


def test_the_page_shows_markup_from_peers_as_text(page: Page) -> None:
    page.post(MARKUP, MARKUP.encode())
    page.follow(MARKUP, MARKUP)
    assert page.find("#tail-stream").get_property("value") == MARKUP
    assert not page.browser.find_elements("css selector", "main img")
    assert "broken into" not in page.browser.title


def test_streams_are_found_by_a_part_of_their_name(page: Page) -> None:
    for name in ("apples", "pears", "pineapples"):
        page.post(name, b"x")
    page.until(lambda: len(page.rows("#streams")) == 3)
    page.find("#filter").send_keys("APPLE")
    page.until(lambda: set(page.rows("#streams")) == {"apples", "pineapples"})
    assert "2 of 3" in page.find("#streams-count").text


def test_tables_are_sorted_by_the_column_that_is_clicked(page: Page) -> None:
    for name, messages in (("b", 3), ("a", 9), ("c", 1)):
        page.post(name, b"\n".join([b"1"] * messages), "application/x-ndjson")
    page.until(lambda: list(page.rows("#streams")) == ["a", "b", "c"])
    page.find("#streams th:nth-child(4) button").click()
    assert list(page.rows("#streams")) == ["a", "b", "c"]
    page.find("#streams th:nth-child(4) button").click()
    assert list(page.rows("#streams")) == ["c", "b", "a"]
    assert page.find("#streams th:nth-child(4)").get_attribute("aria-sort") == "ascending"
    page.post("c", b"\n".join([b"1"] * 50), "application/x-ndjson")
    page.until(lambda: list(page.rows("#streams")) == ["b", "a", "c"])


def test_the_page_lists_the_other_counters_of_a_protocol(page: Page) -> None:
    page.post("s", b"no JSON", "application/json")
    page.until(lambda: page.cell("#events", "http", "count") == "1")
    assert page.cell("#events", "http", "event") == "not-json"


def test_the_tail_on_the_page_can_be_searched_and_shows_times(page: Page) -> None:
    page.post("log", b"alpha\nBeta beta\ngamma", "application/x-ndjson")
    page.follow("log", "gamma")
    page.find("#tail-search").send_keys("beta")
    page.until(lambda: page.find("#tail-found").text == "1 of 3 messages")
    assert "alpha" not in page.find("#tail").text
    assert [mark.text for mark in page.browser.find_elements("css selector", "#tail mark")] == ["Beta", "beta"]
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d\d\d", page.find("#tail div:not([hidden]) time").text)
    page.post("log", b"another beta\nnone", "application/x-ndjson")
    page.until(lambda: page.find("#tail-found").text == "2 of 5 messages")


def test_charts_show_an_hour_and_a_day_without_series_that_are_zero(page: Page) -> None:
    page.post("s", b"x" * 50)
    legend = 'return [...document.querySelectorAll("#chart-published")][0].parentElement.querySelector("ul").innerText'
    page.until(lambda: "http" in page.browser.execute_script(legend))
    for span in ("1h", "24h", "5min"):
        page.find(f"input[value='{span}']").find_element("xpath", "..").click()
        page.until(lambda: "http" in page.browser.execute_script(legend))
        assert "lumberjack" not in page.browser.execute_script(legend)


def test_one_spike_does_not_set_the_scale_of_a_chart(page: Page) -> None:
    script = """const done = arguments[1];
        import("./chart.js").then((chart) => done(chart.axisMaximum(arguments[0])), (error) => done(String(error)))"""
    usual = [100.0] * 50
    assert page.browser.execute_async_script(script, [*usual, 5_000.0]) == 200
    assert page.browser.execute_async_script(script, [*usual, 250.0]) == 400
    assert page.browser.execute_async_script(script, [0.0] * 50 + [5_000.0]) == 6_000, (
        "a spike beside zeros must set the scale"
    )
    assert page.browser.execute_async_script(script, []) == 1


def test_a_forecast_beyond_a_year_is_shown_without_days(page: Page) -> None:
    script = """const done = arguments[1];
        import("./format.js").then((text) => done(text.forecast(arguments[0])), (error) => done(String(error)))"""
    assert page.browser.execute_async_script(script, 365 * 86_400) == "365 d"
    assert page.browser.execute_async_script(script, 148_821 * 86_400) == "more than a year"


def test_the_page_says_which_server_it_is_and_who_was_refused_last(page: Page) -> None:
    page.until(lambda: page.find("#server").text == socket.gethostname())
    assert page.browser.title.startswith(f"{socket.gethostname()} · ")
    for wrong in ("one", "two"):
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{page.http}/{wrong}", timeout=PATIENCE)
    page.until(lambda: page.cell("#last-refusals", "127.0.0.1", "times") == "2")
    assert page.cell("#last-refusals", "127.0.0.1", "cause") == "no-such-path"
    assert page.cell("#last-refusals", "127.0.0.1", "why").startswith("unknown path")


def connections(page: Page) -> int:
    """Return how many connections to the page's listener are open, as the kernel lists them."""
    port = page.server.port("admin")
    established = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "01" for line in established)


@pytest.fixture
def windows(page: Page) -> Iterator[Callable[[str], str]]:
    """Return a function that opens the page in a new tab or window, and returns its handle; it is closed in the end."""
    first = page.browser.current_window_handle

    def opened(kind: str) -> str:
        page.browser.switch_to.new_window(kind)
        page.browser.get(page.admin)
        return str(page.browser.current_window_handle)

    yield opened
    for handle in page.browser.window_handles:
        if handle != first:
            page.browser.switch_to.window(handle)
            page.browser.close()
    page.browser.switch_to.window(first)


#: Makes a page believe that it is visible, as if its window were beside the others on a large screen.
VISIBLE = "Object.defineProperty(document, 'hidden', {get: () => false})"


def test_ten_pages_work_at_once_and_four_of_them_show_tails(page: Page, windows: Callable[[str], str]) -> None:
    """A browser opens six connections to a server, so ten pages that are visible need fewer than one for each."""
    for name in "abcd":
        page.post(name, b"before")
    added = page.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": VISIBLE})
    handles = [page.browser.current_window_handle]
    for _ in range(9):
        handles.append(windows("tab"))
        page.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": VISIBLE})
        page.browser.refresh()
        page.until(lambda: page.find("#connection").text == "live")
    tails = dict(zip(handles[:4], "abcd", strict=True))
    for handle, stream in tails.items():
        page.browser.switch_to.window(handle)
        page.until(lambda stream=stream: stream in page.rows("#streams"))
        page.find(f"button[data-stream={stream}]").click()
        page.until(lambda: "before" in page.find("#tail").text)
    for stream in "abcd":
        page.post(stream, f"news of {stream}".encode())
    page.post("e", b"x")
    for handle in handles:
        page.browser.switch_to.window(handle)
        page.until(lambda: "e" in page.rows("#streams"))
        if handle in tails:
            page.until(lambda handle=handle: f"news of {tails[handle]}" in page.find("#tail").text)
        assert page.errors() == []
    assert connections(page) <= 6
    page.browser.switch_to.window(handles[0])
    page.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def test_a_hidden_page_has_no_connection_and_shows_what_it_missed_when_it_is_seen_again(
    page: Page, windows: Callable[[str], str]
) -> None:
    page.post("orders", b"one")
    page.follow("orders", "one")
    first = page.browser.current_window_handle
    page.browser.switch_to.new_window("tab")
    page.until(lambda: connections(page) == 0)
    for text in (b"two", b"three"):
        page.post("orders", text)
    page.browser.switch_to.window(first)
    page.until(lambda: "three" in page.find("#tail").text)
    shown = [each.text for each in page.browser.find_elements("css selector", "#tail pre")]
    assert shown == ["one", "two", "three"], "each once"
    page.until(lambda: page.find("#connection").text == "live")
    page.browser.switch_to.new_window("tab")
    for number in range(80):
        page.post("orders", f"more {number}".encode())
    page.browser.switch_to.window(first)
    page.until(lambda: "more 79" in page.find("#tail").text)
    assert "… 30 messages not shown …" in page.find("#tail").text


def test_a_subscription_of_a_pattern_says_how_many_streams_it_reads(page: Page) -> None:
    for count, text in ((1, "in 1 stream"), (2, "in 2 streams")):
        page.post(f"logs.{count}", b"x")
        with urllib.request.urlopen(
            f"{page.http}/streams/*?match=logs.*&subscription=s3&consumer=p", timeout=PATIENCE
        ) as answer:
            assert answer.status == 200
        page.until(lambda text=text: page.cell("#subscriptions", "s3", "at number") == text)


def test_the_page_lists_forwarders_and_what_is_wrong_with_them(page: Page) -> None:
    page.post("forwarded", b"x")
    report = {"to": "elasticsearch <b>:9200", "rate": 12.5, "delivered": 7, "retries": 2, "dead": 1, "lost": 0}
    fields = {**report, "problem": "", "error": "status 503: busy", "error_ago": 90}

    def tell(**changed: Any) -> None:
        body = json.dumps(fields | changed).encode()
        request = urllib.request.Request(f"{page.http}/subscriptions/f1/report", data=body, method="POST")
        urllib.request.urlopen(request, timeout=PATIENCE).close()

    with urllib.request.urlopen(f"{page.http}/streams/forwarded/live?subscription=f1&from=1", timeout=PATIENCE):
        tell()
        page.until(lambda: page.cell("#forwarders", "f1", "state") == "delivers")
        values = {"to": "elasticsearch <b>:9200", "behind": "1", "delivered/s": "13", "delivered": "7", "dead": "1"}
        assert {column: page.cell("#forwarders", "f1", column) for column in values} == values
        assert page.cell("#forwarders", "f1", "last error").endswith("1 min ago: status 503: busy")
        tell(problem="status 503: busy")
        page.until(lambda: page.cell("#forwarders", "f1", "state") == "status 503: busy")
    page.until(lambda: page.cell("#forwarders", "f1", "state").startswith("not running, last heard "))


def in_each_theme(page: Page, look: Callable[[], Any]) -> list[Any]:
    """Return what *look* finds with light and with dark colours."""
    found = []
    for scheme in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        found.append(look())
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    return found


@contextmanager
def phone(page: Page) -> Iterator[None]:
    """Show the page on a screen that is 400 pixels wide."""
    size = {"width": 400, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.until(lambda: page.browser.execute_script("return document.documentElement.scrollWidth") == 400)
        yield
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_page_fits_light_and_dark_themes_and_a_phone(page: Page) -> None:
    page.lumberjack(5)
    page.until(lambda: page.rows("#streams"))
    assert len(set(in_each_theme(page, lambda: page.find("html").value_of_css_property("background-color")))) == 2
    with phone(page):
        assert page.find("#tile-published").is_displayed()
        beyond = """return [...document.querySelectorAll("td, .tile, figure, .tail")].filter(
            (each) => each.offsetParent && each.getBoundingClientRect().right > 400).length"""
        assert page.browser.execute_script(beyond) == 0, "a column is cut off"
        # On a phone the scroll bar covers a part of the table, so texts must end beside it.
        covered = """return [...document.querySelectorAll(".scroll td")].filter((each) =>
            each.offsetParent && each.getBoundingClientRect().right
                > each.closest(".scroll").getBoundingClientRect().right - 8).length"""
        assert page.browser.execute_script(covered) == 0, "the scroll bar covers a text"


CLUSTER = {
    "leader": "a",
    "summary": "a leads, epoch 7",
    "log": {"copies": 1, "replicas": 3, "problem": "", "remedy": ""},
    "members": [
        {"name": "a", "role": "leader", "address": "10.0.0.1:8117", "alive": True, "heard": 0, "behind": 0},
        {"name": "b", "role": "follower", "address": "10.0.0.2:8117", "alive": True, "heard": 0.1, "behind": 1234},
        {"name": MARKUP, "role": "follower", "address": "", "alive": False, "heard": 67.2, "behind": 5000},
    ],
    "nats": [
        {"name": "n1", "leads": True, "current": True, "offline": False, "lag": 0},
        {"name": "n2", "leads": False, "current": False, "offline": False, "lag": 3},
        {"name": "n3", "leads": False, "current": False, "offline": True, "lag": 700},
    ],
}
for _member, _records, _seconds in zip(CLUSTER["members"], (0, 17, None), (0, 0.4, None), strict=True):
    _member |= {"records": _records, "seconds": _seconds}  # type: ignore[operator]


@pytest.fixture
def still(page: Page) -> Iterator[Page]:
    """Return a page that receives no status from its server, which has no cluster."""
    silent = "window.fetch = () => new Promise(() => {})"
    added = page.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": silent})
    page.browser.get(page.admin)
    yield page
    page.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def show_cluster(page: Page, cluster: dict[str, Any]) -> None:
    """Show *cluster* on the page of a running server."""
    script = """const [cluster, done] = arguments;
        import("./cluster.js").then((module) => module.showCluster(cluster))
            .then(() => done(""), (error) => done(String(error)))"""
    assert page.browser.execute_async_script(script, cluster) == ""


def test_the_page_of_a_server_without_a_cluster_shows_no_cluster(page: Page) -> None:
    assert not page.find("#cluster-card").is_displayed()


def test_the_page_shows_a_cluster_as_a_picture_and_in_words(still: Page) -> None:
    page = still
    show_cluster(page, CLUSTER)
    texts = [each.get_attribute("textContent") for each in page.browser.find_elements("css selector", "#cluster text")]
    assert "a leads" in texts
    assert "10.0.0.1:8117" in texts
    assert "n1 leads the shared log" in texts
    assert any(text.startswith("1.2 KiB, 17 messages") for text in texts)
    assert page.find("#cluster .node.leads title").get_attribute("textContent") == "a, leads, 10.0.0.1:8117"
    assert len(page.browser.find_elements("css selector", "#cluster .node.lost")) == 2
    assert len(page.browser.find_elements("css selector", "#cluster .arrow")) == 3
    described = page.find("#cluster").accessible_name
    assert "Leader: a, leads." in described
    assert "n2, 3 entries behind; n3, offline" in described
    assert "b, follower, 1.2 KiB, 17 messages, 400 ms behind" in described
    assert "silent for 67.2 s, 4.9 KiB behind" in described
    assert page.find("#cluster").aria_role in ("img", "image")
    show_cluster(page, {**CLUSTER, "leader": "", "nats": []})
    assert page.find("#cluster .name").get_attribute("textContent").startswith("no leader")
    assert page.browser.title != "broken into"


def test_the_picture_of_a_cluster_says_that_nats_does_not_answer(still: Page) -> None:
    page = still
    lost = {"copies": 0, "replicas": 3, "problem": "NATS has not answered for 12 s", "remedy": "start NATS servers"}
    show_cluster(page, {**CLUSTER, "log": lost})
    titles = [
        each.get_attribute("textContent") for each in page.browser.find_elements("css selector", "#cluster title")
    ]
    assert [title for title in titles if "NATS" in title] == [f"n{number}, no answer, NATS" for number in (1, 2, 3)]
    assert "n1, no answer; n2, no answer; n3, no answer" in page.find("#cluster").accessible_name
    assert len(page.browser.find_elements("css selector", "#cluster .node.lost")) == 4


def test_long_names_of_servers_are_shortened_to_their_boxes(still: Page) -> None:
    page = still
    names = ("W" * 60, "i" * 200, "long-name-of-a-server-in-some-data-centre.example.com")
    members = [{**member, "name": name} for member, name in zip(CLUSTER["members"], names, strict=True)]
    nats = [{**node, "name": names[0]} for node in CLUSTER["nats"]]
    show_cluster(page, {**CLUSTER, "leader": names[0], "members": members, "nats": nats})
    shown = """return [...document.querySelectorAll("#cluster .node")].map((node) => {
        const right = (part) => node.querySelector(part).getBoundingClientRect().right;
        return [right("rect") - right(".name"), node.querySelector(".name").textContent];
    })"""
    found = page.browser.execute_script(shown)
    assert len(found) == 6
    assert all(room > 0 and text[0] in "Wil" and "… " in text for room, text in found), found
    assert [text for _, text in found if text.endswith("… leads")] == [found[0][1]], "the state is shown in full"


def test_the_picture_of_a_cluster_fits_light_and_dark_themes_and_a_phone(still: Page) -> None:
    page = still
    show_cluster(page, CLUSTER)
    parts = ("#cluster rect", "fill"), ("#cluster .name", "fill"), ("#cluster .arrow", "stroke")
    colours = in_each_theme(page, lambda: [page.find(part).value_of_css_property(name) for part, name in parts])
    assert all(light != dark for light, dark in zip(*colours, strict=True))
    with phone(page):
        show_cluster(page, CLUSTER)
        beyond = """return [...document.querySelectorAll("#cluster text, #cluster rect")].filter((each) =>
            each.getBoundingClientRect().right > 400 || each.getBoundingClientRect().left < 0).length"""
        page.until(lambda: page.browser.execute_script(beyond) == 0)
        lines = [each.location["y"] for each in page.browser.find_elements("css selector", "#cluster .node rect")]
        assert len(set(lines)) == 6, "the servers in the picture are not below each other"


def test_page_reconnects_after_a_restart(page: Page, start: Any) -> None:
    page.post("s", b"x")
    page.until(lambda: "s" in page.rows("#streams"))
    admin, http = page.server.port("admin"), page.server.port("http")
    assert page.server.stop() == 0
    page.until(lambda: "does not answer" in page.find("#alarm").text)
    start("--listen", f"admin=tcp:{admin}:interface=127.0.0.1", "--listen", f"http=tcp:{http}:interface=127.0.0.1")
    page.until(lambda: page.find("#connection").text == "live")
    page.until(lambda: not page.find("#alarm").is_displayed())
    page.post("s", b"x")
    page.until(lambda: page.cell("#streams", "s", "last number") == "2")


def test_a_browser_sends_the_token_as_a_password(start: Any, browser: Any, tmp_path: Path) -> None:
    token = "0123456789abcdef0123"
    (tmp_path / "token").write_text(token)
    server = start("--listen", "admin=tcp:0:interface=127.0.0.1", "--option", f"admin.token-file={tmp_path / 'token'}")
    browser.get(f"http://anybody:{token}@127.0.0.1:{server.port('admin')}/")
    page = Page(server, browser, "", "")
    page.until(lambda: page.find("#connection").text == "live")
    page.until(lambda: page.find("#journal-state").text == "writable")
    browser.get("about:blank")


def test_a_shared_subscription_shows_its_leases_and_dead_letters(page: Page) -> None:
    for number in range(3):
        page.post("shared-jobs", f"job {number}".encode())

    def ask(method: str, path: str, fields: dict[str, Any]) -> Any:
        request = urllib.request.Request(f"{page.http}{path}", data=json.dumps(fields).encode(), method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read())

    ask("PUT", "/subscriptions/jobs", {"stream": "shared-jobs", "shared": True, "lease": 600})
    leased = ask("POST", "/subscriptions/jobs/lease", {"consumer": "worker one", "most": 2})["records"]
    ask("POST", "/subscriptions/jobs/settle", {"reject": [[1, leased[0]["token"], {"why": "no address"}]]})
    page.until(lambda: page.cell("#shared", "jobs", "dead") == "1")
    values = {"new": "1", "waiting": "0", "delayed": "0", "leased": "1", "settled": "0", "expired": "0", "state": ""}
    assert {column: page.cell("#shared", "jobs", column) for column in values} == values
    page.until(lambda: page.cell("#shared", "jobs", "settled/s") == "0")
    ask("POST", "/subscriptions/jobs/pause", {"paused": True})
    page.until(lambda: page.cell("#shared", "jobs", "state") == "paused")
    page.find("#shared button[data-subscription=jobs]").click()
    page.until(lambda: page.cell("#leases", "2", "worker") == "worker one")
    assert page.cell("#leases", "1", "dead because of") == "no address"
