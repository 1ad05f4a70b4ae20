# SPDX-License-Identifier: MIT
"""Makes token files of five domains, needles, quotations and tasks for bench_real_model.py.

real_model_texts.py --model FILE.gguf --packages DIR --out DIR     scripts/real_model.sh fetches both
DIR holds unpacked Debian packages: debian-history (prose), debian-faq (dialogue, as turns of the model's chat template if its file has one),
debian-reference-en (documentation), debian-reference-de (German). Code is this Python's standard library. Each domain is
cut into sequences of 4,096 tokens, which are dealt in turn to three parts that share nothing: measure, calibrate, choose.
Written: DOMAIN_PART.npy, calibrate.npy and calibrate_8k.npy (all domains in equal parts, together 32K and 8K tokens),
long_16k.npy and long_32k.npy (documentation, German and code that no part has), needles_2k.npy, quotes_2k.npy, their like at
other lengths and KIND_LENGTH.npy of real_model_tasks.py, each with its _answers.npy (tokens of the answer at the end of each row),
texts.json (sources and counts).
"""
import argparse
import gzip
import itertools
import json
import platform
import random
import re
import subprocess
import sysconfig
from pathlib import Path

import numpy
import real_model_tasks
import transformers

LENGTH = 4096
PARTS = ("measure", "calibrate", "choose", "measure", "calibrate")  # sequence i of a domain goes to part i of this cycle
MODULES = ("argparse.py", "ast.py", "dataclasses.py", "difflib.py", "doctest.py", "inspect.py", "pathlib.py", "statistics.py",
           "subprocess.py", "tarfile.py", "threading.py", "typing.py")
LONG_MODULES = ("_pydecimal.py", "turtle.py", "pickletools.py", "zipfile.py", "pydoc.py")
CALIBRATION, CUE, PASSAGE = 32768, 8, 64
LONG = {"16k": 16384, "32k": 32768}
# Needles and quotations of each length.
PROBES = {"2k": (2048, 96, 48), "7k": (7168, 24, 24), "16k": (16000, 16, 0), "30k": (30000, 8, 8)}
TASKS = {"4k": 4096, "16k": 16000, "32k": 32000}
PROMPTS_OF_A_TASK = 24
HEADING = re.compile(r"\n(?:\d+\.)+ ((?:[^\n]+\n)+)\n")


def read_text(packages, package, name):
    path = next(packages.rglob(name), None)
    if path is None:
        raise SystemExit(f"{packages}: has no {name}; unpack the Debian package {package} there")
    return gzip.decompress(path.read_bytes()).decode()


def dialogue(tokenizer, text):
    """Questions and answers as chats: numbered headings of the body, and what follows each."""
    text = text.replace("\u00a0", " ")
    pieces = HEADING.split(text[text.index("\nChapter 1."):])
    turns = []
    for heading, answer in zip(pieces[1::2], pieces[2::2]):
        question, answer = " ".join(heading.split()), re.sub(r"(?m)^    ", "", answer.split("\nChapter ")[0]).strip()
        if answer:
            turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    if tokenizer.chat_template is None:
        return "\n".join(turn["content"] for turn in turns)
    return tokenizer.apply_chat_template(turns, tokenize=False)


def modules(names):
    return [(Path(sysconfig.get_paths()["stdlib"]) / name).read_text() for name in names]


def documents(tokenizer, packages):
    """Of each domain: its documents, where they are from, and their licence."""
    debian = lambda name: (f"Debian package {name}", "GPL-2+")
    read = lambda package, name: read_text(packages, package, name)
    return {
        "prose": ([read("debian-history", "project-history.en.txt.gz"), read("debian-history", "constitution.txt.gz")],
                  *debian("debian-history")),
        "dialogue": ([dialogue(tokenizer, read("debian-faq", "debian-faq.en.txt.gz"))], *debian("debian-faq")),
        "documentation": ([read("debian-reference-en", "debian-reference.en.txt.gz")], *debian("debian-reference-en")),
        "german": ([read("debian-reference-de", "debian-reference.de.txt.gz")], *debian("debian-reference-de")),
        "code": (modules(MODULES), f"Python {platform.python_version()}, standard library", "PSF-2.0"),
    }


def begin_of(tokenizer):
    """The token that the model knows a beginning by."""
    end_of_text = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    return tokenizer.bos_token_id if end_of_text in (None, tokenizer.unk_token_id) else end_of_text


def ids_of(tokenizer, texts):
    begin = begin_of(tokenizer)
    return list(itertools.chain.from_iterable([begin, *tokenizer(text, add_special_tokens=False).input_ids] for text in texts))[1:]


