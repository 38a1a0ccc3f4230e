"""A proxy in front of an HTTP server on loopback, which fails requests on command."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# What can happen to a request beside an answer with an error's status. It does not reach the server; it is
# done but its answer is lost; the body of its successful answer breaks off (where that of an error breaks
# off, object_store gives up).
REFUSE, LOSE_ANSWER, BREAK_BODY = "refuse", "lose answer", "break body"
HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length"}

Fault = str | int | None


@dataclass(frozen=True)
class Request:
    """A request, and what was done to it: a fault's name, the status of an error, or nothing."""

    method: str
    path: str
    fault: Fault


class FaultyProxy(ThreadingHTTPServer):
    """Passes requests on to a port, except for those for which `find_fault` finds a fault."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int):
        super().__init__(("127.0.0.1", 0), Handler)
        self.port = port
        self.lock = threading.Lock()
        self.find_fault: Callable[[str, str], Fault] = lambda method, path: None
        self.requests: list[Request] = []

    def note(self, method: str, path: str) -> Fault:
        with self.lock:
            fault = self.find_fault(method, path)
            self.requests.append(Request(method, path, fault))
        return fault

    def count_faults(self) -> int:
        return sum(request.fault is not None for request in self.requests)

    def handle_error(self, request, client_address):
        """Processes that are killed leave their connections; that is no error here."""


class Handler(BaseHTTPRequestHandler):
    server: FaultyProxy
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.server.note(self.command, self.path)
        if isinstance(fault, int):
            return self.send_answer(fault, {}, b"")
        if fault != REFUSE:
            status, headers, answer = self.pass_on(body)
        if fault in (REFUSE, LOSE_ANSWER):
            self.close_connection = True
            return
        is_cut = fault == BREAK_BODY and status < 400
        self.send_answer(status, headers, answer, cut=-(-len(answer) // 2) if is_cut else 0)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def pass_on(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            connection.request(self.command, self.path, body or None, dict(self.headers))
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def send_answer(self, status: int, headers: dict[str, str], body: bytes, cut: int = 0) -> None:
        """Sends an answer without the last `cut` bytes of its body."""
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in HOP_HEADERS:
                self.send_header(name, value)
        # The answer to HEAD has the length of the body that GET would get.
        length = {name.lower(): value for name, value in headers.items()}.get("content-length")
        is_head = self.command == "HEAD" and length is not None
        self.send_header("Content-Length", length if is_head else str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) - cut])
        self.close_connection = self.close_connection or cut > 0


@contextmanager
def serve(port: int) -> Iterator[FaultyProxy]:
    """Runs a proxy in front of a port until the block ends."""
    proxy = FaultyProxy(port)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
