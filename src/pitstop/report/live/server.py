"""A live view as a page on this machine: four addresses, no files, nobody else may look.

It listens on 127.0.0.1 alone. A page of another site cannot read it either: browsers hold answers
back from other origins, and a name that was made to point here is refused by its ``Host``.
"""

import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from socketserver import TCPServer
from typing import Any, Final

from pitstop.errors import PitstopError
from pitstop.records.store import to_json
from pitstop.report.live.page import LivePage
from pitstop.report.live.prometheus import metrics_text
from pitstop.report.live.view import LiveView

HOST: Final = "127.0.0.1"
_OURS: Final = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?")
_LINGER_S: Final = 3.0
_MOST_CONNECTIONS: Final = 32
_HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class PortTaken(PitstopError):  # noqa: N818 - reads as the fact it states
    """A port that another program listens on, or that may not be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What an address gives."""

    kind: str
    body: Callable[[LiveView], str]


class _Server(ThreadingHTTPServer):
    """Holds the latest view for the threads that answer."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, page: LivePage) -> None:
        self._open: list[socket] = []
        self._open_lock = threading.Lock()
        self.view: LiveView | None = None
        self.policy = page.policy
        self.was_asked = False
        self.has_told_end = threading.Event()
        self.answers: Mapping[str, _Answer] = {
            "/": _Answer(kind="text/html", body=page.whole),
            "/view.html": _Answer(kind="text/html", body=page.inside),
            "/view.json": _Answer(kind="application/json", body=to_json),
            "/metrics": _Answer(kind="text/plain; version=0.0.4", body=metrics_text),
        }
        super().__init__((HOST, port), _Handler)

    def server_bind(self) -> None:
        """Bind without asking a name server who we are."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a connection; where there are too many, those that have waited longest give way."""
        with self._open_lock:
            self._open.append(request)
            crowd = self._open[:-_MOST_CONNECTIONS]
        for waiting in crowd:
            with suppress(OSError):
                waiting.shutdown(SHUT_RDWR)  # its thread reads an end, and leaves
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Let go of a connection."""
        with self._open_lock:
            if request in self._open:
                self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that hung up; anything else is ours and is shown."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = 10  # a connection that says nothing does not hold a thread for ever
    server_version = "pitstop"
    sys_version = ""

    def do_GET(self) -> None:
        """Give the page, the view inside it, the view as JSON, or its numbers for Prometheus."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Give the headers alone."""
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by http.server
        """Say nothing: the terminal shows the run."""

    def _answer(self, *, with_body: bool) -> None:
        server = self.server
        if not _is_ours(self.headers.get_all("Host", [])):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", "this page is for this machine only\n")
            return
        answer = server.answers.get(self.path.partition("?")[0])
        view = server.view
        if answer is None:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "there is nothing here\n")
        elif view is None:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", "there is no view yet\n")
        else:
            # Before the answer: whoever has it may end the block at once.
            server.was_asked = True
            self._send(HTTPStatus.OK, answer.kind, answer.body(view) if with_body else "")
            if view.is_over:
                server.has_told_end.set()

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", self.server.policy)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _is_ours(hosts: Sequence[str]) -> bool:
    """Whether the one ``Host`` header names this machine; a forwarded port may be any."""
    return len(hosts) == 1 and _OURS.fullmatch(hosts[0].strip().lower()) is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServedPage:
    """A page that is being served."""

    address: str
    publish: Callable[[LiveView], None]


@contextmanager
def serving(port: int, *, refresh_s: float) -> Iterator[ServedPage]:
    """Serve a page until the end of the block; open pages get to see how a run ended.

    Args:
        port: Port to listen on; 0 takes one that is free.
        refresh_s: How often a page asks for the present view.

    Raises:
        PortTaken: The port cannot be listened on.
    """
    try:
        server = _Server(port, LivePage(refresh_s=refresh_s))
    except OSError as error:
        raise PortTaken(
            f"cannot serve on port {port} of {HOST}: {error.strerror}; choose another with "
            "--port, or any that is free with --port 0"
        ) from error

    def publish(view: LiveView) -> None:
        server.view = view

    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield ServedPage(address=f"http://{HOST}:{server.server_port}/", publish=publish)
        if server.was_asked and server.view is not None and server.view.is_over:
            server.has_told_end.wait(_LINGER_S + 2 * refresh_s)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
