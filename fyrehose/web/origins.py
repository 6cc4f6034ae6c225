"""Decide which requests from web pages of other sites are served, and tell browsers the decision (CORS).

    the option ``origins``, the head of a request -> a verdict, and headers for its answer

A page whose origin is listed may send every request that the access policy allows.  The entry ``*`` stands for the
pages of all other origins, which may read, without credentials and without changing anything.  See
https://fetch.spec.whatwg.org/#http-cors-protocol.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import attrs

#: The option that admits every origin for reading.
EVERY = "*"
#: How long a browser may keep the answer to a preflight, in seconds.
MAX_AGE = 600
#: Methods that do not change anything.
READING = ("GET", "HEAD")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")
#: Headers of requests that a page may set.
ALLOWED = ("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID")
#: Headers of answers that a page may read.
EXPOSED = (
    "Fyrehose-Oldest",
    "Fyrehose-From",
    "Fyrehose-Last",
    "Fyrehose-Epoch",
    "Fyrehose-Generation",
    "Fyrehose-Age",
    "Location",
    "Retry-After",
)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._~\[\]:-]+")
_DEFAULT_PORT = re.compile(r"(http://[^/]*[^:/]):80|(https://[^/]*[^:/]):443")


def origins(text: str) -> tuple[str, ...]:
    """Split comma-separated origins, each as a browser sends it, or ``*``.

    :raises ValueError: one of the texts is not an origin
    """
    found = tuple(each.strip() for each in text.split(",") if each.strip())
    for each in found:
        if each != EVERY and (not _ORIGIN.fullmatch(each) or _DEFAULT_PORT.fullmatch(each)):
            raise ValueError(
                "origins as browsers send them, such as https://dash.example or http://localhost:8000, in lower case, "
                "without a path or a default port; or *"
            )
    return found


@attrs.frozen
class PageVerdict:
    """The decision whether a request of a web page is served.

    :ivar refusal: why the request is refused; empty: it is served
    :ivar headers: headers for the answer
    :ivar reads_only: whether the request must not change anything
    """

    refusal: str = ""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    reads_only: bool = False


SERVED = PageVerdict()
#: Headers of which each browser sends one at least; requests without them are served.
OF_BROWSERS = frozenset({"origin", "sec-fetch-site", "accept-language"})
#: How the names begin by which all browsers, and few programs, call themselves.
_BROWSERS = ("Mozilla/", "Opera/")


@attrs.frozen
class Origins:
    """The origins whose pages may use the server.

    :ivar allowed: exact origins, and ``*`` for all others
    """

    allowed: Collection[str] = ()

    def judge(self, method: str, headers: Mapping[str, str]) -> PageVerdict:
        """Decide from the web page that sent a request (its Origin) whether the request is served.

        :param method: the method of the request, or the method for which a preflight asks permission
        :param headers: by lower-case name
        """
        origin = headers.get("origin")
        if origin is None:
            site = headers.get("sec-fetch-site", "")
            if site == "" and _is_unknown_page(headers):
                return _judge_unknown(method)
            return SERVED if site in ("", "none", "same-origin") else PageVerdict(refusal=self._refusal(""))
        if origin.partition("://")[2] == headers.get("host"):
            return SERVED
        if origin in self.allowed:
            return PageVerdict(headers=_headers(origin))
        if not origin or EVERY not in self.allowed:
            return PageVerdict(refusal=self._refusal(origin))
        if method not in READING or "authorization" in headers:
            return PageVerdict(
                refusal=f"origin {origin[:80]!r} may only read, without a token, because it is not listed itself; "
                f"add {origin[:80]!r} to the option origins",
                headers=_headers(EVERY),
            )
        return PageVerdict(headers=_headers(EVERY), reads_only=True)

    def preflight(self, verdict: PageVerdict) -> Mapping[str, str]:
        """Return the headers of the answer to a preflight request that *verdict* allows."""
        methods, allowed = (READING, ("Last-Event-ID",)) if verdict.reads_only else (METHODS, ALLOWED)
        return {
            **verdict.headers,
            "Access-Control-Allow-Methods": ", ".join(methods),
            "Access-Control-Allow-Headers": ", ".join(allowed),
            "Access-Control-Max-Age": str(MAX_AGE),
        }

    def _refusal(self, origin: str) -> str:
        advice = f"; to allow it, add {origin[:80]!r} to the option origins" if _ORIGIN.fullmatch(origin) else ""
        return f"request of a page of another site: only pages of this server may use it{advice}"


def _is_unknown_page(headers: Mapping[str, str]) -> bool:
    """Return whether a browser may have sent the request for a page of another site, and does not say so.

    Over plain HTTP browsers send ``Sec-Fetch-Site`` to their own machine only, and older ones never do; none sends
    ``Origin`` for an image.  All call themselves Mozilla and send ``Accept-Language``.  A page cannot change that, nor
    forge the ``Referer`` of another one.
    """
    if "accept-language" not in headers or not headers.get("user-agent", "").startswith(_BROWSERS):
        return False
    return headers.get("referer", "").partition("://")[2].partition("/")[0] != headers.get("host")


def _judge_unknown(method: str) -> PageVerdict:
    if method in READING:
        return PageVerdict(reads_only=True)
    return PageVerdict(
        refusal="the browser does not say for which page it sends this request: use a newer one, or a page from here"
    )


def _headers(origin: str) -> Mapping[str, str]:
    credentials = {} if origin == EVERY else {"Access-Control-Allow-Credentials": "true"}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": ", ".join(EXPOSED),
        "Vary": "Origin",
        **credentials,
    }
