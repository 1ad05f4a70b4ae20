# SPDX-License-Identifier: MIT
"""Peers for the tests of transfers: a server that sends ranges (and cuts lines), a hub as the Hugging Face Hub's
documented API has it, nginx, and a relay that delays what passes through it."""
import base64
import hashlib
import http.server
import importlib
import importlib.metadata
import json
import os
import re
import select
import shutil
import socket
import ssl
import subprocess
import threading
import time
import unittest
import urllib.parse
from pathlib import Path


def pinned(name):
    """The package, in the version that scripts/requirements-tests.txt names; the test is skipped where it is another."""
    requirements = Path(os.environ["OSCAR_PROJECT"], "scripts/requirements-tests.txt").read_text()
    wanted = re.search(rf"^{name}\S*?==(\S+)", requirements, re.M)[1]
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise unittest.SkipTest(f"{name} {wanted} is not installed") from error
    if found != wanted:
        raise unittest.SkipTest(f"{name} is {found}, and this test is for {wanted}")
    return importlib.import_module(name)


class Handler(http.server.BaseHTTPRequestHandler):
    """Speaks HTTP/1.1 and keeps no log."""
    protocol_version = "HTTP/1.1"

    def reply(self, status, body=b"", length=None, **headers):
        """length: what is announced, if it is not the body's; headers: X_Name for X-Name."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return True

    def reply_file(self, body, asked, **headers):
        """The body, or the range (begin, end) of it that is asked for."""
        begin, end = asked or (0, len(body))
        if asked:
            headers["Content_Range"] = f"bytes {begin}-{end - 1}/{len(body)}"
        return self.reply(206 if asked else 200, body[begin:end], **headers)

    def log_message(self, *_):
        pass


class Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_):
        pass  # clients that go away are part of the tests


class Serving:
    """A server on localhost for the time of a `with`; gives its address."""
    host = "127.0.0.1"

    def __init__(self, handler, certificate=None):
        """certificate: its file and that of its key; without one it is http."""
        handler.disable_nagle_algorithm = True  # as web servers do; else a body may wait 40 ms behind its header
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self.server = type("Server", (Quiet,), {"address_family": family})((self.host, 0), handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.url = f"{'https' if certificate else 'http'}://{host}:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self.url

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def requested_range(request, size):
    """(begin, end) of the request's Range header; None without one."""
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
    if not match:
        return None
    return int(match[1]), min(int(match[2]) + 1 if match[2] else size, size)


class RangeServer(Serving):
    """Serves {path: bytes} with ranges. cut_after: hang up after so many bytes of an answer; pause: before each block;
    stall_at: at this byte of a file send nothing more."""

    def __init__(self, files, ranges=True, cut_after=None, pause=0.0, stall_at=None, block=65536):
        outer = self
        self.seen, self.sent, self.at_once, self.most_at_once = [], 0, 0, 0
        self.closing, self.lock = threading.Event(), threading.Lock()

        class Ranges(Handler):
            def do_HEAD(self):
                self.reply(200)

            def do_GET(self):
                path = urllib.parse.unquote(self.path).lstrip("/")
                body = files.get(path)
                if body is None:
                    self.send_error(404)
                    return
                asked = requested_range(self, len(body)) if ranges else None
                begin, end = asked or (0, len(body))
                with outer.lock:
                    outer.seen.append((path, asked))
                    outer.at_once += 1
                    outer.most_at_once = max(outer.most_at_once, outer.at_once)
                try:
                    self.send_response(206 if asked else 200)
                    if asked:
                        self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(body)}")
                    self.send_header("Content-Length", str(end - begin))
                    self.end_headers()
                    self.send_body(body, begin, end)
                finally:
                    with outer.lock:
                        outer.at_once -= 1

            def send_body(self, body, begin, end):
                for at in range(begin, end, block):
                    if cut_after is not None and at - begin >= cut_after:
                        self.close_connection = True
                        return
                    if stall_at is not None and at >= stall_at:
                        self.wfile.flush()
                        outer.closing.wait(60)
                        return
                    if pause:
                        time.sleep(pause)
                    chunk = body[at:min(at + block, end)]
                    self.wfile.write(chunk)
                    with outer.lock:
                        outer.sent += len(chunk)

        super().__init__(Ranges)

    def __exit__(self, *_):
        self.closing.set()
        super().__exit__()


