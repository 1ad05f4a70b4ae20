# SPDX-License-Identifier: MIT
"""Peers for the tests of transfers: a web server that does what a test tells it to, a hub as the Hugging Face Hub's
documented API has it, and nginx."""
import base64
import hashlib
import http.server
import importlib
import importlib.metadata
import json
import os
import re
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


class FileServer(Serving):
    """Serves {path: bytes} with ranges and ETags.
    behave {path: [function, …]}: the functions answer the first requests for a path, one each (the last one stays if
    `forever`). fault(request, path, nth, asked): called for every other request, the nth one for its path; true: it has
    answered itself. password: "user:password" that is asked for. delay: seconds before an answer. cut_after: hang up
    after so many bytes of an answer; pause: before each block of `block` bytes; stall_at: at this byte of a file send
    nothing more. closing: set when the test is over."""

    def __init__(self, files, behave=None, forever=False, fault=lambda *_: False, ranges=True, password=None, delay=0.0,
                 cut_after=None, pause=0.0, stall_at=None, block=65536, certificate=None):
        outer = self
        self.files, self.behave, self.forever = files, behave or {}, forever
        self.cut_after, self.pause, self.stall_at, self.block = cut_after, pause, stall_at, block
        self.seen, self.conditions, self.hosts, self.headers, self.sent = [], [], set(), {}, 0
        self.closing, self.lock = threading.Event(), threading.Lock()

        class Files(Handler):
            def do_GET(self):
                path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).lstrip("/")  # of a proxy: with the host
                body = outer.files.get(path, b"")
                asked = requested_range(self, len(body)) if ranges else None
                with outer.lock:
                    outer.seen.append((path, asked))
                    nth = outer.count(path)
                outer.headers = dict(self.headers)
                outer.hosts.add(self.headers["Host"])
                outer.closing.wait(delay)
                given = self.headers.get("Authorization", "")
                if password and given != "Basic " + base64.b64encode(password.encode()).decode():
                    return self.reply(401)
                odd = outer.behave.get(path, [])
                if odd:
                    return (odd[0] if outer.forever and len(odd) == 1 else odd.pop(0))(outer, self, path)
                if path in outer.files and fault(self, path, nth, asked):
                    return None
                return outer.honest(self, path)

        super().__init__(Files, certificate)
        self.ranges = ranges

    def honest(self, request, path):
        body = self.files.get(path)
        if body is None:
            return request.reply(404, b"<html>not here</html>")
        etag, wanted = self.etag(body), request.headers.get("If-Match")
        self.conditions.append(wanted)
        if wanted and wanted != etag:
            return request.reply(412)
        asked = requested_range(request, len(body)) if self.ranges else None
        begin, end = asked or (0, len(body))
        headers = {"Content_Range": f"bytes {begin}-{end - 1}/{len(body)}"} if asked else {}
        request.reply(206 if asked else 200, length=end - begin, ETag=etag, **headers)
        for at in range(begin, end, self.block):
            if self.cut_after is not None and at - begin >= self.cut_after:
                request.close_connection = True
                return None
            if self.stall_at is not None and at >= self.stall_at:
                request.wfile.flush()
                return self.closing.wait(60)
            time.sleep(self.pause)
            chunk = body[at:min(at + self.block, end)]
            request.wfile.write(chunk)
            with self.lock:
                self.sent += len(chunk)
        return None

    @staticmethod
    def etag(body):
        return f'"{hash(body)}"'

    def count(self, path):
        """How often this path was asked for."""
        return sum(each == path for each, _ in self.seen)

    def asked(self, part):
        """The ranges that were asked for of files with `part` in their paths; None: all of a file."""
        return [asked for path, asked in self.seen if part in path]

    def __exit__(self, *_):
        self.closing.set()
        super().__exit__()


# What a server may do instead of an honest answer: FileServer(behave={path: [function]}).

def status(code, **headers):
    return lambda server, request, path: request.reply(code, b"there is no such thing here", **headers)


def redirect(target):
    return status(302, Location=target)


def announce(length, send=1.0):
    """Announces `length` times the size of the file, or nothing where that is None, and sends `send` times its bytes."""
    def answer(server, request, path):
        body = server.files[path]
        request.close_connection = True
        request.send_response(200)
        if length is not None:
            request.send_header("Content-Length", str(int(length * len(body))))
        request.end_headers()
        request.wfile.write(body[:int(send * len(body))])
    return answer


def lengthen(server, request, path):
    """Announces, and sends, one byte more."""
    request.reply(200, server.files[path] + b"x")


def flood(server, request, path):
    """Sends without end and without a length, until the client hangs up or 50 MB are sent."""
    request.close_connection = True
    request.send_response(200)
    request.end_headers()
    for _ in range(50):
        request.wfile.write(b"x" * (1 << 20))
        server.sent += 1 << 20


