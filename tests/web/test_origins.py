"""Pages of other sites: which of their requests are served, and what their browsers are told."""

from __future__ import annotations

import pytest

from fyrehose.web.origins import Origins, origins
from fyrehose.web.session import RequestHead, WebSession

DASH = "https://dash.example"


def ask(session: WebSession, line: str, *headers: str) -> tuple[int, dict[str, str], list[object]]:
    """Send a request to *session*; return the status, the headers of the answer, and the events."""
    events = session.receive_data("\r\n".join([f"{line} HTTP/1.1", "Host: fyrehose.test", *headers, "", ""]).encode())
    if session.answering:
        session.respond(200, b"{}")
    head = b"".join(session.data_to_send()).partition(b"\r\n\r\n")[0].decode()
    first, *lines = head.split("\r\n")
    session.next_events()
    return int(first.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}, events


def served(events: list[object]) -> bool:
    return isinstance(events[0], RequestHead) if events else False


def test_a_page_of_a_listed_origin_is_served_and_may_read_the_answer() -> None:
    session = WebSession(None, Origins((DASH,)))
    status, headers, events = ask(session, "GET /", f"Origin: {DASH}", "Authorization: Bearer t")
    assert status == 200
    assert served(events)
    assert headers["access-control-allow-origin"] == DASH
    assert headers["vary"] == "Origin"
    assert "Fyrehose-Last" in headers["access-control-expose-headers"]
    assert headers["access-control-allow-credentials"] == "true"


@pytest.mark.parametrize("origin", ["https://dash.example.evil", "http://dash.example", "null", "https://DASH.example"])
def test_a_page_of_another_origin_is_refused_and_told_nothing(origin: str) -> None:
    status, headers, events = ask(WebSession(None, Origins((DASH,))), "GET /", f"Origin: {origin}")
    assert status == 403
    assert not served(events)
    assert not [name for name in headers if name.startswith("access-control")]


def test_a_preflight_is_answered_without_reaching_the_server() -> None:
    session = WebSession(None, Origins((DASH,)))
    asked = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: idempotency-key")
    status, headers, events = ask(session, "OPTIONS /streams/a", f"Origin: {DASH}", *asked)
    assert (status, events) == (204, [])
    assert "POST" in headers["access-control-allow-methods"]
    assert "Idempotency-Key" in headers["access-control-allow-headers"]
    refused, headers, _ = ask(session, "OPTIONS /streams/a", "Origin: https://other.example", *asked)
    assert refused == 403
    assert "access-control-allow-origin" not in headers


def test_headers_for_a_page_do_not_reach_the_next_request_of_the_connection() -> None:
    session = WebSession(None, Origins((DASH,)))
    ask(session, "GET /", f"Origin: {DASH}")
    _, headers, events = ask(session, "GET /")
    assert served(events)
    assert "access-control-allow-origin" not in headers
    ask(session, "GET /", f"Origin: {DASH}")
    session.receive_data(b"nonsense\r\n\r\n")
    assert b"Access-Control" not in b"".join(session.data_to_send())


def test_every_origin_may_read_without_credentials_if_a_star_is_listed() -> None:
    session = WebSession(None, Origins(("*", DASH)))
    status, headers, events = ask(session, "GET /", "Origin: https://other.example")
    assert status == 200
    assert served(events)
    assert session.origins.judge("GET", {"origin": "https://other.example"}).reads_only
    assert headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in headers
    status, headers, _ = ask(session, "GET /", "Origin: https://other.example", "Authorization: Bearer t")
    assert status == 403, "a token is a credential"
    assert headers["access-control-allow-origin"] == "*", "the page may read why"
    status, _, events = ask(session, "GET /", f"Origin: {DASH}", "Authorization: Bearer t")
    assert status == 200
    assert not session.origins.judge("GET", {"origin": DASH}).reads_only


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT"])
def test_an_origin_that_is_not_listed_itself_cannot_change_anything(method: str) -> None:
    session = WebSession(None, Origins(("*",)))
    assert ask(session, f"{method} /", "Origin: https://other.example", "Content-Length: 0")[0] == 403
    session = WebSession(None, Origins(("*",)))
    asked = f"Access-Control-Request-Method: {method}"
    assert ask(session, "OPTIONS /", "Origin: https://other.example", asked)[0] == 403


def test_requests_of_a_page_without_an_origin_stay_refused() -> None:
    """An image or a link of another site sends no Origin, and its browser says so in Sec-Fetch-Site."""
    assert ask(WebSession(None, Origins(("*",))), "GET /", "Sec-Fetch-Site: cross-site")[0] == 403


FIREFOX = "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Gecko/20100101 Firefox/60.0"
POWERSHELL = "User-Agent: Mozilla/5.0 (Windows NT; Windows NT 10.0; en-US) WindowsPowerShell/5.1.19041.1682"


@pytest.mark.parametrize(
    ("headers", "may_change"),
    [
        ((FIREFOX, "Accept-Language: de", "Accept: image/webp,*/*"), False),
        ((FIREFOX, "Accept-Language: ", "Referer: http://evil.example/"), False),
        ((FIREFOX, "Accept-Language: de", "Referer: http://fyrehose.test.evil.example/"), False),
        (("User-Agent: Opera/9.80", "Accept-Language: de", "Referer: http://evil.example/fyrehose.test"), False),
        ((FIREFOX, "Accept-Language: de", "Referer: http://fyrehose.test/page"), True),
        ((FIREFOX, "Accept-Language: de", "Referer: http://evil.example/", "Sec-Fetch-Site: same-origin"), True),
        ((FIREFOX, "Accept-Language: de", "Sec-Fetch-Site: none"), True),
        ((POWERSHELL,), True),
        (("User-Agent: node", "Accept-Language: *", "Sec-Fetch-Mode: cors"), True),
        (("User-Agent: curl/8.0",), True),
    ],
)
def test_a_browser_that_does_not_say_for_which_page_may_only_read(headers: tuple[str, ...], may_change: bool) -> None:
    """Browsers of before 2023, and all of them over plain HTTP in a network, send no Sec-Fetch-Site with an image."""
    session = WebSession(None, Origins(("*", DASH)))
    assert ask(session, "GET /", *headers)[0] == 200
    named = {name.lower(): value for name, _, value in (each.partition(": ") for each in headers)}
    assert session.origins.judge("GET", {"host": "fyrehose.test", **named}).reads_only is not may_change
    assert ask(session, "DELETE /", *headers)[0] == (200 if may_change else 403)


def test_own_pages_and_programs_need_no_origin() -> None:
    for headers in ((), ("Origin: http://fyrehose.test",), ("Sec-Fetch-Site: none",)):
        assert ask(WebSession(None, Origins((DASH,))), "DELETE /", *headers)[0] == 200


@pytest.mark.parametrize(
    "text",
    ["dash.example", "https://dash.example/", "https://dash.example:443", "HTTPS://dash.example", "https://*.example"],
)
def test_an_origin_that_no_browser_sends_is_refused_in_a_configuration(text: str) -> None:
    with pytest.raises(ValueError, match="origins as browsers send them"):
        origins(text)


def test_origins_are_split_at_commas() -> None:
    assert origins("https://a.example, http://localhost:8000,*") == ("https://a.example", "http://localhost:8000", "*")
