# SPDX-License-Identifier: MIT
"""Tiny tokenizers, trained on the spot, that cut and normalise text as those of published models do."""
import json

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
QWEN2 = ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
QWEN35 = ENDS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + TAIL
LLAMA3 = ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDS}?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL)
KIMI = r"[\p{Han}]+|" + O200K.replace("M}]", r"M}&&[^\p{Han}]]")
DEEPSEEK = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
            r" ?[\p{P}\p{S}]+[\r\n]*|" + TAIL]
SPECIAL = ["<|begin|>", "<|end|>", "<think>"]


def splits(*patterns, behavior="isolated", invert=False):
    return [pre_tokenizers.Split(Regex(pattern), behavior, invert) for pattern in patterns]


def byte_level(texts, steps, normalizer=None, last=True, **members):
    tokenizer = Tokenizer(models.BPE(**members))
    if normalizer:
        tokenizer.normalizer = normalizer
    if last:
        steps = [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not steps)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=1200, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    return tokenizer


def without_control_bytes(tokenizer):
    """Some vocabularies lack bytes that their training text did not have: texts lose them."""
    whole = json.loads(tokenizer.to_str())
    missing = {symbol for symbol in map(chr, range(256, 256 + 33)) if ord(symbol) - 256 not in (9, 10, 13, 32)}
    model = whole["model"]
    model["merges"] = [merge for merge in model["merges"] if not missing & set("".join(merge))]
    model["vocab"] = {token: id for token, id in model["vocab"].items() if token in SPECIAL or not missing & set(token)}
    return Tokenizer.from_str(json.dumps(whole))


def sentencepiece(texts, normalizer, pre_tokenizer, byte_fallback=True):
    """Merges over characters; bytes of others, as conversions of SentencePiece models have them."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=1200, special_tokens=["<unk>", "<s>"],
                                                             limit_alphabet=90, show_progress=False))
    tokenizer.add_tokens([AddedToken("<|user|>", rstrip=True, normalized=False),
                          AddedToken("<|tool|>", lstrip=True, normalized=False), AddedToken("\n\n\n", normalized=False)])
    tokenizer.normalizer, members = normalizer, {"pre_tokenizer": pre_tokenizer and json.loads(pre_tokenizer.__getstate__())}
    whole = {**json.loads(tokenizer.to_str()), **members}
    if byte_fallback:
        whole["model"]["byte_fallback"] = True
        first = 2000
        whole["model"]["vocab"] |= {f"<0x{byte:02X}>": first + byte for byte in range(256)}
    return Tokenizer.from_str(json.dumps(whole))


# llama.cpp's names of the ways to cut text into words, by a vocabulary that suits them; None: the file does not tell.
GGUF_NAMES = {"gpt2": ("gpt-2", "default", None), "llama3": ("llama-bpe",), "qwen2": ("qwen2", "deepseek-r1-qwen"),
              "glm4": ("glm4", "chatglm-bpe"), "gpt-oss": ("gpt-4o", "tekken"), "smollm": ("smollm", "refact", "starcoder")}


def write_gguf(path, words, tokenizer):
    """The tokenizer as llama.cpp's converter writes it, but for the key that says whether texts begin with a token; the file has
    no weights."""
    import gguf
    model = json.loads(tokenizer.to_str())
    added = {token["content"] for token in model["added_tokens"]}
    by_id = {id: token for token, id in model["model"]["vocab"].items()}
    tokens = [by_id.get(id, f"[PAD{id}]") for id in range(max(by_id) + 1)]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    if words:
        writer.add_tokenizer_pre(words)
    writer.add_token_list(tokens)
    kinds = gguf.TokenType
    writer.add_token_types([kinds.CONTROL if token in added else kinds.NORMAL if id in by_id else kinds.UNUSED
                            for id, token in enumerate(tokens)])
    writer.add_token_merges([" ".join(merge) for merge in model["model"]["merges"]])
    if words != "tekken":  # whose files may leave it out
        writer.add_bos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


LLAMA2 = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
FAMILIES = {
    "gpt2": lambda texts: byte_level(texts, []),
    "llama3": lambda texts: byte_level(texts, splits(LLAMA3), ignore_merges=True),
    "qwen2": lambda texts: byte_level(texts, splits(QWEN2), normalizers.NFC()),
    "qwen3.5": lambda texts: byte_level(texts, splits(QWEN35), normalizers.NFC()),
    "glm4": lambda texts: byte_level(texts, splits(LLAMA3)),
    "minimax": lambda texts: byte_level(texts, splits(LLAMA3, behavior="removed", invert=True)),
    "gpt-oss": lambda texts: byte_level(texts, splits(O200K), ignore_merges=True),
    "kimi-k2": lambda texts: byte_level(texts, splits(KIMI)),
    "deepseek-v3": lambda texts: byte_level(texts, splits(*DEEPSEEK), normalizers.Sequence([])),
    "digits": lambda texts: byte_level(texts, [pre_tokenizers.Digits(True), *splits(QWEN2)]),
    "smollm": lambda texts: without_control_bytes(byte_level(texts, [
        pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)], last=False)),
    "gemma": lambda texts: sentencepiece(texts, normalizers.Replace(" ", "▁"),
                                         pre_tokenizers.Split(" ", "merged_with_previous")),
    "mistral": lambda texts: sentencepiece(texts, LLAMA2, None),
    "phi3": lambda texts: sentencepiece(texts, None, pre_tokenizers.Metaspace("▁", "first", False)),
    "metaspace": lambda texts: sentencepiece(texts, None, pre_tokenizers.Metaspace("▁", "always", True)),
    "unknown": lambda texts: sentencepiece(texts, LLAMA2, None, byte_fallback=False),
}
