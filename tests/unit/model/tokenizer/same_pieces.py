# SPDX-License-Identifier: MIT
"""same_pieces.py ENCODE: ids of checkpoints with a tokenizer.model (encode.cpp) against SentencePiece's own Python package, and
against Hugging Face tokenizers for what those add to it. Exit status 77 where one of them is not installed, or where the package
is of another version than the library that was built with: versions split ties in their own ways.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    from piece_models import ADDED, MODELS, converted, processor, train, user_defined, write_pieces
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup.sh --tests")
    sys.exit(77)
import sentencepiece

from same_ids import ODD, llama_cpp, mixed_text, random_texts

LONG = 4 << 20  # bytes of the longest text


class Checkpoint:
    """A folder with a tokenizer.model and settings."""

    def __init__(self, encode, folder, model, **config):
        self.encode, self.folder = encode, Path(folder)
        (self.folder / "tokenizer.model").write_bytes(model)
        (self.folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")

    def run(self, texts, *more):
        (self.folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        return subprocess.run([self.encode, self.folder / "tokenizer.model", self.folder / "texts.json", *more],
                              capture_output=True, text=True, check=False)

    def ask(self, texts, *more):
        done = self.run(texts, *more)
        if done.returncode != 0:
            sys.exit(f"encode: exit status {done.returncode}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    def refuses(self, reason):
        done = self.run([])
        return check(done.returncode == 1 and reason in done.stdout and "tokenizer" in done.stdout.partition("|")[2],
                     f"{reason}: {done.returncode} {done.stdout}{done.stderr}")


def differences(title, texts, ours, theirs):
    wrong = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    print(f"{title}: {sum(map(len, theirs))} ids of {len(texts)} texts, {len(wrong)} texts differ")
    for i in wrong[:3]:
        at = next((k for k, (a, b) in enumerate(zip(ours[i], theirs[i])) if a != b), 0)
        print(f"  {texts[i][:120]!r}, from id {at}\n  theirs {theirs[i][at:at + 20]}\n  ours   {ours[i][at:at + 20]}")
    return len(wrong)


def check(condition, what):
    if not condition:
        print(f"wrong: {what}")
    return 0 if condition else 1


def compare_with_library(checkpoint, name, pieces, texts):
    """Texts without the names of special pieces, which the library takes for text."""
    special = [pieces.id_to_piece(i) for i in range(pieces.get_piece_size()) if pieces.is_control(i) or pieces.is_unknown(i)]
    plain = [text for text in texts if not any(name in text for name in special)]
    theirs = pieces.encode(plain)
    wrong = differences(f"{name}, the library", plain, checkpoint.ask(plain)["ids"], theirs)
    few = checkpoint.ask([plain[-1]], "500")["ids"][0]
    return wrong + check(few == theirs[-1][:500], "the start of the last text")


def compare_with_tokenizers(checkpoint, name, legacy, pieces, tokenizer, texts):
    # Where a space comes before a text only, Metaspace takes one that is there for it; the library adds another. The names
    # of bytes are text for the library.
    own = [text for text in texts if (legacy or name == "gemma" or not text.startswith((" ", "▁"))) and "<0x0A>" not in text]
    theirs = [batch.ids for batch in tokenizer.encode_batch(own, add_special_tokens=False)]
    ours = checkpoint.ask(own)["ids"]
    if MODELS[name]["model_type"] == "unigram":
        theirs = [a if equally_likely(pieces, a, b) else b for a, b in zip(ours, theirs, strict=True)]
    return differences(f"{name}, tokenizers{', legacy' if legacy else ''}", own, ours, theirs)


def equally_likely(pieces, ours, theirs):
    """The same text in pieces, as many or more, of the same sum of scores: which are taken depends on the order of additions."""
    own = [[i for i in ids if i < pieces.get_piece_size()] for ids in (ours, theirs)]
    first, second = (sum(map(pieces.get_score, ids)) for ids in own)
    return pieces.decode(own[0]) == pieces.decode(own[1]) and abs(first - second) < 1e-6 * abs(first)


def token_settings(tokens):
    return {str(id): {"content": str(token), "lstrip": token.lstrip, "rstrip": token.rstrip, "normalized": False,
                      "special": token.special} for id, token in tokens.items()}


def compare_gguf(encode, folder, name, pieces, texts):
    """The same model as llama.cpp's converter writes it, also as llama.cpp reads it."""
    path = Path(folder, "model.gguf")
    write_pieces(path, pieces, space_before=MODELS[name].get("add_dummy_prefix", True))
    special = [pieces.id_to_piece(i) for i in range(pieces.get_piece_size()) if pieces.is_control(i) or pieces.is_unknown(i)]
    plain = [text for text in texts if text and not any(name in text for name in [*special, "<0x0A>"])]
    Path(folder, "texts.json").write_text(json.dumps(plain), encoding="utf-8")
    done = subprocess.run([encode, path, Path(folder, "texts.json")], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return check(False, f"{name}, GGUF: {done.stdout}{done.stderr}")
    answer = json.loads(done.stdout)
    wrong = check(answer["prefix"] == [pieces.bos_id()], "the prefix of a GGUF file")
    with llama_cpp.Model(path, vocab_only=True) as model:
        wrong += differences(f"{name}, llama.cpp", plain, answer["ids"], [model.ids(text, False) for text in plain])
        wrong += check(answer["prefix"] == model.ids("", True), "the prefix in llama.cpp")
    return wrong + differences(f"{name}, GGUF", plain, answer["ids"], pieces.encode(plain))


def check_begin(encode, folder, model, pieces):
    """What comes before texts, as files beside the model say."""
    begin = pieces.bos_id()
    own = [begin] if begin >= 0 else []
    wrong = check(Checkpoint(encode, folder, model).ask([])["prefix"] == own, "the prefix by default")
    wrong += check(Checkpoint(encode, folder, model, add_bos_token=False).ask([])["prefix"] == [], "no prefix")
    other = Checkpoint(encode, folder, model, add_bos_token=True, bos_token={"content": "</s>"})
    return wrong + check(other.ask([])["prefix"] == [pieces.eos_id()], "another token as prefix")


def check_errors(encode, folder, model):
    wrong = Checkpoint(encode, folder, model[:-7]).refuses("this is no model of SentencePiece")
    wrong += Checkpoint(encode, folder, b"IQ== 0\nIg== 1\n" * 50).refuses("this is no model of SentencePiece")  # one of tiktoken
    wrong += Checkpoint(encode, folder, b"").refuses("this is no model of SentencePiece")
    for reason, settings in (("no such token as \"<bos>\"", {"add_bos_token": True, "bos_token": "<bos>"}),
                             ("\"add_bos_token\" is neither", {"add_bos_token": "yes"}),
                             ("has the id \"x\"", {"added_tokens_decoder": {"x": {"content": "<x>"}}}),
                             ("without content", {"added_tokens_decoder": {"7": {}}}),
                             ("single_word", {"added_tokens_decoder": {"7": {"content": "x", "single_word": True}}}),
                             ("is not an object", {"added_tokens_decoder": []})):
        wrong += Checkpoint(encode, folder, model, **settings).refuses(reason)
    return wrong


def library_version():
    found = subprocess.run(["pkg-config", "--modversion", "sentencepiece"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def main():
    encode = sys.argv[1]
    library = library_version()
    if library != sentencepiece.__version__:
        print(f"skipped: the SentencePiece library is {library}, its Python package {sentencepiece.__version__}; install both from "
              "one release (libsentencepiece-dev, python3-sentencepiece)")
        return 77
    documents = mixed_text()
    texts = ODD + list(random_texts(400, 1)) + documents
    long = "\n".join(documents)
    long = (long * (LONG // len(long.encode()) + 1)).replace("<s>", "").replace("</s>", "").replace("<unk>", "")
    failures = 0
    for name in MODELS:
        model = train(name, [*documents[:40], *random_texts(100, 2)])
        pieces = processor(model)
        with tempfile.TemporaryDirectory(prefix="oscar-pieces-") as folder:
            failures += check_errors(encode, folder, model) + check_begin(encode, folder, model, pieces)
            more = [long] if name in ("llama2", "unigram") else []
            failures += compare_with_library(Checkpoint(encode, folder, model), name, pieces, [*texts, *more])
            if MODELS[name]["model_type"] == "bpe" and name != "across_words":
                failures += compare_gguf(encode, folder, name, pieces, texts)
            for legacy in (True, False):
                tokenizer = converted(name, pieces, legacy)
                if tokenizer is None:
                    continue
                added = ADDED | {i: token for i, token in tokenizer.get_added_tokens_decoder().items()
                                 if i in user_defined(name, pieces)}
                checkpoint = Checkpoint(encode, folder, model, legacy=legacy, added_tokens_decoder=token_settings(added))
                failures += compare_with_tokenizers(checkpoint, name, legacy, pieces, tokenizer, texts)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
