# SPDX-License-Identifier: MIT
"""same_ids.py ENCODE: our ids (encode.cpp) against those of Hugging Face tokenizers, for every family of families.py, from tokenizer.json and
from GGUF, on mixed text and on strings made to find differences. Exit status 77 if tokenizers is not installed.
"""
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    from families import FAMILIES, GGUF_NAMES, SPECIAL, write_gguf
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup.sh --tests")
    sys.exit(77)

ROOT = Path(__file__).parents[4]
# First and last code points of scripts whose characters all versions of Unicode in use know.
SCRIPTS = [(0x20, 0x7e), (0xa0, 0x17f), (0x370, 0x373), (0x391, 0x3a1), (0x410, 0x44f), (0x5d0, 0x5ea), (0x620, 0x64a),
           (0x660, 0x669), (0x905, 0x939), (0x93e, 0x94c), (0x966, 0x96f), (0xe01, 0xe2e), (0x1100, 0x1112), (0x2000, 0x200d),
           (0x2010, 0x2027), (0x2028, 0x2029), (0x2070, 0x2071), (0x2150, 0x215f), (0x2190, 0x21ff), (0x3000, 0x3029),
           (0x3041, 0x3096), (0x30a1, 0x30fa), (0x4e00, 0x4e80), (0xac00, 0xac40), (0xfb00, 0xfb04), (0xff10, 0xff19),
           (0x1d400, 0x1d454), (0x1f600, 0x1f64f), (0x300, 0x330), (0x9, 0xd), (0x180e, 0x180e), (0xfe0f, 0xfe0f), (0x20d0, 0x20dc)]
ODD = ["", " ", "  ", "\n", "\r\n", " \n ", "\t\t", "a", " a", "a ", "don't DON'T don’t I'LL we'Ve 'S 'ſ", "１２３ 12345 1,234.5",
       "\u00a0\u00a0x", "x\u2028y\u2029z", "\u180e \u180e", "e\u0301 é ﬁ Å Å 한 한", "अनुच्छेद १", "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪", "日本語テキスト混在abc漢字かな",
       "foo_bar.baz(qux)[0]->x;//comment\n\n\n    return 'it''s';\n", "<|begin|>x<|end|>", "<|begin|", "<think>  \n</think>",
       "a<|user|>  b <|tool|> c  <|user|>\n\n\n\n<|tool|>", "\n\n\n\n", " <|user|> ", "<|tool|>", "▁▁a ▁ b", "<0x0A><unk><s>", "\x00\x01\x7f",
       "ǅ ǈ ʰ ª Ⅷ ½ ² ₂", "ÀÉÎ camelCaseHTTPServer XMLs", "/usr/bin//x\r\n/\n/", "{}()<>;:,.!?-_=+*&^%$#@~`|\\\"'",
       "a" * 3000, " " * 700 + "x", "ab" * 900, "=" * 500 + "\n"]


def random_texts(count, seed):
    generator = random.Random(seed)
    for _ in range(count):
        pieces = []
        for _ in range(generator.randrange(1, 60)):
            first, last = generator.choice(SCRIPTS)
            pieces.append("".join(chr(generator.randint(first, last)) for _ in range(generator.randrange(1, 5))))
            pieces.append(generator.choice(["", "", "", " ", "'s", "\n", *SPECIAL, "<|user|>"]))
        yield "".join(pieces)


def mixed_text():
    """Text, code and data of this checkout, by the document."""
    files = [ROOT / "README.md", *sorted(ROOT.glob("lib/model/**/*.?pp")), *sorted(ROOT.glob("tests/data/text/*.txt")),
             ROOT / "tests/data/qwen3-2m/tokenizer.json"]
    return [path.read_text(encoding="utf-8") for path in files]


def differences(encode, folder, file, name, tokenizer, texts):
    """How many texts have other ids by our reading of a file than by the tokenizer that it was written from."""
    done = subprocess.run([encode, f"{folder}/{file}", f"{folder}/texts.json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{name}, {file}: {done.stdout}{done.stderr}")
        return 1
    expected = [batch.ids for batch in tokenizer.encode_batch(texts, add_special_tokens=False)]
    answer = json.loads(done.stdout)
    found, prefix = answer["ids"], tokenizer.encode("").ids
    wrong = [i for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)) if ours != theirs]
    print(f"{name}, {file}: {sum(map(len, expected))} ids of {len(texts)} texts, {len(wrong)} texts differ")
    for i in wrong[:3]:
        print(f"  {texts[i][:200]!r}\n  theirs {[tokenizer.id_to_token(x) for x in expected[i]][:40]}\n"
              f"  ours   {[tokenizer.id_to_token(x) for x in found[i]][:40]}")
    if answer["prefix"] != prefix:
        print(f"  texts begin with {answer['prefix']}, not with {prefix}")
    return len(wrong) + (answer["prefix"] != prefix)


def main():
    encode = sys.argv[1]
    documents = mixed_text()
    texts = ODD + list(random_texts(800, 1)) + documents
    failures = 0
    with tempfile.TemporaryDirectory(prefix="oscar-tokenizer-") as folder:
        Path(folder, "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        for name, make in FAMILIES.items():
            tokenizer = make([*documents[:40], *random_texts(100, 2)])
            tokenizer.save(f"{folder}/tokenizer.json")
            failures += differences(encode, folder, "tokenizer.json", name, tokenizer, texts)
            if name in GGUF_NAMES:
                write_gguf(f"{folder}/model.gguf", name, tokenizer)
                failures += differences(encode, folder, "model.gguf", name, tokenizer, texts)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
