# SPDX-License-Identifier: MIT
"""Servers that lie, stall, change their mind or point elsewhere."""
import hashlib
import json

import edit
import peers
from harness import Fault
from peers import FileServer
from support import read_folder

QUICK = ("--retries", "0", "--timeout", "2")
PULL = ("pull", "me/m", "--zoo", "{url}", "--out", "out", *QUICK)
PATHS = {
    "index": "index.json", "manifest": "me/m/latest/manifest.json", "matrix": "me/m/latest/rotations.h5",
    "serve-env": "me/m/latest/serve.env"
}


def other_bytes(server, request, path):
    request.reply(200, bytes(len(server.files[path])))


def silent(server, request, path):
    request.close_connection = True
    server.closing.wait(60)


def hang_up(server, request, path):
    request.close_connection = True


def drip(server, request, path):
    """A byte a second: never silent for long, and never done."""
    request.close_connection = True
    request.send_response(200)
    request.send_header("Content-Length", str(len(server.files[path])))
    request.end_headers()
    for position in range(len(server.files[path])):
        request.wfile.write(server.files[path][position:position + 1])
        if server.closing.wait(1):
            return


def split_header(server, request, path):
    request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\nX: \x1b[31m\r\n\r\nhello")
    request.close_connection = True


def escape_reason(server, request, path):
    request.wfile.write(b"HTTP/1.1 500 \x1b]0;owned\x07\r\nContent-Length: 0\r\n\r\n")
    request.close_connection = True


BEHAVIOURS = {
    "truncate": peers.announce(1, 0.5), "cut": peers.announce(None, 0.5), "understate": peers.announce(0.5),
    "lengthen": peers.lengthen, "flood": peers.flood, "corrupt": peers.corrupt, "stall": peers.stall, "silent": silent,
    "other": other_bytes, "page": peers.page, "hang-up": hang_up, "drip": drip, "500": peers.status(500),
    "403": peers.status(403), "header": split_header, "reason": escape_reason, "file": peers.redirect("file:///etc/passwd"),
    "ftp": peers.redirect("ftp://127.0.0.1/x"), "gopher": peers.redirect("gopher://127.0.0.1/x")
}


def behave(path, function):
    return lambda folder: FileServer(read_folder(folder / "zoo"), {path: [function]}, forever=True)


def nothing_pulled(folder, _):
    return "a set was written" if (folder / "out").exists() else None


def served(prefix, args, inputs, servers, check=nothing_pulled, exits=(1,), says=""):
    for name, serve in servers.items():
        yield Fault(f"transport/{prefix}/{name}", args, inputs, serve=serve, check=check, exits=exits, says=says)


def misbehaving():
    for place, path in PATHS.items():
        left_out = ("stall", "silent", "drip", "403", "ftp", "gopher") if place in ("manifest", "serve-env") else ()
        # Small files are read to their listed size; an index may differ where nothing else tells.
        left_out += {"serve-env": ("lengthen",), "index": ("corrupt",)}.get(place, ())
        behaviours = BEHAVIOURS | {"loop": peers.redirect(f"/{path}")}
        yield from served(place, PULL, ("zoo",), {name: behave(path, function) for name, function in behaviours.items()
                                                  if name not in left_out})


def edited(change):
    """Honest about a zoo that is edited."""
    def serve(folder):
        files = read_folder(folder / "zoo")
        change(files)
        return FileServer(files)

    return serve


def in_index(path, value):
    def change(files):
        index = json.loads(files["index.json"])
        edit.put(index, path, value)
        files["index.json"] = json.dumps(index).encode()

    return edited(change)


def in_manifest(path, value):
    def change(files):
        manifest = json.loads(files[PATHS["manifest"]])
        edit.put(manifest, path, value)
        text = json.dumps(manifest).encode()
        index = json.loads(files["index.json"])
        index["entries"][0]["manifest"] = {"sha256": hashlib.sha256(text).hexdigest(), "size": len(text)}
        total = len(text) + sum(max(file["size"], 0) for file in manifest["files"] if isinstance(file["size"], int))
        index["entries"][0]["total_size"] = min(total, 1 << 62)
        files |= {"index.json": json.dumps(index).encode(), PATHS["manifest"]: text}

    return edited(change)


def documents():
    yield from served("zoo-index", PULL, ("zoo",), {name: in_index(*case) for name, case in {
        "path-parent": ("entries.0.path", "../../etc"), "path-absolute": ("entries.0.path", "/etc"),
        "path-url": ("entries.0.path", "http://127.0.0.1:1/x"), "path-backslash": ("entries.0.path", "..\\..\\x"),
        "path-encoded": ("entries.0.path", "%2e%2e/%2e%2e/x"), "hash": ("entries.0.manifest.sha256", "0" * 64),
        "hash-short": ("entries.0.manifest.sha256", "abc"), "size": ("entries.0.manifest.size", 5),
        "size-huge": ("entries.0.total_size", 1 << 60), "size-small": ("entries.0.total_size", 10),
        "size-negative": ("entries.0.total_size", -1), "twice": ("entries", lambda entries: entries * 2)}.items()})
    again = lambda path: ("files", lambda files: [*files, {**files[0], "path": path(files[0])}])
    of_size = lambda size: ("files", lambda files: [{**file, "size": size} for file in files])
    for says, cases in {
            "unsafe path": {name: ("files.0.path", path) for name, path in {
                "path-parent": "../../escaped", "path-absolute": "/tmp/escaped", "path-nul": "a\0b", "path-newline": "a\nb", "path-empty": "",
                "path-dot": ".", "path-twice": "a//b", "path-backslash": "a\\b", "path-manifest": "manifest.json"}.items()},
            "as a file and as a folder": {"nested": again(lambda first: first["path"] + "/x"), "in-manifest": again(lambda _: "manifest.json/x")},
            " twice": {"twice": again(lambda first: first["path"])}, "lists no files": {"none": ("files", [])},
            "sizes are impossible": {"size-sum": of_size(1 << 62)}, "size": {"size-negative": of_size(-1), "size-half": of_size(1.5)},
            r"\[sha256\]": {"hash-upper": ("files.0.sha256", "A" * 64)},
            "": {"path-long": ("files.0.path", "x" * 300), "path-deep": ("files.0.path", "/".join("x" * 3000)),
                 "path-hidden": ("files.0.path", ".bashrc"), "size-huge": ("files.0.size", 1 << 60), "hash": ("files.0.sha256", "0" * 64)}}.items():
        yield from served("zoo-manifest", PULL, ("zoo",), {name: in_manifest(*case) for name, case in cases.items()}, says=says)


def signatures():
    path = "me/m/latest/signature.json"
    other_manifest = lambda raw: raw.replace(b'"manifest_sha256": "', b'"manifest_sha256": "0')
    empty = b'{"schema": "oscar.signature.v1", "manifest_sha256": "' + b"0" * 64 + b'", "signatures": []}'
    yield from served("signature", (*PULL, "--key", "key.pub"), ("zoo", "key.pub"), {
        "missing": edited(lambda files: files.pop(path)),
        "other-manifest": edited(lambda files: files.update({path: other_manifest(files[path])})),
        "empty": edited(lambda files: files.update({path: empty})),
        "page": edited(lambda files: files.update({path: b"<html>"})),
        "huge": edited(lambda files: files.update({path: b" " * 20_000_000}))})
    yield from served("signature", (*PULL, "--key", "other.pub"), ("zoo", "other.pub"), {"other-key": edited(lambda files: None)})
    yield from served("signature", (*PULL, "--require-signature"), ("zoo",), {"unsigned": edited(lambda files: files.pop(path))})


def honest():
    """Without these every refusal above proves nothing."""
    written = lambda folder, _: None if (folder / "out/manifest.json").exists() else "nothing was pulled"
    for name, more in {"plain": (), "signed": ("--key", "key.pub")}.items():
        yield from served("honest", (*PULL, *more), ("zoo", "key.pub"), {name: edited(lambda files: None)}, written, (0,))


def faults():
    for group in (honest, misbehaving, documents, signatures):
        yield from group()