class Hub:
    """The Hugging Face Hub for one repository, in two hosts: `url` answers the API and redirects large files to another,
    as huggingface.co does. files: {path: bytes}; those of `lfs_from` bytes and more are large, other than text."""
    COMMIT = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self, repository, files, lfs_from=1000, token=None, page=1000):
        self.repository, self.files, self.lfs_from, self.token, self.page = repository, dict(files), lfs_from, token, page
        self.seen, self.storage_headers = [], []
        outer = self

        class Storage(Handler):
            def do_GET(self):
                outer.storage_headers.append(dict(self.headers))
                body = outer.files.get(urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).lstrip("/"))
                self.reply(404) if body is None else self.reply_file(body, requested_range(self, len(body)))

        class Api(Handler):
            def do_HEAD(self):
                outer.answer(self)

            do_GET = do_HEAD

        self.storage, self.api = Serving(Storage), Serving(Api)
        self.url = self.api.url
        self.storage_url = self.storage.url  # tests may put a relay before it

    def __enter__(self):
        self.storage.__enter__()
        self.api.__enter__()
        return self

    def __exit__(self, *_):
        self.api.__exit__()
        self.storage.__exit__()

    def answer(self, request):
        path = urllib.parse.unquote(urllib.parse.urlsplit(request.path).path)
        self.seen.append((request.command, path, request.headers.get("Authorization")))
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return self.reply(request, 401, b'{"error":"Invalid credentials in Authorization header"}')
        api, resolve = f"/api/models/{self.repository}", f"/{self.repository}/resolve/"
        if path in (api, f"{api}/revision/main", f"{api}/revision/{self.COMMIT}"):
            return self.reply_json(request, self.about())
        tree = re.fullmatch(re.escape(api) + r"/tree/(main|" + self.COMMIT + r")(?:/(.*))?", path)
        if tree:
            return self.reply_tree(request, (tree[2] or "").strip("/"))
        if path.startswith(resolve):
            revision, _, name = path[len(resolve):].partition("/")
            if revision in ("main", self.COMMIT) and name in self.files:
                return self.resolve(request, name)
        return self.reply(request, 404, b'{"error":"Entry not found"}', X_Error_Code="EntryNotFound")

    def about(self):
        return {"id": self.repository, "sha": self.COMMIT, "private": False, "tags": [], "downloads": 0, "likes": 0,
                "siblings": [{"rfilename": name} for name in self.files]}

    def entry(self, name):
        body = self.files[name]
        blob = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
        entry = {"type": "file", "oid": blob, "size": len(body), "path": name}
        if len(body) >= self.lfs_from and not name.endswith((".json", ".md", ".txt", ".env")):
            entry["lfs"] = {"oid": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 134}
        return entry

    def reply_tree(self, request, folder):
        prefix = folder + "/" if folder else ""
        inside = [name for name in self.files if name.startswith(prefix)]
        if not inside:
            return self.reply(request, 404, b'{"error":"folder not found"}')
        recursive = "recursive" in urllib.parse.urlsplit(request.path).query
        folders = sorted({prefix + name[len(prefix):].split("/")[0] for name in inside if "/" in name[len(prefix):]})
        files = [self.entry(name) for name in inside if recursive or "/" not in name[len(prefix):]]
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": path} for path in folders] + files
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(request.path).query)
        begin = int(base64.b64decode(query["cursor"][0])) if "cursor" in query else 0
        rest = {}
        if begin + self.page < len(entries):
            query["cursor"] = [base64.b64encode(b"%d" % (begin + self.page)).decode()]
            address = f"{self.url}{urllib.parse.urlsplit(request.path).path}?{urllib.parse.urlencode(query, doseq=True)}"
            rest["Link"] = f'<{address}>; rel="next"'
        self.reply_json(request, entries[begin:begin + self.page], **rest)

    def resolve(self, request, name):
        entry = self.entry(name)
        headers = {"X_Repo_Commit": self.COMMIT, "Accept_Ranges": "bytes"}
        if "lfs" not in entry:
            return self.reply(request, 200, self.files[name], ETag=f'"{entry["oid"]}"', **headers)
        location = f"{self.storage_url}/{urllib.parse.quote(name)}?X-Amz-Signature=secret"
        self.reply(request, 302, b"Found", Location=location, X_Linked_Size=str(entry["size"]),
                   X_Linked_ETag=f'"{entry["lfs"]["oid"]}"', **headers)

    def reply_json(self, request, value, **headers):
        self.reply(request, 200, json.dumps(value).encode(), Content_Type="application/json", **headers)

    def reply(self, request, status, body, **headers):
        request.reply(status, body, **headers)


