# SPDX-License-Identifier: MIT
"""A layer of a model in vLLM's attention backend for a set, whose vLLM is the fake of vllm_fakes.py, and what each of its requests should
compute: attention over the request's own rows in float64."""
from dataclasses import replace

import oscar_kv
import torch
import vllm_fakes
from on_device import DEVICE
from oscar_kv.packed_layer import PackedSlots
from plain_attention import plain_attention

BLOCK, SINK, RECENT, HEADS, KV_HEADS, DIM = 16, 20, 9, 6, 2, 64
SCALE = 0.2
NAME = "model.layers.3.self_attn.attn"
SPEC, SLIDING = vllm_fakes.Spec(BLOCK, KV_HEADS, DIM), vllm_fakes.SlidingSpec(BLOCK, KV_HEADS, DIM)

vllm_fakes.install(DEVICE)
from oscar_kv import vllm_backend  # noqa: E402
from oscar_kv.window_blocks import MOST_NEW  # noqa: E402


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def matrices(heads, seed):
    rotation = torch.linalg.qr(random(heads, DIM, DIM, seed=seed))[0] * torch.linspace(0.5, 2, DIM)
    return rotation, torch.linalg.inv(rotation).transpose(-1, -2).contiguous()


def coded_set(heads=KV_HEADS, sink=SINK, thin=()):
    """Each head with a format of its own; thin: heads of few bits."""
    def side(seed):
        widths = [[16, 8, 4, 2, 2, 1, 1, 1], [128, 32, 4, 4, 4, 2, 1, 1], [4, 4, 2, 1, 1, 1, 1, 1]]
        formats = [widths[2 if head in thin else (head + seed) % 2] for head in range(heads)]
        levels = torch.tensor(formats, dtype=torch.int32).repeat_interleave(8, 1)
        rotation, read = matrices(heads, seed)
        spread = levels[:, None] / 16  # as fits have it: steps are about equal, and channels of many levels have large values
        return oscar_kv.Side(rotation * spread, read / spread, random(heads, DIM, seed=seed + 1), levels,
                             torch.full((heads, DIM), 0.25), levels / 16)

    return oscar_kv.SetPart({3: oscar_kv.Layer(3, side(0), replace(side(7), mean=None))}, (sink, RECENT))


def turned(positions, frequency, rows, sign=1):
    """rows (tokens, heads, d) at these positions, whose halves turn together."""
    angles = sign * positions.to(DEVICE)[:, None, None] * frequency.to(DEVICE)
    x, y = rows.double().chunk(2, -1)
    return torch.cat([x * angles.cos() - y * angles.sin(), x * angles.sin() + y * angles.cos()], -1).bfloat16()


