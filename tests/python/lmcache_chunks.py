# SPDX-License-Identifier: MIT
"""Chunks of the sample model as LMCache has them, for the test of the serde and its bench. Exit status 77 without LMCache (apart.py)."""
import os
from unittest import mock

import apart

apart.on_the_path("lmcache")
os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("TRITON_INTERPRET", "1")  # the kernels of LMCache's TurboQuant on the CPU

import torch  # noqa: E402
import transformers  # noqa: E402
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey  # noqa: E402
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj  # noqa: E402

CHUNK = 256


def memory(*tensors):
    """An object of LMCache's with copies of these, or with room for a number of bytes."""
    tensors = [torch.zeros(x, dtype=torch.uint8) if isinstance(x, int) else x for x in tensors]
    shapes, dtypes, size = [x.shape for x in tensors], [x.dtype for x in tensors], sum(x.nbytes for x in tensors)
    about = MemoryObjMetadata(shapes[0], dtypes[0], 0, size, 1, fmt=MemoryFormat.KV_2LTD, shapes=shapes, dtypes=dtypes)
    made = TensorMemoryObj(torch.zeros(size, dtype=torch.uint8), about, None)
    for i, x in enumerate(tensors):
        made.get_tensor(i).copy_(x)
    return made


def layout(*tensors):
    return MemoryLayoutDesc([x.shape for x in tensors], [x.dtype for x in tensors])


def key(number, model="sample", rank=0, ranks=1):
    return ObjectKey(number.to_bytes(4, "big"), model, ObjectKey.ComputeKVRank(ranks, rank, ranks, rank))


def stored(serde, *tensors, of=None):
    """A chunk that the serde wrote."""
    out = memory(serde.estimate_serialized_size(layout(*tensors)))
    written = serde.serialize(memory(*tensors), out, of or key(0))
    out.set_used_size(written)
    return out


def loaded(serde, chunk, *like, of=None):
    out = memory(*(torch.zeros_like(x) for x in like))
    serde.deserialize(chunk, out, of or key(0))
    return [out.get_tensor(i) for i in range(len(like))]


def by_serde(serializer, deserializer):
    """Tensor -> what is read back of it, and how many bytes were stored."""
    def store_and_load(x):
        out = memory(serializer.estimate_serialized_size(layout(x)))
        written = serializer.serialize(memory(x), out, key(0))
        back = memory(torch.zeros_like(x))
        deserializer.deserialize(out, back, key(0))
        return back.tensor, written
    return store_and_load


def fp8(folder, shape):
    from lmcache.v1.distributed.serde import fp8 as module
    return by_serde(module.Fp8QuantizationSerializer(), module.Fp8QuantizationDeserializer())


def turboquant(preset, skipped=2):
    """As LMCache has it, but for the choice of a GPU: Triton's interpreter runs its kernels."""
    def make(folder, shape):
        from lmcache.v1.distributed.serde.turboquant import decode_kernel, store_kernel, turboquant as module
        config = module.TurboQuantSerdeConfig(preset, shape[1], skip_first_layers=skipped, skip_last_layers=skipped)
        run = by_serde(module.TurboQuantSerializer(config), module.TurboQuantDeserializer(config))

        def store_and_load(x):
            with mock.patch.object(module, "_select_cuda_device", lambda *args: torch.device("cpu")), \
                    mock.patch.object(decode_kernel, "_use_fp8_e4b15", lambda *args: 0), \
                    mock.patch.object(store_kernel, "_use_fp8_e4b15", lambda *args: 0):
                return run(x)
        return store_and_load
    return make


def cachegen(folder, shape):
    from types import SimpleNamespace
    from lmcache.v1.storage_backend.naive_serde.cachegen_decoder import CacheGenDeserializer
    from lmcache.v1.storage_backend.naive_serde.cachegen_encoder import CacheGenSerializer
    about = SimpleNamespace(model_name=str(folder), kv_shape=(0, 2, CHUNK, *shape), kv_dtype=torch.bfloat16)
    serializer, deserializer = (each(SimpleNamespace(chunk_size=CHUNK), about) for each in (CacheGenSerializer, CacheGenDeserializer))

    def store_and_load(x):
        chunk = serializer.serialize(memory(x))
        return deserializer.deserialize(chunk).raw_data.view(x.shape), len(chunk.byte_array)
    return store_and_load


def rows_of(model, ids):
    """Keys and values of a prompt [2, layers, tokens, heads * d], bfloat16."""
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids[None], past_key_values=cache, logits_to_keep=1)
    return torch.stack([torch.stack([getattr(layer, name)[0].transpose(0, 1).flatten(1) for layer in cache.layers])
                        for name in ("keys", "values")]).bfloat16()


def answers(model, ids, rows, heads):
    """Log-probabilities after each of these tokens, which follow the rows of a prompt."""
    cache = transformers.DynamicCache(config=model.config)
    for i in range(rows.shape[1]):
        cache.update(*(x[None].unflatten(2, (heads, -1)).transpose(1, 2).to(model.dtype) for x in rows[:, i]), i)
    with torch.no_grad():
        return model(ids[None], past_key_values=cache).logits[0].float().log_softmax(-1)


def kld_and_ratio(model, sequences, prompt, store_and_load, heads):
    """Of answers after prompts of so many tokens that were stored in chunks and read back, against the model with none stored."""
    found, taken, all_bytes = [], 0, 0
    for ids in sequences:
        with torch.no_grad():
            exact = model(ids[None]).logits[0, prompt:].float().log_softmax(-1)
        rows, back = rows_of(model, ids[:prompt]), []
        for chunk in rows.split(CHUNK, 2):
            x, written = store_and_load(chunk.contiguous())
            back.append(x)
            taken, all_bytes = taken + written, all_bytes + chunk.nbytes
        read = answers(model, ids[prompt:], torch.cat(back, 2), heads)
        found.append(float((exact.exp() * (exact - read)).sum(-1).mean()))
    return sum(found) / len(found), all_bytes / taken
