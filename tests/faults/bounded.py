# SPDX-License-Identifier: MIT
"""What is no regular file, claims more than it holds, or has no end; and outputs that take nothing."""
import io
import os
import shutil
import struct
import zipfile

import edit
from harness import Fault

ZERO = "/dev/zero"
CAPPED = 'ulimit -v 4000000; exec "$@"'  # kB: memory without bounds is a failure, not a swapping machine


def become(path, kind):
    """Puts something else in the place of a file."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "zero":
        path.symlink_to(ZERO)
    elif kind == "random":
        path.write_bytes(os.urandom(5000))
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "gone":
        pass


def readers():
    """name of what is read, inputs, the path, the command, the kinds that are faults there."""
    dump = ("dump", "--model", "model", "--max-tokens", "64", "--out", "out")
    fit = ("fit", "--dump", "served", "--recipe", "hadamard", "--clip", "off", "--out", "out")
    pull = ("pull", "me/m", "--zoo", "zoo", "--out", "out")
    verify = ("verify", "set", "--compare", "none", "--no-record")
    every, pipes = ("fifo", "folder", "zero", "random", "empty", "gone"), ("folder", "zero", "random", "empty", "gone")
    yield "manifest", ("set",), "set/manifest.json", ("convert", "set", "out"), every[:5]
    yield "rotations", ("set",), "set/rotations.h5", verify, every
    yield "serve-env", ("set",), "set/serve.env", verify, every
    yield "pt", ("pt1",), f"pt1/{edit.KEYS}", ("convert", "pt1", "out"), every
    yield "set", ("set",), "set", ("inspect", "set"), ("fifo", "folder", "zero", "random", "empty")
    for suffix in ("h5", "safetensors", "gguf"):
        yield suffix, (f"set.{suffix}",), f"set.{suffix}", ("convert", f"set.{suffix}", "out"), every
    yield "dump-chunk", ("served",), "served/layer_1/k/2.pt", ("fit", "--dump", "served", "--recipe", "oscar", "--clip",
                                                                "off", "--out", "out"), every
    yield "dump-lens", ("served",), "served/layer_1/seq_lens/2.pt", fit, every[:5]
    yield "dump-manifest", ("dump",), "dump/manifest.json", ("inspect", "dump"), every[:5]
    yield "statistics", ("stats", "stats2"), "stats", ("fit", "--stats", "stats", "stats2", "--recipe", "oscar", "--out",
                                                       "out"), every
    yield "tokens", ("model", "tokens.npy"), "tokens.npy", (*dump, "--tokens", "tokens.npy"), pipes
    yield "jsonl", ("model", "tokens.jsonl"), "tokens.jsonl", (*dump, "--tokens", "tokens.jsonl"), pipes
    yield "text", ("model", "text.txt"), "text.txt", (*dump, "--text", "text.txt"), pipes
    yield "config", ("model", "tokens.npy"), "model/config.json", (*dump, "--tokens", "tokens.npy"), every
    yield ("weights", ("model", "tokens.npy"), "model/model-00001-of-00001.safetensors", (*dump, "--tokens", "tokens.npy"),
           every)
    yield "weights-index", ("model", "tokens.npy"), "model/model.safetensors.index.json", (*dump, "--tokens",
                                                                                           "tokens.npy"), every[:5]
    yield "tokenizer", ("model", "text.txt"), "model/tokenizer.json", (*dump, "--text", "text.txt"), every
    yield "index", ("zoo",), "zoo/index.json", pull, every
    yield "zoo-manifest", ("zoo",), "zoo/me/m/latest/manifest.json", pull, every
    yield "zoo-file", ("zoo",), "zoo/me/m/latest/rotations.h5", pull, every
    yield "signature", ("zoo", "key.pub"), "zoo/me/m/latest/signature.json", (*pull, "--key", "key.pub"), every
    yield "key", ("zoo", "key.pub"), "key.pub", (*pull, "--key", "key.pub"), every
    yield "secret-key", ("set", "key.pem"), "key.pem", ("publish", "set", "--zoo", "out", "--name", "me/m", "--sign",
                                                        "key.pem"), every


def not_files():
    for name, inputs, path, args, kinds in readers():
        for kind in kinds:
            # A random file may be a text; in a folder on disk the manifest names the hash.
            yield Fault(f"bounded/{name}/{kind}",
                        f"{path} is {kind}: oscar {args[0]}",
                        args,
                        inputs,
                        lambda place, p=path, k=kind: become(place / p, k),
                        exits=(1, 2, 3) if args[0] == "verify" else (1, 2),
                        shell=CAPPED)


def texts():
    dump = ("dump", "--model", "model", "--text", "text.txt", "--max-tokens", "64", "--out", "out")
    for name, content in {
            "zeros": bytes(100_000), "utf16": "Guten Morgen".encode("utf-16"), "binary": bytes(range(256)) * 100,
            "latin1": "Grüße aus Köln. ".encode("latin-1") * 50
    }.items():
        yield Fault(f"bounded/text-kind/{name}",
                    f"a text is {name}",
                    dump, ("model", "text.txt"),
                    lambda place, c=content: (place / "text.txt").write_bytes(c))
    yield Fault("bounded/text-kind/huge",
                "a text of 300 MB, of which 64 tokens are asked for, is not read whole",
                dump, ("model", "text.txt"),
                lambda place: (place / "text.txt").open("a").truncate(300_000_000),
                exits=(0, 1),
                check=lambda _, done: f"took {done.seconds:.1f} s" if done.seconds > 5 else None,
                shell='ulimit -v 2000000; exec "$@"')
    for name, line in {
            "negative": "[1, -5, 3]", "beyond": "[1, 2048]", "text": '["a"]', "nested": "[[[1]]]", "float": "[1.5]",
            "huge": "[1e99]", "object": '{"tokens": 7}', "cut": "[1, 2"
    }.items():
        yield Fault(f"bounded/token-line/{name}",
                    f"a line of tokens is {line}", ("dump", "--model", "model", "--tokens", "tokens.jsonl", "--out", "out"),
                    ("model", "tokens.jsonl"),
                    lambda place, text=line: (place / "tokens.jsonl").write_text(text + "\n"))


def npy_header(text):
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def archive(members, compression):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return content.getvalue()


def claims():
    tokens = ("dump", "--model", "model", "--tokens", "tokens.npy", "--max-tokens", "64", "--out", "out")
    for name, shape in {
            "huge": "(1099511627776,)", "overflow": "(4294967296, 4294967296)", "negative": "(-1,)", "deep": "(1,) * 40",
            "text": "('a',)"
    }.items():
        yield Fault(f"bounded/npy/{name}",
                    f"an .npy claims the shape {shape}",
                    tokens, ("model", "tokens.npy"),
                    lambda place, s=shape: (place / "tokens.npy").write_bytes(
                        npy_header(f"{{'descr': '<i4', 'fortran_order': False, 'shape': {s}, }}\n") + bytes(64)),
                    shell=CAPPED)
    yield Fault(
        "bounded/npy/object", "an .npy holds pickled objects", tokens, ("model", "tokens.npy"), lambda place:
        (place / "tokens.npy").write_bytes(
            npy_header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n") + b"cos\nsystem\n(S'touch pwned'\ntR."))
    for name, length in {"huge": 1 << 62, "negative": (1 << 64) - 1, "beyond": 1 << 30, "zero": 0}.items():
        yield Fault(
            f"bounded/safetensors-length/{name}",
            f"a safetensors header claims {length} bytes", ("convert", "set.safetensors", "out"), ("set.safetensors",),
            lambda place, n=length: edit.text_file(place / "set.safetensors", lambda raw: struct.pack("<Q", n) + raw[8:]),
            shell=CAPPED)
    for name, offsets in {"beyond": [0, 1 << 40], "backwards": [65536, 0], "overlap": [0, 65537], "negative": [-1, 9]}.items():
        yield Fault(f"bounded/safetensors-offsets/{name}",
                    f"a tensor lies at {offsets}", ("convert", "set.safetensors", "out"), ("set.safetensors",),
                    lambda place, o=offsets: edit.safetensors(
                        place / "set.safetensors", lambda head: head["layers.0.key.rotation"].update(data_offsets=o)))
    for name, offset in {"tensors": 8, "entries": 16}.items():
        yield Fault(f"bounded/gguf/{name}",
                    f"a GGUF claims 2^60 {name}", ("convert", "set.gguf", "out"), ("set.gguf",),
                    lambda place, o=offset: edit.text_file(place / "set.gguf", lambda raw: raw[:o] + struct.pack(
                        "<Q", 1 << 60) + raw[o + 8:]),
                    shell=CAPPED)
    yield Fault("bounded/bomb/pt",
                "an archive grows to 100 MB", ("convert", "pt1", "out"), ("pt1",),
                lambda place: (place / "pt1" / edit.KEYS).write_bytes(
                    archive({"archive/data.pkl": bytes(100 << 20)}, zipfile.ZIP_DEFLATED)),
                shell=CAPPED)
    for name, pickle in {
            "system": b"\x80\x02cposix\nsystem\nX\x0b\x00\x00\x00touch pwned\x85R.",
            "exec": b"\x80\x02c__builtin__\nexec\nX\x01\x00\x00\x00a\x85R.", "loop": b"\x80\x02" + b"]" * 3_000_000 + b".",
            "memo": b"\x80\x02h\xff."
    }.items():
        yield Fault(f"bounded/pickle/{name}",
                    f"a .pt file's pickle calls for {name}", ("convert", "pt1", "out"), ("pt1",),
                    lambda place, p=pickle: (place / "pt1" / edit.KEYS).write_bytes(
                        archive({"archive/data.pkl": p, "archive/version": b"3\n"}, zipfile.ZIP_STORED)))


def outputs_that_take_nothing():
    fit = ("fit", "--dump", "dump", "--recipe", "hadamard", "--clip", "off", "--out", "out")
    commands = {
        "convert": (("convert", "set", "out.h5"), ("set",)), "fit": (fit, ("dump",)),
        "pull": (("pull", "me/m", "--zoo", "zoo", "--out", "out"), ("zoo",)),
        "publish": (("publish", "set", "--zoo", "out-zoo", "--name", "me/m"), ("set",)),
        "inspect-json": (("inspect", "set", "--json", "out.json"), ("set",)),
        "stats": (("fit", "--dump", "dump", "--recipe", "oscar", "--save-stats", "out"), ("dump",)),
        "render": (("zoo", "render", "--zoo", "zoo", "--out", "out.html"), ("zoo",)),
        "report": (("verify", "set", "--compare", "none", "--no-record", "--report", "out.html"), ("set",))
    }
    nothing = lambda folder, _: "something was left" if [
        path for path in folder.glob("out*") if path.name != "out-zoo" and not path.is_fifo()
    ] else None
    for name, (args, inputs) in commands.items():
        yield Fault(f"bounded/ulimit/{name}",
                    f"no file may grow past 1 kB (ulimit -f): {name}",
                    args,
                    inputs,
                    shell='ulimit -f 1; exec "$@"',
                    says="cannot write|too large",
                    check=nothing,
                    control=False)
    for name, args in {
            "inspect": ("inspect", "set"), "json": ("inspect", "set", "--json"), "help": ("fit", "--help"),
            "pull": ("pull", "me/m", "--zoo", "zoo")
    }.items():
        yield Fault(f"bounded/full/{name}",
                    f"stdout is a full disk: {name}",
                    args, ("set", "zoo"),
                    shell='exec "$@" >/dev/full',
                    says="cannot write",
                    control=False)
        yield Fault(f"bounded/closed/{name}",
                    f"stdout is closed: {name}",
                    args, ("set", "zoo"),
                    shell='exec "$@" >&-',
                    says="cannot write",
                    control=False)


def faults():
    for group in (not_files, texts, claims, outputs_that_take_nothing):
        yield from group()
