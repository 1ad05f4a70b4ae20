# SPDX-License-Identifier: MIT
"""llama.cpp itself, by the C interface in the wheel xllamacpp: logits and token ids of GGUF files."""
import ctypes
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int32, c_uint8, c_uint32, c_void_p

import numpy
import xllamacpp

LOG = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)


# Larger than the structures of llama.h, of which they name what is set or checked here.
class ModelParams(ctypes.Structure):
    _fields_ = [("_before", c_uint8 * 72), ("vocab_only", c_bool), ("_after", c_uint8 * 951)]


class ContextParams(ctypes.Structure):
    _fields_ = [("n_ctx", c_uint32), ("_before", c_uint8 * 48), ("flash_attention", c_int32), ("_rope", c_uint8 * 48),
                ("type_k", c_int32), ("type_v", c_int32), ("_after", c_uint8 * 912)]


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", c_int32), ("_after", c_uint8 * 52)]


def declared():
    library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    for name, result, *arguments in (
            ("model_default_params", ModelParams), ("context_default_params", ContextParams), ("log_set", None, LOG, c_void_p),
            ("model_load_from_file", c_void_p, c_char_p, ModelParams), ("init_from_model", c_void_p, c_void_p, ContextParams),
            ("model_get_vocab", c_void_p, c_void_p), ("vocab_n_tokens", c_int32, c_void_p), ("model_free", None, c_void_p),
            ("free", None, c_void_p), ("batch_get_one", Batch, POINTER(c_int32), c_int32), ("decode", c_int32, c_void_p, Batch),
            ("get_logits_ith", POINTER(c_float), c_void_p, c_int32),
            ("tokenize", c_int32, c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool)):
        function = getattr(library, "llama_" + name)
        function.restype, function.argtypes = result, arguments
    return library


LLAMA, SAID = declared(), []
KEPT = LOG(lambda _level, text, _data: SAID.append(text.decode(errors="replace")))
LLAMA.llama_log_set(KEPT, None)


class Model:
    """What it refuses is a ValueError."""

    def __init__(self, path, vocab_only=False):
        SAID.clear()
        params = LLAMA.llama_model_default_params()
        params.vocab_only = vocab_only
        self.model = LLAMA.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise ValueError("llama.cpp refuses: " + "".join(SAID[-3:]))
        self.vocab = LLAMA.llama_model_get_vocab(self.model)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        LLAMA.llama_model_free(self.model)

    def logits(self, tokens, step=16):
        """Of every `step`th position from the first to the last, with a cache and attention in float32."""
        params = LLAMA.llama_context_default_params()
        assert (params.n_ctx, params.flash_attention, params.type_k, params.type_v) == (512, -1, 1, 1), "another llama.h"
        params.n_ctx, params.flash_attention, params.type_k, params.type_v = len(tokens), 0, 0, 0
        context, rows, done = LLAMA.llama_init_from_model(self.model, params), [], 0
        size = LLAMA.llama_vocab_n_tokens(self.vocab)
        while done < len(tokens):
            count = step if done else 1
            block = (c_int32 * count)(*tokens[done:done + count])
            done += count
            if LLAMA.llama_decode(context, LLAMA.llama_batch_get_one(block, count)) != 0:
                raise ValueError("llama.cpp does not decode")
            rows.append(numpy.ctypeslib.as_array(LLAMA.llama_get_logits_ith(context, -1), (size,)).copy())
        LLAMA.llama_free(context)
        return numpy.stack(rows)

    def ids(self, text, special):
        """Of a text; special: with the token that begins texts, where there is one, and special tokens by their names."""
        content = text.encode()
        room = (c_int32 * (len(content) + 8))()
        count = LLAMA.llama_tokenize(self.vocab, content, len(content), room, len(room), special, True)
        return list(room[:count])
