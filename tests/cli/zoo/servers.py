# SPDX-License-Identifier: MIT
"""Web servers on localhost for tests of `oscar pull`: an honest one, and one that misbehaves as a test tells it to."""
import re
import subprocess
import sys
import threading
from collections import Counter

from peers import Handler, Serving


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


class OddServer(Serving):
    """Serves `files` {path: bytes}. `behave` {path: [function, …]}: the functions answer the first requests for a path, one
    each (the last one stays if `forever`), instead of the honest answer. `seen` counts requests; `headers` keeps the last."""

    def __init__(self, files, behave=None, forever=False, certificate=None):
        self.files, self.behave, self.forever = files, behave or {}, forever
        self.seen, self.headers = Counter(), {}
        self.closing = threading.Event()
        odd = self

        class Odd(Handler):
            def do_GET(self):
                path = self.path.lstrip("/")
                odd.seen[path] += 1
                odd.headers = dict(self.headers)
                odd.answer(self, path)

        super().__init__(Odd, certificate)

    def answer(self, request, path):
        odd = self.behave.get(path, [])
        if odd:
            (odd[0] if self.forever and len(odd) == 1 else odd.pop(0))(self, request, path)
        else:
            honest(self, request, path)

    def __exit__(self, *_):
        self.closing.set()
        super().__exit__()


def honest(server, request, path):
    body = server.files.get(path)
    request.reply(200, body) if body is not None else request.reply(404, b"<html>not here</html>")


def status(code, **headers):
    return lambda server, request, path: request.reply(code, b"there is no such thing here", **headers)


def redirect(target):
    return status(302, Location=target)


def truncate(server, request, path):
    """Announces everything, sends half, hangs up."""
    body = server.files[path]
    request.close_connection = True
    request.reply(200, body[:len(body) // 2], length=len(body))


def lengthen(server, request, path):
    """Announces, and sends, one byte more."""
    request.reply(200, server.files[path] + b"x")


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
    request.reply(200, bytes(body))


def stall(server, request, path):
    """Sends half and then nothing, with the connection open, until the test is over."""
    body = server.files[path]
    request.close_connection = True
    request.reply(200, body[:len(body) // 2], length=len(body))
    server.closing.wait(60)


def slow(seconds):
    def answer(server, request, path):
        server.closing.wait(seconds)
        honest(server, request, path)
    return answer