def corrupt(server, request, path):
    body = bytearray(server.files[path])
    body[len(body) // 2] ^= 1
    request.reply(200, bytes(body))


def page(server, request, path):
    request.reply(200, b"<html>Please log in</html>", Content_Type="text/html")


def stall(server, request, path):
    """Sends half and then nothing, with the connection open, until the test is over."""
    body = server.files[path]
    request.close_connection = True
    request.reply(200, body[:len(body) // 2], length=len(body))
    server.closing.wait(60)


class Hub:
    """The Hugging Face Hub for one repository, in two hosts: `url` answers the API and redirects large files to another,
    as huggingface.co does. files: {path: bytes}; those of `lfs_from` bytes and more are large, other than text."""
    COMMIT = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self, repository, files, lfs_from=1000, token=None, branch="main"):
        self.repository, self.files, self.lfs_from, self.token = repository, dict(files), lfs_from, token
        self.branch = urllib.parse.quote(branch, safe="")
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
        path = urllib.parse.urlsplit(request.path).path
        self.seen.append((request.command, urllib.parse.unquote(path), request.headers.get("Authorization")))
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return self.reply(request, 401, b'{"error":"Invalid credentials in Authorization header"}')
        api, resolve = f"/api/models/{self.repository}", f"/{self.repository}/resolve/"
        if path in (api, f"{api}/revision/{self.branch}", f"{api}/revision/{self.COMMIT}"):
            return self.reply_json(request, self.about("blobs" in urllib.parse.urlsplit(request.path).query))
        if path.startswith(resolve):
            revision, _, name = path[len(resolve):].partition("/")
            name = urllib.parse.unquote(name)
            if revision in (self.branch, self.COMMIT) and name in self.files:
                return self.resolve(request, name)
        return self.reply(request, 404, b'{"error":"Entry not found"}', X_Error_Code="EntryNotFound")

    def about(self, blobs=False):
        siblings = [self.entry(name) if blobs else {"rfilename": name} for name in self.files]
        return {"id": self.repository, "sha": self.COMMIT, "private": False, "tags": [], "downloads": 0, "likes": 0,
                "siblings": siblings}

    def entry(self, name):
        body = self.files[name]
        entry = {"rfilename": name, "size": len(body), "blobId": hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()}
        if len(body) >= self.lfs_from and not name.endswith((".json", ".md", ".txt", ".env")):
            entry["lfs"] = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 134}
        return entry

    def resolve(self, request, name):
        entry = self.entry(name)
        headers = {"X_Repo_Commit": self.COMMIT, "Accept_Ranges": "bytes"}
        if "lfs" not in entry:
            return self.reply(request, 200, self.files[name], ETag=f'"{entry["blobId"]}"', **headers)
        location = f"{self.storage_url}/{urllib.parse.quote(name)}?X-Amz-Signature=secret"
        self.reply(request, 302, b"Found", Location=location, X_Linked_Size=str(entry["size"]),
                   X_Linked_ETag=f'"{entry["lfs"]["sha256"]}"', **headers)

    def reply_json(self, request, value, **headers):
        self.reply(request, 200, json.dumps(value).encode(), Content_Type="application/json", **headers)

    def reply(self, request, status, body, **headers):
        request.reply(status, body, **headers)


class WritableHub(Hub):
    """The Hub's API for uploads: preupload, Git LFS batch, storage, commits that name their parent."""

    def __init__(self, repository, files, **options):
        super().__init__(repository, files, **options)
        self.stored, self.commits, self.before_commit = {}, 0, lambda: None
        outer = self

        def put(request):
            outer.storage_headers.append(dict(request.headers))
            body = request.rfile.read(int(request.headers["Content-Length"]))
            oid = request.path.rsplit("/", 1)[1].split("?")[0]
            right = hashlib.sha256(body).hexdigest() == oid
            if right:
                outer.stored[oid] = body
            outer.reply(request, 200 if right else 400, b"")

        self.storage.server.RequestHandlerClass.do_PUT = put
        self.api.server.RequestHandlerClass.do_POST = lambda request: outer.post(request)

    @property
    def commit(self):
        return f"{self.commits:040x}"

    def answer(self, request):
        request.path = request.path.replace(self.commit, self.COMMIT)
        super().answer(request)

    def about(self, blobs=False):
        return {**super().about(blobs), "sha": self.commit}

    def post(self, request):
        body = request.rfile.read(int(request.headers["Content-Length"]))
        self.seen.append((request.command, request.path, request.headers.get("Authorization")))
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return self.reply(request, 401, b"{}")
        api = f"/api/models/{self.repository}"
        if request.path == f"{api}/preupload/{self.branch}":
            modes = [{"path": file["path"], "shouldIgnore": False,
                      "uploadMode": "lfs" if file["size"] >= self.lfs_from else "regular"}
                     for file in json.loads(body)["files"]]
            return self.reply_json(request, {"files": modes})
        if request.path == f"/{self.repository}.git/info/lfs/objects/batch":
            return self.reply_json(request, {"transfer": "basic", "objects": [self.lfs_object(wanted)
                                                                            for wanted in json.loads(body)["objects"]]})
        if request.path == f"{api}/commit/{self.branch}":
            return self.take_commit(request, [json.loads(line) for line in body.splitlines()])
        return self.reply(request, 404, b"{}")

    def lfs_object(self, wanted):
        answer = {"oid": wanted["oid"], "size": wanted["size"]}
        if wanted["oid"] not in self.stored:
            answer["actions"] = {"upload": {"href": f"{self.storage_url}/{wanted['oid']}?X-Amz-Signature=secret",
                                            "header": {"X-Test": "1"}}}
        return answer

    def take_commit(self, request, lines):
        self.before_commit()
        header = lines[0]
        if header["key"] != "header" or header["value"].get("parentCommit", self.commit) != self.commit:
            return self.reply(request, 412, b'{"error":"A commit has happened since"}')
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"], validate=True)
            elif line["key"] == "lfsFile":
                self.files[value["path"]] = self.stored[value["oid"]]
            elif line["key"] == "deletedFile":
                del self.files[value["path"]]
        self.commits += 1
        self.reply_json(request, {"commitOid": self.commit, "commitUrl": f"{self.url}/{self.repository}/commit/{self.commit}", "success": True})


def certificate(folder):
    """Makes (certificate, key) for 127.0.0.1 in files of `folder`."""
    files = Path(folder) / "certificate.pem", Path(folder) / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", files[1], "-out", files[0],
                    "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
                   check=True, capture_output=True)
    return files


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
