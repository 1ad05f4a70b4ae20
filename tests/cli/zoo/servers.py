# SPDX-License-Identifier: MIT
"""Web servers on localhost for tests of `oscar pull`: an honest one, and one that misbehaves as a test tells it to."""
import http.server
import re
import ssl
import subprocess
import sys
import threading
from collections import Counter


class PlainServer:
    """Python's own `python3 -m http.server`, as people start it by hand."""

    def __init__(self, folder):
        self.process = subprocess.Popen([sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"], cwd=folder,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.port = re.search(r"port (\d+)", self.process.stdout.readline()).group(1)

    def __enter__(self):
        return f"http://127.0.0.1:{self.port}"

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()


class OddServer:
    """Serves `files` {path: bytes}. `behave` {path: [function, …]}: the functions answer the first requests for a path, one
    each (the last one stays if `forever`), instead of the honest answer. `seen` counts requests; `headers` keeps the last."""

    def __init__(self, files, behave=None, forever=False, certificate=None):
        self.files, self.behave, self.forever = files, behave or {}, forever
        self.seen, self.headers = Counter(), {}
        self.closing = threading.Event()
        odd = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                path = self.path.lstrip("/")
                odd.seen[path] += 1
                odd.headers = dict(self.headers)
                odd.answer(self, path)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # clients that go away are what is being tested

        self.server = Server(("127.0.0.1", 0), Handler)
        self.scheme = "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.scheme = "https"

    def answer(self, request, path):
        odd = self.behave.get(path, [])
        if odd:
            (odd[0] if self.forever and len(odd) == 1 else odd.pop(0))(self, request, path)
        else:
            honest(self, request, path)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return f"{self.scheme}://127.0.0.1:{self.server.server_address[1]}"

    def __exit__(self, *_):
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()


def reply(request, status, body=b"", length=None, **headers):
    request.send_response(status)
    request.send_header("Content-Length", str(len(body) if length is None else length))
    for name, value in headers.items():
        request.send_header(name.replace("_", "-"), value)
    request.end_headers()
    request.wfile.write(body)


def honest(server, request, path):
    body = server.files.get(path)
    reply(request, 200, body) if body is not None else reply(request, 404, b"<html>not here</html>")


def status(code, **headers):
    return lambda server, request, path: reply(request, code, b"there is no such thing here", **headers)


def redirect(target):
    return status(302, Location=target)


def truncate(server, request, path):
    """Announces everything, sends half, hangs up."""
    body = server.files[path]
    request.close_connection = True
    reply(request, 200, body[:len(body) // 2], length=len(body))


def lengthen(server, request, path):
    """Announces, and sends, one byte more."""
    reply(request, 200, server.files[path] + b"x")


def truncate_silently(server, request, path):
    """Sends half without saying how much there is: the end of the connection is the end of the body."""
    request.close_connection = True
    request.send_response(200)
    request.end_headers()
    request.wfile.write(server.files[path][:len(server.files[path]) // 2])


def flood(server, request, path):
    """Sends without end and without a length, until the client hangs up or 50 MB are sent."""
    request.close_connection = True
    request.send_response(200)
    request.end_headers()
    for _ in range(50):
        request.wfile.write(b"x" * (1 << 20))
        server.flooded = getattr(server, "flooded", 0) + 1


def corrupt(server, request, path):
    body = bytearray(server.files[path])
    body[len(body) // 2] ^= 1
    reply(request, 200, bytes(body))


def stall(server, request, path):
    """Sends half and then nothing, with the connection open, until the test is over."""
    body = server.files[path]
    request.close_connection = True
    reply(request, 200, body[:len(body) // 2], length=len(body))
    server.closing.wait(60)


def slow(seconds):
    def answer(server, request, path):
        server.closing.wait(seconds)
        honest(server, request, path)
    return answer