def sequences(tokenizer, ids, most, length=LENGTH):
    """(n, length) token ids; every sequence, as every document, begins with the token that the model knows a beginning by."""
    count = min(most, len(ids) // (length - 1))
    rows = numpy.array(ids[:count * (length - 1)], dtype=numpy.int32).reshape(count, length - 1)
    return numpy.concatenate([numpy.full((count, 1), begin_of(tokenizer), dtype=numpy.int32), rows], axis=1)


class Probes:
    """Rows that end with an answer which stands earlier in them, in a haystack of measured text."""

    def __init__(self, tokenizer, rows, seed):
        self.encode = lambda text: tokenizer(text, add_special_tokens=False).input_ids
        self.rng = random.Random(seed)
        self.ids = rows[:, 1:].reshape(-1).tolist()
        words = re.findall(r"\b[a-z]{4,9}\b", tokenizer.decode(self.ids))
        self.words = sorted(word for word in set(words) if words.count(word) >= 4)
        self.begin = int(rows[0, 0])

    def haystack(self, length):
        at = self.rng.randrange(len(self.ids) - length)
        return self.ids[at:at + length]

    def quotation(self, length):
        """A passage from the middle half of the text, its first tokens given, the rest to be repeated word by word."""
        tail = self.encode("\n\nOne passage of the text above, word by word:\n\n")
        body = self.haystack(length - 1 - len(tail) - PASSAGE)
        at = len(body) // 4 + self.rng.randrange(len(body) // 2)
        return [self.begin] + body + tail + body[at:at + PASSAGE], PASSAGE - CUE


def write(folder, name, make, count, length):
    if not count:
        return
    rows, answers = zip(*(make(length) for _ in range(count)))
    assert {len(row) for row in rows} == {length}, "rows of one length need no padding"
    numpy.save(folder / f"{name}.npy", numpy.array(rows, dtype=numpy.int32))
    numpy.save(folder / f"{name}_answers.npy", numpy.array(answers, dtype=numpy.int32))


def version_of(source):
    name = source.removeprefix("Debian package ")
    shown = subprocess.run(["apt-cache", "policy", name], capture_output=True, text=True).stdout if name != source else ""
    found = re.search(r"Candidate: (\S+)", shown)
    return f"{source} {found[1]}" if found else source


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--model", "--packages", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--sequences", type=int, default=20, help="of a domain, at most; all parts together")
    parser.add_argument("--context", type=int, default=32768, help="tokens that the model can read; no row is longer")
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    tokenizer, out = transformers.AutoTokenizer.from_pretrained(options.model.parent, gguf_file=options.model.name), options.out
    out.mkdir(parents=True, exist_ok=True)
    about, parts, unused = {}, {}, {"code": ids_of(tokenizer, modules(LONG_MODULES))}
    for domain, (texts, source, licence) in documents(tokenizer, options.packages).items():
        ids = ids_of(tokenizer, texts)
        rows = sequences(tokenizer, ids, options.sequences)
        unused.setdefault(domain, ids[len(rows) * (LENGTH - 1):])
        if len(rows) < len(PARTS):
            raise SystemExit(f"{source}: gives {len(rows)} sequences of {LENGTH} tokens; {len(PARTS)} are needed")
        place = numpy.array([PARTS[i % len(PARTS)] for i in range(len(rows))])
        for part in dict.fromkeys(PARTS):
            parts[domain, part] = rows[place == part]
            numpy.save(out / f"{domain}_{part}.npy", parts[domain, part])
        about[domain] = {"source": version_of(source), "licence": licence, "sequences": len(rows),
                         "measured": int((place == "measure").sum())}
    least = min(len(parts[domain, "calibrate"]) for domain in about)
    mixed = numpy.stack([parts[domain, "calibrate"][i] for i in range(least) for domain in about])
    numpy.save(out / "calibrate.npy", mixed[:, :CALIBRATION // len(mixed)])
    numpy.save(out / "calibrate_8k.npy", mixed[:len(about), :8192 // len(about)])
    measured = numpy.concatenate([parts[domain, "measure"][:2] for domain in about])
    probes = Probes(tokenizer, measured, options.seed)
    line_ends = {token for token in set(unused["code"]) if tokenizer.decode([token]).endswith("\n")}
    tasks = real_model_tasks.Tasks(probes.encode, probes.begin, probes.ids, unused["code"], line_ends, probes.words, probes.rng)
    for name, (length, needles, quotes) in PROBES.items():
        if length > options.context:
            continue
        write(out, f"needles_{name}", tasks.multikey_1, needles, length)
        write(out, f"quotes_{name}", probes.quotation, quotes, length)
    for (name, length), kind in itertools.product(TASKS.items(), real_model_tasks.KINDS):
        if length <= options.context:
            write(out, f"{kind}_{name}", getattr(tasks, kind), PROMPTS_OF_A_TASK, length)
    for name, length in LONG.items():
        if length <= options.context:
            numpy.save(out / f"long_{name}.npy", numpy.concatenate(
            [sequences(tokenizer, unused[domain], 1, length) for domain in ("code", "documentation", "german")]))
    document = {"sequence_length": LENGTH, "begins_with": tokenizer.convert_ids_to_tokens(begin_of(tokenizer)), "seed": options.seed, "domains": about,
                "parts": "sequences of each domain in turn: " + ", ".join(PARTS)}
    (out / "texts.json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
