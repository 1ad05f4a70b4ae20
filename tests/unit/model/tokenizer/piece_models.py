# SPDX-License-Identifier: MIT
"""Tiny SentencePiece models, trained on the spot with the settings of published ones, and the same as Hugging Face tokenizers."""
import io
import sys

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

sys.path.append("/usr/lib/python3/dist-packages")  # Debian's python3-sentencepiece; .venv has the same Python
import sentencepiece

ADDED = {1500: AddedToken("<|user|>", rstrip=True, normalized=False, special=True),
         1501: AddedToken("<|tool|>", lstrip=True, normalized=False, special=True),
         1502: AddedToken("\n\n\n", normalized=False)}
PLAIN = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
MODELS = {
    "llama2": {"model_type": "bpe", "split_digits": True, **PLAIN},
    "gemma": {"model_type": "bpe", "split_digits": True, "add_dummy_prefix": False, "pad_id": 0, "eos_id": 1, "bos_id": 2,
              "unk_id": 3, "control_symbols": "<start_of_turn>", "user_defined_symbols": "\n\n,<mask>", **PLAIN},
    "unigram": {"model_type": "unigram", **PLAIN},
    "t5": {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc", "bos_id": -1},
    "across_words": {"model_type": "bpe", "split_by_whitespace": False, **PLAIN},
}


def train(name, documents):
    """The bytes of a tokenizer.model."""
    model = io.BytesIO()
    lines = [line for document in documents for line in document.splitlines() if line.strip()]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, vocab_size=1500, num_threads=1,
                                             character_coverage=0.995, hard_vocab_limit=False, minloglevel=2, **MODELS[name])
    return model.getvalue()


def processor(model):
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def converted(name, pieces, legacy):
    """The model in Hugging Face tokenizers, with ADDED; None where those have no such thing."""
    if name == "t5":
        return None  # its normalisation is a table inside the model
    size = pieces.get_piece_size()
    vocabulary = [(pieces.id_to_piece(i), pieces.get_score(i)) for i in range(size)]
    if MODELS[name]["model_type"] == "unigram":
        tokenizer = Tokenizer(models.Unigram(vocabulary, pieces.unk_id(), True))
    else:
        tokenizer = Tokenizer(models.BPE({text: i for i, (text, _) in enumerate(vocabulary)}, merges_of(pieces), unk_token="<unk>",
                                         fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", "▁")
    if not MODELS[name].get("add_dummy_prefix", True):
        tokenizer.normalizer = spaces
    elif legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", False)
    controls = [AddedToken(pieces.id_to_piece(i), normalized=False, special=True) for i in range(size)
                if pieces.is_control(i) or pieces.is_unknown(i)]
    tokenizer.add_tokens(controls + [AddedToken(pieces.id_to_piece(i), normalized=False) for i in user_defined(name, pieces)])
    tokenizer.add_tokens([f"<fill {i}>" for i in range(tokenizer.get_vocab_size(), min(ADDED))])
    tokenizer.add_tokens(list(ADDED.values()))
    return tokenizer


def write_pieces(path, pieces, space_before):
    """The model as llama.cpp's converter writes it; the file has no weights."""
    import gguf
    kinds, ids = gguf.TokenType, range(pieces.get_piece_size())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([pieces.id_to_piece(i) for i in ids])
    writer.add_token_scores([pieces.get_score(i) for i in ids])
    user = {"\n\n", "<mask>"}
    writer.add_token_types([kinds.BYTE if pieces.is_byte(i) else kinds.CONTROL if pieces.is_control(i) else
                            kinds.UNKNOWN if pieces.is_unknown(i) else
                            kinds.USER_DEFINED if pieces.id_to_piece(i) in user else kinds.NORMAL for i in ids])
    writer.add_bos_token_id(pieces.bos_id())
    writer.add_add_space_prefix(space_before)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def user_defined(name, pieces):
    return [pieces.piece_to_id(text) for text in MODELS[name].get("user_defined_symbols", "").split(",") if text]


def merges_of(pieces):
    """Every cut of a piece in two, in order of the whole's score, as conversions have it."""
    ids = {pieces.id_to_piece(i): i for i in range(pieces.get_piece_size()) if not pieces.is_byte(i)}
    cuts = [(-pieces.get_score(whole), ids[text[:at]], ids[text[at:]], text[:at], text[at:]) for text, whole in ids.items()
            for at in range(1, len(text)) if text[:at] in ids and text[at:] in ids]
    return [(left, right) for *_, left, right in sorted(cuts)]
