# SPDX-License-Identifier: MIT
"""JSON documents that parsers read differently, or that are not what they should be."""
import json

import edit
from harness import Fault


def textual(required):
    """{name: text -> text or bytes}"""
    last_member = lambda text, more: text.rstrip()[:-1] + more
    return {
        # The document with a key once more, before everything else: readers differ in which one counts.
        "twice": lambda text: text.replace("{", "{" + json.dumps(required[-1]) + ": 1, ", 1),
        "after": lambda text: text + "x",
        "second": lambda text: text + text,
        "nul": lambda text: text + "\0",
        "nul-inside": lambda text: text.replace(",", ",\0", 1),
        "cut": lambda text: text[:len(text) // 2],
        "empty": lambda text: "",
        "deep": lambda text: "[" * 100_000,
        "deep-member": lambda text: last_member(text, ',"x":' + "[" * 20_000 + "]" * 20_000 + "}"),
        "utf16": lambda text: text.encode("utf-16"),
        "no-utf8": lambda text: text.encode().replace(b'": "', b'": "\xff\xfe', 1),
        "list": lambda text: "[" + text + "]",
        "null": lambda text: "null",
        "comment": lambda text: "/* hello */" + text,
        "comma": lambda text: last_member(text, ",}"),
    }


def structural(required, schema):
    def change(edit_document):
        def apply(text):
            document = json.loads(text)
            edit_document(document)
            return json.dumps(document)

        return apply

    other = lambda value: "x" if isinstance(value, (int, float)) else 7
    cases = {}
    for name in required:
        cases[f"without-{name}"] = change(lambda document, n=name: document.pop(n))
        cases[f"type-{name}"] = change(lambda document, n=name: document.update({n: other(document[n])}))
    if schema:
        cases["schema"] = change(lambda document: document.update(schema="oscar.other.v1"))
        cases["version"] = change(lambda document: document.update(schema=document["schema"][:-1] + "9"))
    return cases


def numbers(path):
    def put(literal):
        def change(text):
            document = json.loads(text)
            edit.put(document, path, "\uffffhere")
            return json.dumps(document, ensure_ascii=False).replace('"\uffffhere"', literal)

        return change

    return {f"number-{name}": put(literal) for name, literal in {
        "nan": "NaN", "infinity": "Infinity", "huge": "1e999", "negative": "-1", "large": "1" + "0" * 30, "half": "0.5",
        "text": '"1"'}.items()}


def file_at(path):
    def writer(place, change):
        changed = change((place / path).read_text())
        (place / path).write_bytes(changed if isinstance(changed, bytes) else changed.encode())

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
        edit.write_safetensors(place / path, None, data,
                               lambda _: changed if isinstance(changed, bytes) else changed.encode())

    return writer


def schema_required(name):
    from faults import PROJECT
    return json.loads((PROJECT / f"schemas/oscar.{name}.v1.schema.json").read_text())["required"]


def documents():
    """name, inputs, command, writer, required members, has a schema, path of a number."""
    pull, out = ("pull", "me/m", "--zoo", "zoo", "--out", "out"), ("--out", "out")
    dump = ("dump", "--model", "model", "--max-tokens", "64", *out)
    yield ("manifest", ("set",), ("convert", "set", "out"), file_at("set/manifest.json"), schema_required("rotation_set"),
           True, "windows.sink")
    yield "index", ("zoo",), pull, file_at("zoo/index.json"), schema_required("zoo_index"), True, "entries.0.total_size"
    yield ("signature", ("zoo", "key.pub"), (*pull, "--key", "key.pub"), file_at("zoo/me/m/latest/signature.json"),
           schema_required("signature"), True, None)
    yield ("dump", ("dump",), ("fit", "--dump", "dump", "--recipe", "hadamard", "--clip", "off", *out),
           file_at("dump/manifest.json"), schema_required("dump"), True, "layers.1.chunks.0.tokens")
    yield ("statistics", ("stats",), ("fit", "--stats", "stats", "--recipe", "oscar", *out),
           metadata_at("stats", "manifest"), schema_required("statistics"), True, "layers.1.key_dim")
    yield ("config", ("model", "tokens.npy"), (*dump, "--tokens", "tokens.npy"), file_at("model/config.json"),
           ["hidden_size", "num_hidden_layers", "num_attention_heads", "model_type"], False, "intermediate_size")
    yield ("tokenizer", ("model", "text.txt"), (*dump, "--text", "text.txt"), file_at("model/tokenizer.json"), ["model"],
           False, None)
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
        texts = {name: change for name, change in textual(required).items() if document in ALL or name in FEW}
        for name, change in (texts | structural(required, schema) | (numbers(number) if number else {})).items():
            if not harmless(document, name):
                yield Fault(f"json/{document}/{name}", args, inputs, lambda place, w=writer, c=change: w(place, c))