class Relay:
    """Passes TCP connections on to `target` ("http://127.0.0.1:PORT"), each byte `delay` seconds later, both ways; in
    all directions at most `rate` bytes a second, if given."""

    def __init__(self, target, delay, rate=None):
        self.port, self.delay, self.rate = int(target.rsplit(":", 1)[1]), delay, rate
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.next_slot, self.lock = 0.0, threading.Lock()

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            # A connection costs one way there and one back before its first byte can go.
            threading.Thread(target=self.connect, args=(client,), daemon=True).start()

    def connect(self, client):
        server = socket.create_connection(("127.0.0.1", self.port))
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self.pass_on, args=(server, client, self.delay), daemon=True).start()
        self.pass_on(client, server, self.delay, handshake=2 * self.delay)

    def due(self, size, delay):
        """When bytes that arrive now may leave."""
        now = time.monotonic()
        if self.rate is None:
            return now + delay
        with self.lock:
            self.next_slot = max(self.next_slot, now) + size / self.rate
            return self.next_slot + delay

    def pass_on(self, source, sink, delay, handshake=0.0):
        opened = time.monotonic() + handshake
        queue, ended = [], False
        try:
            while not ended or queue:
                wait = max(0.0, queue[0][0] - time.monotonic()) if queue else None
                readable = [] if ended else [source]
                if select.select(readable, [], [], wait)[0]:
                    data = source.recv(1 << 18)
                    ended = not data
                    if data:
                        queue.append((max(opened + delay, self.due(len(data), delay)), data))
                while queue and queue[0][0] <= time.monotonic():
                    sink.sendall(queue.pop(0)[1])
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, sink):
                end.close()


def nginx_binary():
    """nginx of this machine or the one that scripts/setup.sh unpacked; skips the test without one."""
    found = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
    venv = Path(os.environ.get("OSCAR_PROJECT", ".")) / ".venv"
    unpacked = venv.resolve().parent / "nginx/usr/sbin/nginx"
    if not found and not unpacked.exists():
        raise unittest.SkipTest("nginx is not here; run scripts/setup.sh --tests")
    return found or str(unpacked)


class Nginx:
    """nginx over `root`, as this user, all its files in `folder`; with TLS and HTTP/2 if it has a certificate."""

    def __init__(self, folder, root, certificate=None):
        self.folder, self.log = Path(folder), Path(folder) / "access.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self.port}"
        tls = f"ssl_certificate {certificate[0]}; ssl_certificate_key {certificate[1]};" if certificate else ""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "nginx.conf").write_text(f"""
            daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
            events {{ worker_connections 64; }}
            http {{
              log_format short '$connection $server_protocol $request_method $uri $status';
              access_log {self.log} short;
              client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
              uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
              server {{
                listen 127.0.0.1:{self.port} {"ssl http2" if certificate else ""}; root {root}; {tls}
              }}
            }}""")

    def __enter__(self):
        self.process = subprocess.Popen([nginx_binary(), "-c", self.folder / "nginx.conf", "-e", self.folder / "error.log"],
                                        stderr=subprocess.DEVNULL)
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            time.sleep(0.05)
        raise RuntimeError((self.folder / "error.log").read_text())

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(10)

    def requests(self):
        """[(connection, protocol, method, path, status)]"""
        return [line.split() for line in self.log.read_text().splitlines()]
