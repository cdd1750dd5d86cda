"""The what-if page over HTTP, for this machine only unless told otherwise.

    GET /               the page, whole
    GET /api/choices    what its lists offer
    POST /api/step, /api/read, /api/schedule     one JSON object in, one out
    POST /api/best      the same, but a search: in a process of its own, one at a time, while the others are answered

There is no other address, and no file is served.  Bodies, headers, waiting and computing have limits; a request from another
site is refused; whatever cannot be answered is a 4xx with one sentence.
"""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import tornado.httpserver
import tornado.netutil
import tornado.web

from simulator.errors import SpecError
from simulator.html.answering import AnsweringProcess
from simulator.html.page import document, policy_of
from simulator.units import parse

__all__ = ["LOCAL", "SCRIPTS", "Server", "whatif_document"]

LOCAL = ("127.0.0.1", "localhost", "::1")
SCRIPTS = ("draw.js", "timeline.js", "memory.js", "charts.js", "controls.js", "lab.js", "whatif.js")
_QUESTIONS = ("step", "read", "schedule", "best")
_LONG = "best"
"""The question that takes long."""
_LONGEST = 90.0
"""Seconds for it; a search stops by itself long before."""
_MOST_BODY = 2**21
_MOST_HEADER = 2**14
_SLOWEST_HEADER, _SLOWEST_BODY = 20.0, 10.0
_MOST_WAITING = 16
_MEMORY = int(parse("12 GiB", "B"))


def whatif_document() -> str:
    """Return the page of `dtsim serve`."""
    return document(
        "dtsim: what if?", '<main id="page"><p>This page needs JavaScript.</p></main>', SCRIPTS, connect=True
    )


class Server:
    """The page on one address; `start` binds it, `run` serves until stopped.

    Args:
        host: address to listen on.
        port: 0 = any that is free.
        answering: who answers; a process of its own by default.
        searching: who searches; another one by default, started by the first search.
    """

    def __init__(
        self,
        host: str = LOCAL[0],
        port: int = 8765,
        answering: AnsweringProcess | None = None,
        searching: AnsweringProcess | None = None,
    ) -> None:
        self.answering = answering or AnsweringProcess(memory=_MEMORY)
        self.searching = searching or AnsweringProcess(_LONGEST, _MEMORY, patient=True)
        self._pool, self._long = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._waiting, self._searches = 0, 0
        try:
            self._sockets = tornado.netutil.bind_sockets(port, host)
        except (OSError, OverflowError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            taken = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
            way_out = "--port 0 takes a free one" if taken else "--host 127.0.0.1, or an address of this machine"
            raise SpecError(f"cannot listen on {host} port {port}: {reason}. Way out: {way_out}") from None
        self.port: int = self._sockets[0].getsockname()[1]
        named = f"[{host}]" if ":" in host else host
        self.address = f"http://{named}:{self.port}/"
        self.hosts = {*LOCAL, host} if host in LOCAL else None
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop` or Ctrl-C; `ready` is called when requests are taken."""
        try:
            asyncio.run(self._serve(ready))
        finally:
            self.answering.close()
            self.searching.close()
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._long.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """End `run`, from any thread."""
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)

    async def ask(self, question: str, data: object) -> tuple[int, dict[str, object]]:
        """Return status and answer; 429 where too many wait already, or a search runs."""
        if question == _LONG:
            return await self._search(data)
        if self._waiting >= _MOST_WAITING:
            return 429, {"error": "too many questions wait for an answer; ask again in a moment"}
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self.answering.ask, question, data)
        finally:
            self._waiting -= 1

    async def _search(self, data: object) -> tuple[int, dict[str, object]]:
        if self._searches:
            return 429, {"error": "a search runs already; ask again when it has ended"}
        self._searches += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._long, self.searching.ask, _LONG, data)
        finally:
            self._searches -= 1

    async def _serve(self, ready: Callable[[], None]) -> None:
        self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
        routes: list[Any] = [("/", _Page, {"server": self}), ("/api/choices", _Choices, {"server": self})]
        routes += [(f"/api/{question}", _Question, {"server": self, "question": question}) for question in _QUESTIONS]
        application = tornado.web.Application(
            routes, default_handler_class=_Nothing, default_handler_args={"server": self}, log_function=lambda _: None
        )
        http = tornado.httpserver.HTTPServer(
            application,
            max_header_size=_MOST_HEADER,
            max_body_size=_MOST_BODY,
            max_buffer_size=2 * _MOST_BODY,
            idle_connection_timeout=_SLOWEST_HEADER,
            body_timeout=_SLOWEST_BODY,
        )
        http.add_sockets(self._sockets)
        self._pool.submit(self.answering.start)
        ready()
        try:
            await self._stop.wait()
        finally:
            http.stop()
            await http.close_all_connections()


class _Handler(tornado.web.RequestHandler):
    """What all addresses share: who may ask, and that errors are one JSON sentence."""

    def initialize(self, server: Server, question: str = "") -> None:
        self.server, self.question = server, question

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        for name, value in (
            ("X-Content-Type-Options", "nosniff"),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("X-Frame-Options", "DENY"),
        ):
            self.set_header(name, value)

    def prepare(self) -> None:
        """Refuse other sites: those that only pretend to be this host, and pages of others that post here."""
        try:
            asked = urlsplit(f"//{self.request.host}").hostname
            origin = self.request.headers.get("Origin")
            foreign = origin is not None and urlsplit(origin).netloc != self.request.host
        except ValueError:
            asked, foreign = None, True
        if self.server.hosts is not None and asked not in self.server.hosts:
            raise tornado.web.HTTPError(403, reason="this page answers on this machine only")
        if foreign:
            raise tornado.web.HTTPError(403, reason="pages of other sites may not ask")

    def write_error(self, status_code: int, **kwargs: object) -> None:
        self.finish({"error": self._reason})

    def log_exception(self, typ: object, value: object, tb: object) -> None:
        """Nothing: the client is told."""


class _Nothing(_Handler):
    def prepare(self) -> None:
        super().prepare()
        raise tornado.web.HTTPError(404, reason="there is nothing at this address")


class _Page(_Handler):
    def get(self) -> None:
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", policy_of(SCRIPTS, connect=True) + "; frame-ancestors 'none'")
        self.finish(whatif_document())


class _Choices(_Handler):
    async def get(self) -> None:
        status, answer = await self.server.ask("choices", None)
        self.set_status(status)
        self.finish(answer)


class _Question(_Handler):
    async def post(self) -> None:
        kind = self.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise tornado.web.HTTPError(415, reason="a question is JSON: Content-Type application/json")
        try:
            data = json.loads(self.request.body.decode("utf-8"), parse_constant=_refuse)
        except (ValueError, RecursionError):
            raise tornado.web.HTTPError(400, reason="the body is no JSON") from None
        status, answer = await self.server.ask(self.question, data)
        self.set_status(status)
        self.finish(json.dumps(answer, ensure_ascii=False, separators=(",", ":")))

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Content-Type", "application/json; charset=utf-8")


def _refuse(word: str) -> object:
    raise ValueError(word)
