# SPDX-License-Identifier: MIT
"""What is no regular file, claims more than it holds, or has no end; and outputs that take nothing."""
import io
import os
import shutil
import struct
import zipfile

import edit
from harness import Fault, table

CAPPED = 'ulimit -v 4000000; exec "$@"'  # kB: memory without bounds is a failure, not a swapping machine
OUT = ("--out", "out")
DUMP = ("dump", "--model", "model", "--max-tokens", "64", *OUT)
TOKENS, TEXT = (*DUMP, "--tokens", "tokens.npy"), (*DUMP, "--text", "text.txt")
PULL = ("pull", "me/m", "--zoo", "zoo", *OUT)
VERIFY = ("verify", "set", "--compare", "none", "--no-record")

BECOME = {
    "fifo": os.mkfifo, "folder": os.mkdir, "zero": lambda path: path.symlink_to("/dev/zero"),
    "random": lambda path: path.write_bytes(os.urandom(5000)), "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: None
}
EVERY, PIPES = tuple(BECOME), ("folder", "zero", "random", "empty", "gone")


def become(path, kind):
    """Puts something else in the place of a file."""
    def plant(place):
        file = place / path
        shutil.rmtree(file) if file.is_dir() else file.unlink()
        BECOME[kind](file)

    return plant


def readers():
    """name of what is read, inputs, the path, the command, the kinds that are faults there."""
    fit, tokens, zoo = ("fit", "--dump", "served", "--clip", "off", *OUT), ("model", "tokens.npy"), "zoo/me/m/latest/"
    yield "manifest", ("set",), "set/manifest.json", ("convert", "set", "out"), EVERY[:5]
    yield "rotations", ("set",), "set/rotations.h5", VERIFY, EVERY
    yield "serve-env", ("set",), "set/serve.env", VERIFY, EVERY
    yield "pt", ("pt1",), f"pt1/{edit.KEYS}", ("convert", "pt1", "out"), EVERY
    yield "set", ("set",), "set", ("inspect", "set"), EVERY[:5]
    for suffix in ("h5", "safetensors", "gguf"):
        yield suffix, (f"set.{suffix}",), f"set.{suffix}", ("convert", f"set.{suffix}", "out"), EVERY
    yield "dump-chunk", ("served",), "served/layer_1/k/2.pt", (*fit, "--recipe", "oscar"), EVERY
    yield "dump-lens", ("served",), "served/layer_1/seq_lens/2.pt", (*fit, "--recipe", "hadamard"), EVERY[:5]
    yield "dump-manifest", ("dump",), "dump/manifest.json", ("inspect", "dump"), EVERY[:5]
    yield "statistics", ("stats",), "stats", ("fit", "--stats", "stats", "--recipe", "oscar", *OUT), EVERY
    yield "tokens", tokens, "tokens.npy", TOKENS, PIPES
    yield "jsonl", ("model", "tokens.jsonl"), "tokens.jsonl", (*DUMP, "--tokens", "tokens.jsonl"), PIPES
    yield "text", ("model", "text.txt"), "text.txt", TEXT, PIPES
    yield "config", tokens, "model/config.json", TOKENS, EVERY
    yield "weights", tokens, "model/model-00001-of-00001.safetensors", TOKENS, EVERY
    yield "weights-index", tokens, "model/model.safetensors.index.json", TOKENS, EVERY[:5]
    yield "tokenizer", ("model", "text.txt"), "model/tokenizer.json", TEXT, EVERY
    yield "index", ("zoo",), "zoo/index.json", PULL, EVERY
    yield "zoo-manifest", ("zoo",), f"{zoo}manifest.json", PULL, EVERY
    yield "zoo-file", ("zoo",), f"{zoo}rotations.h5", PULL, EVERY
    yield "signature", ("zoo", "key.pub"), f"{zoo}signature.json", (*PULL, "--key", "key.pub"), EVERY
    yield "key", ("zoo", "key.pub"), "key.pub", (*PULL, "--key", "key.pub"), EVERY
    yield ("secret-key", ("set", "key.pem"), "key.pem",
           ("publish", "set", "--zoo", "out", "--name", "me/m", "--sign", "key.pem"), EVERY)


def not_files():
    for name, inputs, path, args, kinds in readers():
        # A random file may be a text; in a folder on disk the manifest names the hash.
        yield from table(f"bounded/{name}", args, inputs, {kind: become(path, kind) for kind in kinds},
                         exits=(1, 2, 3) if args[0] == "verify" else (1, 2), shell=CAPPED)


def written(path, content):
    return lambda place: (place / path).write_bytes(content)


