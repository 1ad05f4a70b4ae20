# SPDX-License-Identifier: MIT
"""Makes token files of five domains, needles, quotations and prompts for bench_real_model.py.

real_model_texts.py --model FILE.gguf --packages DIR --out DIR     scripts/real_model.sh fetches both
DIR holds unpacked Debian packages: debian-history (prose), debian-faq (dialogue, as turns of the model's chat template),
debian-reference-en (documentation), debian-reference-de (German). Code is this Python's standard library. Each domain is
cut into sequences of 4,096 tokens, which are dealt in turn to three parts that share nothing: measure, calibrate, choose.
Written: DOMAIN_PART.npy, calibrate.npy and calibrate_8k.npy (all domains in equal parts, together 32K and 8K tokens),
needles_2k.npy, quotes_2k.npy and those of 7k with their _answers.npy (tokens of the answer at the end of each row), prompts.npy, texts.json (sources and counts).
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

import gguf
import numpy
import tokenizers

LENGTH, BEGIN = 4096, "<|endoftext|>"
PARTS = ("measure", "calibrate", "choose", "measure", "calibrate")  # sequence i of a domain goes to part i of this cycle
MODULES = ("argparse.py", "ast.py", "dataclasses.py", "difflib.py", "doctest.py", "inspect.py", "pathlib.py", "statistics.py",
           "subprocess.py", "tarfile.py", "threading.py", "typing.py")
CALIBRATION, CUE, PASSAGE = 32768, 8, 64
HEADING = re.compile(r"\n(?:\d+\.)+ ((?:[^\n]+\n)+)\n")


def tokenizer_of(model):
    """The byte-level BPE of SmolLM2's GGUF file, as the tokenizers library runs it."""
    fields = gguf.GGUFReader(model).fields
    strings = lambda name: [bytes(fields[name].parts[i]).decode() for i in fields[name].data]
    tokens, merges = strings("tokenizer.ggml.tokens"), strings("tokenizer.ggml.merges")
    kinds = [int(fields["tokenizer.ggml.token_type"].parts[i][0]) for i in fields["tokenizer.ggml.token_type"].data]
    bpe = tokenizers.models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[tuple(m.split(" ")) for m in merges])
    tokenizer = tokenizers.Tokenizer(bpe)
    steps = [tokenizers.pre_tokenizers.Digits(individual_digits=True), tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(steps)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, kinds) if kind == gguf.TokenType.CONTROL])
    return tokenizer


def read_text(packages, package, name):
    path = next(packages.rglob(name), None)
    if path is None:
        raise SystemExit(f"{packages}: has no {name}; unpack the Debian package {package} there")
    return gzip.decompress(path.read_bytes()).decode()


