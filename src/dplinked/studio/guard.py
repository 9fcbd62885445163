"""Who may talk to the studio: the browser that opened its address first, on this machine, and no other page in it."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from dplinked.report.page import page, paragraph

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

# Scripts and styles of Shiny's own are partly written into the page. Nothing may come from, or go, elsewhere.
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self' data:; connect-src 'self'; frame-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_REFUSED = 403
_POLICY_VIOLATION = 1008  # of a websocket


class Guard:
    """ASGI middleware: an address that works once, then a cookie; only this host's names, only this page's socket.

    Parameters
    ----------
    port
        The port it is served on, at 127.0.0.1.
    app
        What is guarded; it may be put in later, before the first request.
    """

    def __init__(self, port: int, app: Application | None = None) -> None:
        self.app, self._port = app, port
        self._token: str | None = secrets.token_urlsafe(32)
        self._cookie = secrets.token_urlsafe(32)
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self.address = f"http://127.0.0.1:{port}/?token={self._token}"

    @property
    def cookie_name(self) -> str:
        """Browsers send cookies to every port of a host, so each studio has a name of its own."""
        return f"dplinked-studio-{self._port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, let its browser in, or refuse it."""
        assert self.app is not None
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = _headers(scope)
        if not self._is_ours(scope["type"], headers):
            await _refuse(scope, send, "This address belongs to another host or page.")
        elif self._is_known(headers):
            await self.app(scope, receive, _hardened(send))
        elif self._uses_token(scope):
            await self._let_in(send)
        else:
            await _refuse(scope, send, "The studio's address works once, in the browser that opens it first.")

    def _is_ours(self, kind: str, headers: dict[str, str]) -> bool:
        """The name asked for is this host's (a page elsewhere may have pointed its own name here), and so is the asking page."""
        origin = headers.get("origin")
        allowed = {f"http://{host}" for host in self._hosts} | (set() if kind == "websocket" else {None})
        return headers.get("host") in self._hosts and origin in allowed

    def _is_known(self, headers: dict[str, str]) -> bool:
        try:
            sent = SimpleCookie(headers.get("cookie", "")).get(self.cookie_name)
        except CookieError:
            return False
        return sent is not None and _same(sent.value, self._cookie)

    def _uses_token(self, scope: Scope) -> bool:
        """Whether the one-time token is given; from then on it is worth nothing."""
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] != "/" or self._token is None:
            return False
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if len(given) != 1 or not _same(given[0], self._token):
            return False
        self._token = None
        return True

    async def _let_in(self, send: Send) -> None:
        """Hand out the cookie. A redirect would still count as asked for by wherever the link was; a page of ours does not."""
        cookie = f"{self.cookie_name}={self._cookie}; HttpOnly; SameSite=Strict; Path=/"
        head = [(b"set-cookie", cookie.encode()), (b"refresh", b"0; url=/")]
        await _respond(send, 200, page("dplinked studio", paragraph("Opening …")), head)


def _headers(scope: Scope) -> dict[str, str]:
    """Headers by name. One that is given twice is joined, so that it equals neither; cookies may come in parts."""
    found: dict[str, str] = {}
    for key, value in scope["headers"]:
        name, text = key.decode("latin-1").lower(), value.decode("latin-1")
        found[name] = f"{found[name]}; {text}" if name in found else text
    return found


def _same(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), right.encode())


def _security() -> Iterator[tuple[bytes, bytes]]:
    yield b"content-security-policy", POLICY.encode()
    yield b"x-content-type-options", b"nosniff"
    yield b"referrer-policy", b"no-referrer"
    yield b"cross-origin-opener-policy", b"same-origin"
    yield b"cross-origin-resource-policy", b"same-origin"


def _hardened(send: Send) -> Send:
    async def with_headers(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *_security()]}
        await send(message)

    return with_headers


async def _refuse(scope: Scope, send: Send, reason: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        return
    advice = "To open it again, stop the studio (Ctrl-C) and start it anew: dplinked studio."
    await _respond(send, _REFUSED, page("Refused", paragraph(f"{reason} {advice}")))


async def _respond(send: Send, status: int, body: str, head: list[tuple[bytes, bytes]] | None = None) -> None:
    content = body.encode()
    headers = [
        (b"content-type", b"text/html; charset=utf-8"), (b"content-length", str(len(content)).encode()),
        (b"cache-control", b"no-store"), *_security(), *(head or []),
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