def texts():
    inputs = ("model", "text.txt")
    yield from table("bounded/text-kind", TEXT, inputs, {name: written("text.txt", content) for name, content in {
        "zeros": bytes(100_000), "utf16": "Guten Morgen".encode("utf-16"), "binary": bytes(range(256)) * 100,
        "latin1": "Grüße aus Köln. ".encode("latin-1") * 50}.items()})
    # Of 300 MB 64 tokens are asked for.
    yield Fault("bounded/text-kind/huge", TEXT, inputs, lambda place: (place / "text.txt").open("a").truncate(300_000_000),
                exits=(0, 1), check=lambda _, done: f"took {done.seconds:.1f} s" if done.seconds > 5 else None,
                shell='ulimit -v 2000000; exec "$@"')
    yield from table("bounded/token-line", ("dump", "--model", "model", "--tokens", "tokens.jsonl", *OUT),
                     ("model", "tokens.jsonl"), {name: written("tokens.jsonl", line.encode() + b"\n") for name, line in {
                         "negative": "[1, -5, 3]", "beyond": "[1, 2048]", "text": '["a"]', "nested": "[[[1]]]",
                         "float": "[1.5]", "huge": "[1e99]", "object": '{"tokens": 7}', "cut": "[1, 2"}.items()})


def npy(header, body):
    text = f"{{{header}, }}\n".encode()
    return written("tokens.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body)


def archive(members, compression=zipfile.ZIP_STORED):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return written(f"pt1/{edit.KEYS}", content.getvalue())


def claims():
    inputs, convert = ("model", "tokens.npy"), ("convert", "set.safetensors", "out")
    yield from table("bounded/npy", TOKENS, inputs, shell=CAPPED, plants={
        name: npy(f"'descr': '<i4', 'fortran_order': False, 'shape': {shape}", bytes(64)) for name, shape in {
            "huge": "(1099511627776,)", "overflow": "(4294967296, 4294967296)", "negative": "(-1,)", "deep": "(1,) * 40",
            "text": "('a',)"}.items()})
    yield Fault("bounded/npy/object", TOKENS, inputs,
                npy("'descr': '|O', 'fortran_order': False, 'shape': (1,)", b"cos\nsystem\n(S'touch pwned'\ntR."))

    def number_at(path, offset, number):
        return lambda place: edit.text_file(place / path, lambda raw: raw[:offset] + struct.pack("<Q", number) + raw[offset + 8:])

    def offsets(pair):
        return lambda place: edit.safetensors(place / "set.safetensors",
                                              lambda head: head["layers.0.key.rotation"].update(data_offsets=pair))

    yield from table("bounded/safetensors-length", convert, ("set.safetensors",), shell=CAPPED, plants={
        name: number_at("set.safetensors", 0, length)
        for name, length in {"huge": 1 << 62, "negative": (1 << 64) - 1, "beyond": 1 << 30, "zero": 0}.items()})
    yield from table("bounded/safetensors-offsets", convert, ("set.safetensors",), {name: offsets(pair) for name, pair in {
        "beyond": [0, 1 << 40], "backwards": [65536, 0], "overlap": [0, 65537], "negative": [-1, 9]}.items()})
    yield from table("bounded/gguf", ("convert", "set.gguf", "out"), ("set.gguf",), shell=CAPPED, plants={
        name: number_at("set.gguf", offset, 1 << 60) for name, offset in {"tensors": 8, "entries": 16}.items()})
    yield Fault("bounded/bomb/pt", ("convert", "pt1", "out"), ("pt1",),
                archive({"archive/data.pkl": bytes(100 << 20)}, zipfile.ZIP_DEFLATED), shell=CAPPED)
    yield from table("bounded/pickle", ("convert", "pt1", "out"), ("pt1",), {
        name: archive({"archive/data.pkl": pickle, "archive/version": b"3\n"}) for name, pickle in {
            "system": b"\x80\x02cposix\nsystem\nX\x0b\x00\x00\x00touch pwned\x85R.",
            "exec": b"\x80\x02c__builtin__\nexec\nX\x01\x00\x00\x00a\x85R.", "loop": b"\x80\x02" + b"]" * 3_000_000 + b".",
            "memo": b"\x80\x02h\xff."}.items()})


def outputs_that_take_nothing():
    def nothing(folder, _):
        left = [path for path in folder.glob("out*") if path.name != "out-zoo" and not path.is_fifo()]
        return "something was left" if left else None

    for name, (args, inputs) in {
            "convert": (("convert", "set", "out.h5"), ("set",)),
            "fit": (("fit", "--dump", "dump", "--recipe", "hadamard", "--clip", "off", *OUT), ("dump",)),
            "pull": (PULL, ("zoo",)), "publish": (("publish", "set", "--zoo", "out-zoo", "--name", "me/m"), ("set",)),
            "verify-json": ((*VERIFY, "--json", "out.json"), ("set",)),
            "stats": (("fit", "--dump", "dump", "--recipe", "oscar", "--save-stats", "out"), ("dump",)),
            "report": ((*VERIFY, "--report", "out.html"), ("set",))}.items():
        yield Fault(f"bounded/ulimit/{name}", args, inputs, shell='ulimit -f 1; exec "$@"', says="cannot write|too large",
                    check=nothing, control=False)
    for name, args in {"inspect": ("inspect", "set"), "json": ("inspect", "set", "--json"), "help": ("fit", "--help"),
                       "pull": ("pull", "me/m", "--zoo", "zoo")}.items():
        for kind, shell in {"full": 'exec "$@" >/dev/full', "closed": 'exec "$@" >&-'}.items():
            yield Fault(f"bounded/{kind}/{name}", args, ("set", "zoo"), shell=shell, says="cannot write", control=False)


def faults():
    for group in (not_files, texts, claims, outputs_that_take_nothing):
        yield from group()