def dialogue(text):
    """Questions and answers as turns of a chat: numbered headings of the body, and what follows each."""
    text = text.replace("\u00a0", " ")
    pieces = HEADING.split(text[text.index("\nChapter 1."):])
    turns = []
    for heading, answer in zip(pieces[1::2], pieces[2::2]):
        question, answer = " ".join(heading.split()), re.sub(r"(?m)^    ", "", answer.split("\nChapter ")[0]).strip()
        if answer:
            turns.append(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n")
    return "".join(turns)


def documents(packages):
    """Of each domain: its documents, where they are from, and their licence."""
    library = Path(sysconfig.get_paths()["stdlib"])
    debian = lambda name: (f"Debian package {name}", "GPL-2+")
    read = lambda package, name: read_text(packages, package, name)
    return {
        "prose": ([read("debian-history", "project-history.en.txt.gz"), read("debian-history", "constitution.txt.gz")],
                  *debian("debian-history")),
        "dialogue": ([dialogue(read("debian-faq", "debian-faq.en.txt.gz"))], *debian("debian-faq")),
        "documentation": ([read("debian-reference-en", "debian-reference.en.txt.gz")], *debian("debian-reference-en")),
        "german": ([read("debian-reference-de", "debian-reference.de.txt.gz")], *debian("debian-reference-de")),
        "code": ([(library / name).read_text() for name in MODULES], f"Python {platform.python_version()}, standard library", "PSF-2.0"),
    }


def sequences(tokenizer, texts, most):
    """(n, 4096) token ids; every sequence, as every document, begins with the token that the model knows a beginning by."""
    begin = tokenizer.token_to_id(BEGIN)
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    ids = list(itertools.chain.from_iterable([begin, *each.ids] for each in encoded))[1:]
    count = min(most, len(ids) // (LENGTH - 1))
    rows = numpy.array(ids[:count * (LENGTH - 1)], dtype=numpy.int32).reshape(count, LENGTH - 1)
    return numpy.concatenate([numpy.full((count, 1), begin, dtype=numpy.int32), rows], axis=1)


class Probes:
    """Rows that end with an answer which stands earlier in them, in a haystack of measured text."""

    def __init__(self, tokenizer, rows, seed):
        self.encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        self.tokenizer, self.rng, self.rows = tokenizer, random.Random(seed), rows
        self.ids = rows[:, 1:].reshape(-1).tolist()
        words = re.findall(r"\b[a-z]{4,9}\b", tokenizer.decode(self.ids))
        self.words = sorted(word for word in set(words) if words.count(word) >= 4)
        self.begin = int(rows[0, 0])

    def haystack(self, length):
        at = self.rng.randrange(len(self.ids) - length)
        return self.ids[at:at + length]

    def needle(self, length, kinds=4):
        """Four codes of the same kind, of which one is asked for."""
        words = self.rng.sample(self.words, kinds)
        codes = ["".join(self.rng.choice("0123456789") for _ in range(6)) for _ in words]
        facts = [self.encode(f"\nThe secret code for {word} is {code}.\n") for word, code in zip(words, codes)]
        asked = self.rng.randrange(kinds)
        question = self.encode(f"\nQuestion: what is the secret code for {words[asked]}?\n"
                               f"Answer: the secret code for {words[asked]} is ")
        answer = self.encode(f"{codes[asked]}.")
        body = self.haystack(length - 1 - sum(map(len, facts)) - len(question) - len(answer))
        places = sorted(self.rng.randrange(len(body) - min(400, len(body) // 2)) for _ in facts)
        row, last = [self.begin], 0
        for place, fact in zip(places, facts):
            row += body[last:place] + fact
            last = place
        return row + body[last:] + question + answer, len(answer)

    def quotation(self, length):
        """A passage from the middle half of the text, its first tokens given, the rest to be repeated word by word."""
        tail = self.encode("\n\nOne passage of the text above, word by word:\n\n")
        body = self.haystack(length - 1 - len(tail) - PASSAGE)
        at = len(body) // 4 + self.rng.randrange(len(body) // 2)
        return [self.begin] + body + tail + body[at:at + PASSAGE], PASSAGE - CUE

    def write(self, folder, name, make, count, length):
        rows, answers = zip(*(make(length) for _ in range(count)))
        longest = max(map(len, rows))
        assert all(len(row) == longest for row in rows), "rows of one length need no padding"
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
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    tokenizer, out = tokenizer_of(options.model), options.out
    out.mkdir(parents=True, exist_ok=True)
    about, parts = {}, {}
    for domain, (texts, source, licence) in documents(options.packages).items():
        rows = sequences(tokenizer, texts, options.sequences)
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
    for name, length, needles, quotes in (("2k", 2048, 96, 48), ("7k", 7168, 24, 24)):
        probes.write(out, f"needles_{name}", probes.needle, needles, length)
        probes.write(out, f"quotes_{name}", probes.quotation, quotes, length)
    numpy.save(out / "prompts.npy", measured.reshape(-1, 1024))
    document = {"sequence_length": LENGTH, "begins_with": BEGIN, "seed": options.seed, "domains": about,
                "parts": "sequences of each domain in turn: " + ", ".join(PARTS)}
    (out / "texts.json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
