# SPDX-License-Identifier: MIT
"""same_ids.py ENCODE: our ids (encode.cpp) of 10,000 texts against those of Hugging Face tokenizers, for every family of families.py
from tokenizer.json, and of 3,000 against those of llama.cpp, for every way to cut words in GGUF; on mixed text and on strings made to find
differences. Texts with characters newer than the tables here may be refused. Exit status 77 if a package is not installed.
"""
import json
import random
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
try:
    import llama_cpp
    from families import FAMILIES, GGUF_NAMES, SPECIAL, write_gguf
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup.sh --tests")
    sys.exit(77)

ROOT = Path(__file__).parents[4]
# First and last code points of scripts that all versions of Unicode in use know, and of some that came with 15, 15.1 and 16.
SCRIPTS = [(0x20, 0x7e), (0xa0, 0x17f), (0x370, 0x373), (0x391, 0x3a1), (0x410, 0x44f), (0x5d0, 0x5ea), (0x620, 0x64a),
           (0x660, 0x669), (0x905, 0x939), (0x93e, 0x94c), (0x966, 0x96f), (0xe01, 0xe2e), (0x1100, 0x1112), (0x2000, 0x200d),
           (0x2010, 0x2027), (0x2028, 0x2029), (0x2070, 0x2071), (0x2150, 0x215f), (0x2190, 0x21ff), (0x3000, 0x3029),
           (0x3041, 0x3096), (0x30a1, 0x30fa), (0x4e00, 0x4e80), (0xac00, 0xac40), (0xfb00, 0xfb04), (0xff10, 0xff19),
           (0x1d400, 0x1d454), (0x1f600, 0x1f64f), (0x300, 0x330), (0x9, 0xd), (0x180e, 0x180e), (0xfe0f, 0xfe0f), (0x20d0, 0x20dc)]
NEW = [(0x1e4d0, 0x1e4eb), (0x11f00, 0x11f10), (0x31350, 0x31360), (0x1fa75, 0x1fa77), (0x11f50, 0x11f59), (0x2ebf0, 0x2ec00),
       (0x10d40, 0x10d65), (0xa7cb, 0xa7cd), (0x1e4ec, 0x1e4ef), (0x1c89, 0x1c8a), (0x1fae9, 0x1fae9), (0xfffe, 0xffff), (0x378, 0x379)]
SLOW = ("gpt-4o", "tekken")  # in llama.cpp, which does these by std::regex
ODD = ["", " ", "  ", "\n", "\r\n", " \n ", "\t\t", "a", " a", "a ", "don't DON'T don’t I'LL we'Ve 'S 'ſ", "１２３ 12345 1,234.5",
       "\u00a0\u00a0x", "x\u2028y\u2029z", "\u180e \u180e", "e\u0301 é ﬁ Å Å 한 한", "अनुच्छेद १", "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪", "日本語テキスト混在abc漢字かな",
       "foo_bar.baz(qux)[0]->x;//comment\n\n\n    return 'it''s';\n", "<|begin|>x<|end|>", "<|begin|", "<think>  \n</think>",
       "a<|user|>  b <|tool|> c  <|user|>\n\n\n\n<|tool|>", "\n\n\n\n", " <|user|> ", "<|tool|>", "▁▁a ▁ b", "<0x0A><unk><s>", "\x00\x01\x7f",
       "ǅ ǈ ʰ ª Ⅷ ½ ² ₂", "ÀÉÎ camelCaseHTTPServer XMLs", "/usr/bin//x\r\n/\n/", "{}()<>;:,.!?-_=+*&^%$#@~`|\\\"'",
       "a" * 3000, " " * 700 + "x", "ab" * 900, "=" * 500 + "\n"]


def random_texts(count, seed):
    generator = random.Random(seed)
    for number in range(count):
        pieces, new = [], number % 20 == 19
        for _ in range(generator.choice((2, 4, 20))):
            first, last = generator.choice(NEW if new and generator.random() < 0.3 else SCRIPTS)
            pieces.append("".join(chr(generator.randint(first, last)) for _ in range(generator.randrange(1, 5))))
            pieces.append(generator.choice(["", "", "", " ", "'s", "\n", *SPECIAL, "<|user|>"]))
        yield "".join(pieces)


def mixed_text():
    """Text, code and data of this checkout, by the document."""
    files = [ROOT / "README.md", *sorted(ROOT.glob("lib/model/**/*.?pp")), *sorted(ROOT.glob("tests/data/text/*.txt")),
             ROOT / "tests/data/qwen3-2m/tokenizer.json"]
    return [path.read_text(encoding="utf-8") for path in files]


def is_old(text):
    """Whether Unicode 14 has all characters of a text, or none of its characters ever will be one."""
    return all(unicodedata.category(c) != "Cn" or ord(c) & 0xfffe == 0xfffe for c in text)


def differences(encode, file, name, texts, expected, prefix):
    """How many texts have other ids by our reading of a file than they should, and are not refused for a character."""
    file.with_name("texts.json").write_text(json.dumps(texts), encoding="utf-8")
    done = subprocess.run([encode, file, file.with_name("texts.json")], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{name}, {file.name}: {done.stdout}{done.stderr}")
        return 1
    answer = json.loads(done.stdout)
    refused = [isinstance(ours, str) and ours.startswith("the text has U+") and not is_old(text)
               for ours, text in zip(answer["ids"], texts)]
    wrong = [i for i, theirs in enumerate(expected) if answer["ids"][i] != theirs and not refused[i]]
    print(f"{name}, {file.name}: {sum(map(len, expected))} ids of {len(expected)} texts, {sum(refused)} refused, {len(wrong)} differ")
    for i in wrong[:3]:
        print(f"  {texts[i][:200]!r}\n  theirs {expected[i][:40]}\n  ours   {answer['ids'][i][:40]}")
    if answer["prefix"] != prefix:
        print(f"  texts begin with {answer['prefix']}, not with {prefix}")
    return len(wrong) + (answer["prefix"] != prefix)


def main():
    encode, documents = sys.argv[1], mixed_text()
    texts = ODD + list(random_texts(10_000, 1)) + documents
    failures = 0
    with tempfile.TemporaryDirectory(prefix="oscar-tokenizer-") as folder:
        root = Path(folder)
        for name, make in FAMILIES.items():
            tokenizer = make([*documents[:12], *random_texts(100, 2)])
            tokenizer.save(f"{folder}/tokenizer.json")
            expected = [batch.ids for batch in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
            failures += differences(encode, root / "tokenizer.json", name, texts, expected, tokenizer.encode("").ids)
            for words in GGUF_NAMES.get(name, ()):
                write_gguf(root / "model.gguf", words, tokenizer)
                few = texts[:300] if words in SLOW else texts[:3000] + documents[:20]
                with llama_cpp.Model(root / "model.gguf", vocab_only=True) as model:
                    expected = [model.ids(text, False) for text in few]
                    failures += differences(encode, root / "model.gguf", words, few, expected, model.ids("", True))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
