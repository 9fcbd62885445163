"""Who may talk to the studio: only the first browser that opens its address, on this machine, and in it no other site's page.

A browser proves itself by two secrets at once. Everything the studio serves lies in a folder whose name nobody can guess, and needs a cookie
that belongs to this folder. The one-time address hands out both in one response.

The cookie alone would not do. Browsers send a host's cookies to all its ports, and to them all ports are one site, so any user's server on this
machine could receive the cookie, or have its pages ask for the studio's with it. But they send a cookie to paths within its folder only, and
the folder's name reaches no other server: no page tells it in a referrer, none may load from or link to elsewhere, and it stands
in no command line. The name alone would not do either, since addresses are shown, copied and kept in histories.

It holds for every request alike: pages, scripts, downloads, uploads and the websocket have addresses relative to the page's own, so no part of
the app needs to know of it, and a reloaded page asks for the same folder with the same cookie. Both secrets end with the studio: whoever
listens on its port later learns nothing of use.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from dplinked.report.page import page, paragraph

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

# Shiny writes some of its scripts and styles into the page itself, so these are allowed. Nothing may be loaded from, or sent to, elsewhere.
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self' data:; connect-src 'self'; frame-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_REFUSED = 403
_POLICY_VIOLATION = 1008  # the code with which a websocket is closed


class Guard:
    """ASGI middleware that lets in one browser, by an address that works once and hands out a cookie and the folder it is for.

    Requests under other host names, and websockets from other sites' pages, are refused.

    Attributes
    ----------
    address
        The address that works once.
    entered
        Set as soon as the address was used.

    Parameters
    ----------
    port
        The port it is served on, at 127.0.0.1.
    app
        The app that is guarded. It may be set later, but before the first request.
    """

    def __init__(self, port: int, app: Application | None = None) -> None:
        self.app, self._port = app, port
        self._token: str | None = secrets.token_urlsafe(32)
        self._cookie, self._folder = secrets.token_urlsafe(32), f"/{secrets.token_urlsafe(32)}/"
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self.address = f"http://127.0.0.1:{port}/?token={self._token}"
        self.entered = threading.Event()

    @property
    def cookie_name(self) -> str:
        """The cookie's name."""
        return f"dplinked-studio-{self._port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, hand out the cookie, or refuse the request."""
        assert self.app is not None
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = _headers(scope)
        if not self._is_ours(scope["type"], headers):
            await _refuse(scope, send, "This address belongs to another host or page.")
        elif self._is_inside(scope) and self._is_known(headers):
            await self.app({**scope, "root_path": self._folder[:-1]}, receive, _hardened(send))
        elif self._uses_token(scope):
            await self._let_in(send)
        else:
            await _refuse(scope, send, "The studio's address works once, in the browser that opens it first.")

    def _is_ours(self, kind: str, headers: dict[str, str]) -> bool:
        """Whether both the host asked for and the asking page are ours. Another site may have pointed its own name to this machine."""
        origin = headers.get("origin")
        allowed = {f"http://{host}" for host in self._hosts} | (set() if kind == "websocket" else {None})
        return headers.get("host") in self._hosts and origin in allowed

    def _is_inside(self, scope: Scope) -> bool:
        """Whether the request is for the folder that only our own browser knows."""
        return _same(scope["path"][: len(self._folder)], self._folder)

    def _is_known(self, headers: dict[str, str]) -> bool:
        """Whether the request carries the cookie."""
        try:
            sent = SimpleCookie(headers.get("cookie", "")).get(self.cookie_name)
        except CookieError:
            return False
        return sent is not None and _same(sent.value, self._cookie)

    def _uses_token(self, scope: Scope) -> bool:
        """Whether the request carries the one-time token. If it does, the token is used up."""
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] != "/" or self._token is None:
            return False
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if len(given) != 1 or not _same(given[0], self._token):
            return False
        self._token = None
        self.entered.set()
        return True

    async def _let_in(self, send: Send) -> None:
        """Hand out the cookie and the folder's name with a page that then opens the studio.

        After a redirect, browsers would not send a strict cookie if the address was opened from another site.
        """
        cookie = f"{self.cookie_name}={self._cookie}; HttpOnly; SameSite=Strict; Path={self._folder}"
        head = [(b"set-cookie", cookie.encode()), (b"refresh", f"0; url={self._folder}".encode())]
        await _respond(send, 200, page("dplinked studio", paragraph("Opening …")), head)


def _headers(scope: Scope) -> dict[str, str]:
    """The headers by name. One that is given twice is joined, so that it matches neither value; cookies may come in several parts."""
    found: dict[str, str] = {}
    for key, value in scope["headers"]:
        name, text = key.decode("latin-1").lower(), value.decode("latin-1")
        found[name] = f"{found[name]}; {text}" if name in found else text
    return found


def _same(given: str, expected: str) -> bool:
    """Compare two secrets in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())


def _security() -> Iterator[tuple[bytes, bytes]]:
    """Headers that forbid the browser to load from, or send to, other sites."""
    yield b"content-security-policy", POLICY.encode()
    yield b"x-content-type-options", b"nosniff"
    yield b"referrer-policy", b"no-referrer"
    yield b"cross-origin-opener-policy", b"same-origin"
    yield b"cross-origin-resource-policy", b"same-origin"


def _hardened(send: Send) -> Send:
    """Add the security headers to every response."""

    async def with_headers(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *_security()]}
        await send(message)

    return with_headers


async def _refuse(scope: Scope, send: Send, reason: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        return
    advice = (
        "Where it is open it goes on, and a closed tab can be opened again from the browser's history. "
        "Otherwise stop the studio (Ctrl-C) and start it anew: dplinked studio."
    )
    await _respond(send, _REFUSED, page("Refused", paragraph(f"{reason} {advice}")))


async def _respond(send: Send, status: int, body: str, head: list[tuple[bytes, bytes]] | None = None) -> None:
    content = body.encode()
    headers = [
        (b"content-type", b"text/html; charset=utf-8"), (b"content-length", str(len(content)).encode()),
        (b"cache-control", b"no-store"), *_security(), *(head or []),
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