FREQUENCY = 10.0 ** -torch.arange(DIM // 2)


def set_before_rope():
    """Of keys that turn at half the frequency in texts of more than 100 tokens, as a server of longer ones has all its keys."""
    part, pairs = coded_set(), [[i, i + DIM // 2] for i in range(DIM // 2)]
    rotary = oscar_kv.sets.Rotary(pairs, FREQUENCY.tolist(), 2**-9, 256, (FREQUENCY / 2).tolist(), 100)
    layer, one = part.layers[3], torch.eye(DIM).expand(KV_HEADS, -1, -1)
    levels = layer.key.levels.clamp(min=64)
    key = replace(layer.key, rotation=one, read_rotation=one, levels=levels, step=8 / levels, sigma=torch.ones(KV_HEADS, DIM), rotary=rotary)
    part.layers[3] = replace(layer, key=key)
    return part


def layers(name=NAME, rule={}, **others):
    """As vLLM's static_forward_context: attention layers, and what else runs once a step. rule: what the model tells the backend of scores."""
    layer = vllm_fakes.FakeAttention(name, vllm_backend.PackedBackend, SPEC)
    layer.impl = vllm_backend.PackedImpl(HEADS, DIM, SCALE, KV_HEADS, **rule)
    return {name: layer, "model.layers.3.router": object()} | others


def spec_of(found, name=NAME):
    return found[name].get_kv_cache_spec(vllm_fakes.config_of(found, 40, 4, 64))


def builder(found=None, blocks=40, requests=4, tokens=64):
    config = vllm_fakes.config_of(found or layers(), blocks, requests, tokens)
    return vllm_backend.PackedMetadataBuilder(SPEC, list(config.compilation_config.static_forward_context), config, torch.device(DEVICE))


class Server:
    """What vLLM's runner does for one layer: blocks for requests, steps of some tokens of each."""

    def __init__(self, blocks=40, rule={}, others={}, **limits):
        self.layers = layers(rule=rule, **others)
        self.layer = self.layers[NAME]
        spec = spec_of(self.layers)
        self.cache = torch.zeros(blocks, spec.num_head_slots, BLOCK, spec.state_content_bytes, dtype=spec.dtype, device=DEVICE)
        self.layer.kv_cache = self.cache
        self.free = torch.randperm(blocks, generator=torch.Generator().manual_seed(0)).tolist()
        self.tables, self.places, self.builder = {}, {}, builder(self.layers, blocks, **limits)

    def step(self, rows, seen):
        """rows: {request: (q, k, v) of new tokens}, seen: {request: tokens before}."""
        call, outputs = self.prepared(rows, seen)
        call()
        return outputs

    def prepared(self, rows, seen):
        """What a step runs in a layer, and where its outputs will be."""
        slots, lengths, starts = [], [], [0]
        for name, (q, _, _) in rows.items():
            table, length = self.tables.setdefault(name, []), seen[name] + len(q)
            while len(table) * BLOCK < length:
                table.append(self.free.pop())
            slots += [table[t // BLOCK] * BLOCK + t % BLOCK for t in range(seen[name], length)]
            lengths.append(length)
            starts.append(starts[-1] + len(q))
        width = max(12, *(len(self.tables[name]) + 2 for name in rows))  # vLLM's table is as wide as its longest request in every step
        tables = [self.tables[name] + [0] * (width - len(self.tables[name])) for name in rows]
        common = vllm_fakes.step_of(
            starts, lengths, tables, [*slots, -1], [self.places.setdefault(name, len(self.places)) for name in rows],
            [len(q) > MOST_NEW or seen[name] == 0 for name, (q, _, _) in rows.items()], DEVICE)  # one token is padding
        q, k, v = (torch.cat([each[i] for each in rows.values()] + [torch.zeros_like(next(iter(rows.values()))[i][:1])])
                   for i in range(3))
        output = torch.full_like(q, 7)
        self.metadata = self.builder.build(0, common)
        metadata = self.metadata

        def call():
            self.layer.impl.forward(self.layer, q, k, v, self.cache, metadata, output)

        call.inputs, call.output = (q, k, v), output
        return call, {name: output[a:b] for name, a, b in zip(rows, starts, starts[1:])}


class Expected:
    """A request by itself. lost: tokens of a prefix of which there are packed rows only."""

    def __init__(self, rotations, rows, first_head=0, lost=range(0), rule={}):
        layer, count = rotations.layers[3], len(rows[0])
        self.rows, self.lost, self.sink = rows, lost, rotations.windows[0]
        self.rule = {"soft_cap": rule.get("logits_soft_cap", 0.0), "sinks": rule.get("sinks")}
        slots = PackedSlots(layer, KV_HEADS, DIM, rows[0].device, rows[0].dtype, rank=first_head // KV_HEADS,
                            ranks=len(layer.key.rotation) // KV_HEADS)
        sides = slots.sides
        cache = torch.zeros(-(-count // BLOCK), 1, BLOCK, slots.bytes, dtype=torch.uint8, device=DEVICE)
        stored = torch.stack([side.stored(x) for side, x in zip(sides, rows[1:])])
        every, decoded = torch.arange(count, dtype=torch.int32, device=DEVICE), torch.empty_like(stored)
        slots.write(cache, every, stored, every, True)
        slots.unpack(cache, every, *decoded, every, True)
        if slots.far(1000):  # decoded keys are near those that were given, each turned to its own place
            error = (turned(every, FREQUENCY / 2, decoded[0], -1) - turned(every, FREQUENCY / 2, rows[1], -1)).norm() / rows[1].norm()
            assert error < 0.1, error
        self.exact, self.packed = ([side.native(x).transpose(0, 1) for side, x in zip(sides, both)] for both in (stored, decoded))

    def step(self, before, count):
        q, k, v = (x[before:before + count] for x in self.rows)
        tokens = torch.arange(before + count, device=DEVICE)
        is_packed = (tokens >= self.sink) & (tokens <= before - RECENT) | (tokens >= self.lost.start) & (tokens < self.lost.stop)
        if before == 0:
            keys, values = (x.transpose(0, 1) for x in (k, v))
        else:
            keys, values = (torch.where(is_packed[:, None], packed[:, :len(tokens)], exact[:, :len(tokens)])
                            for packed, exact in zip(self.packed, self.exact))
        out, _ = plain_attention(q.transpose(0, 1), keys, values, SCALE, **self.rule)
        return out.transpose(0, 1)


def rows_of(tokens, seed):
    return [random(tokens, heads, DIM, seed=seed + i).bfloat16().to(DEVICE) for i, heads in enumerate((HEADS, KV_HEADS, KV_HEADS))]
