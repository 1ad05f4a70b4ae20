# SPDX-License-Identifier: MIT
"""JSON that readers could disagree about, or that is not what its place asks for."""
import json

import edit
from harness import Fault

NEW_VERSION = "9"


def reordered(text, key, value):
    """The document with `key` once more, before everything else: readers differ in which one counts."""
    return text.replace("{", "{" + json.dumps(key) + ": " + json.dumps(value) + ", ", 1)


def textual(required):
    """{name: (what, text -> text or bytes)}"""
    first = required[-1]
    yield "twice", "a key stands twice", lambda text: reordered(text, first, 1)
    yield "after", "bytes follow the end", lambda text: text + "x"
    yield "second", "a second document follows", lambda text: text + text
    yield "nul", "a NUL follows the end", lambda text: text + "\0"
    yield "nul-inside", "a NUL stands inside", lambda text: text.replace(",", ",\0", 1)
    yield "cut", "it is cut in the middle", lambda text: text[:len(text) // 2]
    yield "empty", "it is empty", lambda text: ""
    yield "deep", "it is nested 100,000 deep", lambda text: "[" * 100_000
    yield "deep-member", "a member is nested 20,000 deep", lambda text: text.rstrip(
    )[:-1] + ',"x":' + "[" * 20_000 + "]" * 20_000 + "}"
    yield "utf16", "it is UTF-16", lambda text: text.encode("utf-16")
    yield "no-utf8", "a text is no UTF-8", lambda text: text.encode().replace(b'": "', b'": "\xff\xfe', 1)
    yield "list", "it is a list", lambda text: "[" + text + "]"
    yield "null", "it is null", lambda text: "null"
    yield "comment", "it has a comment", lambda text: "/* hello */" + text
    yield "comma", "a comma is one too many", lambda text: text.rstrip()[:-1] + ",}"


def structural(required, schema=True):
    def change(edit_document):
        def apply(text):
            document = json.loads(text)
            edit_document(document)
            return json.dumps(document)

        return apply

    for name in required:
        yield f"without-{name}", f"it lacks {name}", change(lambda document, n=name: document.pop(n))
        yield f"type-{name}", f"{name} is of another type", change(
            lambda document, n=name: document.update({n: 7 if not isinstance(document[n], (int, float)) else "x"}))
    if schema:
        yield "schema", "its schema is of another kind", change(lambda document: document.update(schema="oscar.other.v1"))
        yield "version", "its schema is of a later version", change(
            lambda document: document.update(schema=document["schema"][:-1] + NEW_VERSION))


def numbers(path):
    for name, literal in {
            "nan": "NaN", "infinity": "Infinity", "huge": "1e999", "negative": "-1", "large": "1" + "0" * 30, "half": "0.5",
            "text": '"1"'
    }.items():

        def change(text, literal=literal):
            document = json.loads(text)
            edit.put(document, path, "\uffffhere")
            return json.dumps(document, ensure_ascii=False).replace('"\uffffhere"', literal)

        yield f"number-{name}", f"{path} is {literal[:12]}", change


def file_at(path, rehash=None):
    def writer(place, change):
        changed = change((place / path).read_text())
        (place / path).write_bytes(changed if isinstance(changed, bytes) else changed.encode())
        if rehash:
            rehash(place)

    return writer


def metadata_at(path, key):
    def writer(place, change):
        def apply(text):
            changed = change(text)
            return changed.decode("utf-8", "surrogateescape") if isinstance(changed, bytes) else changed

        edit.embedded(place / path, key, apply)

    return writer


def header_of(path):
    def writer(place, change):
        header, data = edit.read_safetensors(place / path)
        changed = change(json.dumps(header, separators=(", ", ": ")))
        edit.write_safetensors(place / path, None, data, lambda _: changed
                               if isinstance(changed, bytes) else changed.encode())

    return writer


def schema_required(name):
    from faults import PROJECT
    return json.loads((PROJECT / f"schemas/oscar.{name}.v1.schema.json").read_text())["required"]


def documents():
    """name, inputs, command, writer, required members, has a schema, path of a number, exit statuses."""
    pull = ("pull", "me/m", "--zoo", "zoo", "--out", "out")

    def zoo_manifest(place):
        edit.rehash_zoo(place / "zoo", hashes=False)

    yield "manifest", ("set",), ("convert", "set",
                                  "out"), file_at("set/manifest.json"), schema_required("rotation_set"), True, "windows.sink"
    yield "index", ("zoo",), pull, file_at("zoo/index.json"), schema_required("zoo_index"), True, "entries.0.total_size"
    yield ("signature", ("zoo", "key.pub"), (*pull, "--key", "key.pub"), file_at("zoo/me/m/latest/signature.json"),
           schema_required("signature"), True, None)
    yield ("dump", ("dump",), ("fit", "--dump", "dump", "--recipe", "hadamard", "--clip", "off", "--out", "out"),
           file_at("dump/manifest.json"), schema_required("dump"), True, "layers.1.chunks.0.tokens")
    yield ("statistics", ("stats", "stats2"), ("fit", "--stats", "stats", "stats2", "--recipe", "oscar", "--value-objective",
                                               "sst", "--out", "out"), metadata_at("stats", "manifest"),
           schema_required("statistics"), True, "layers.1.key_dim")
    yield ("config", ("model", "tokens.npy"), ("dump", "--model", "model", "--tokens",
                                               "tokens.npy", "--max-tokens", "64", "--out", "out"),
           file_at("model/config.json"), ["hidden_size", "num_hidden_layers", "num_attention_heads",
                                          "model_type"], False, "intermediate_size")
    yield ("tokenizer", ("model", "text.txt"), ("dump", "--model", "model", "--text", "text.txt", "--max-tokens", "64",
                                                "--out", "out"), file_at("model/tokenizer.json"), ["model"], False, None)
    yield ("header", ("set.safetensors",), ("convert", "set.safetensors", "out"), header_of("set.safetensors"),
           ["layers.1.key.rotation"], False, None)


# Every fault is planted in what a stranger's server sends; in the others those that parsers differ in.
FEW = ("twice", "after", "nul", "cut", "deep", "no-utf8", "list")
ALL = ("manifest", "index")


def harmless(document, name):
    """What is no fault in a document of this kind."""
    return (document in ("config", "tokenizer") and name in ("deep-member", "number-half", "number-text")
            or document == "index" and name in ("number-half",)
            or document == "statistics" and name == "no-utf8")  # the writer of the file makes it a text again


def faults():
    for document, inputs, args, writer, required, schema, number in documents():
        cases = [*textual(required), *structural(required, schema), *(numbers(number) if number else ())]
        if document not in ALL:
            cases = [
                case for case in cases
                if case[0] in FEW or not case[0].startswith(tuple(name for name, *_ in textual(required)))
            ]
        for name, what, change in cases:
            if harmless(document, name):
                continue
            yield Fault(f"json/{document}/{name}",
                        f"{document}: {what}",
                        args,
                        inputs,
                        lambda place, w=writer, c=change: w(place, c),
                        exits=(1,))
