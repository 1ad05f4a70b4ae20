# SPDX-License-Identifier: MIT
"""The C functions of oscar/coded_attention.h through ctypes, and pages of a coded cache decoded as that header defines them."""
import ctypes
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "data/make"))
from coded_rows import placed  # noqa: E402


class Rows(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("page_stride", ctypes.c_int64), ("token_stride", ctypes.c_int64),
                ("head_stride", ctypes.c_int64)]


class Table(ctypes.Structure):
    _fields_ = [("pages", ctypes.c_void_p), ("lengths", ctypes.c_void_p), ("pages_per_sequence", ctypes.c_int32),
                ("page_size", ctypes.c_int32), ("max_length", ctypes.c_int32)]


class Format(ctypes.Structure):
    _fields_ = [("head_dim", ctypes.c_int32), ("num_kv_heads", ctypes.c_int32), ("k_bits", ctypes.c_void_p),
                ("v_bits", ctypes.c_void_p), ("k_steps", ctypes.c_void_p), ("v_steps", ctypes.c_void_p)]


class Layout(ctypes.Structure):
    _fields_ = ([(name, ctypes.c_int32) for name in
                 ("head_dim", "num_kv_heads", "key_operands", "value_operands", "planes")] +
                [("token_bytes", ctypes.c_int64), ("table_bytes", ctypes.c_int64), ("table", ctypes.c_void_p)])


class Turned(ctypes.Structure):
    _fields_ = [("table", ctypes.c_void_p), ("positions", ctypes.c_void_p), *((name, ctypes.c_int32) for name in ("is_far", "was_far", "moved"))]


class Turn(ctypes.Structure):
    _fields_ = ([("head_dim", ctypes.c_int32), ("num_kv_heads", ctypes.c_int32)] +
                [(name, ctypes.c_void_p) for name in ("pairs", "frequency", "far_frequency", "basis", "inverse", "mean")])


class DecodeArgs(ctypes.Structure):
    _fields_ = ([("layout", Layout), ("batch", ctypes.c_int32), ("num_q_heads", ctypes.c_int32),
                 ("query_tokens", ctypes.c_int32), ("softmax_scale", ctypes.c_float),
                 ("split_batch", ctypes.c_int32), ("soft_cap", ctypes.c_float), ("q", ctypes.c_void_p),
                 ("pages", ctypes.c_void_p), ("page_stride", ctypes.c_int64), ("history", Table), ("k_window", Rows),
                 ("v_window", Rows), ("window", Table), ("turned", Turned), ("out", ctypes.c_void_p), ("lse", ctypes.c_void_p),
                 ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_size_t)])


def open_library(path):
    library = ctypes.CDLL(path)
    library.oscar_coded_decode_workspace.restype = ctypes.c_size_t
    library.oscar_last_error.restype = ctypes.c_char_p
    return library


def decode(library, args):
    """Enqueues the decode kernel in torch's current stream."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    status = library.oscar_coded_decode(ctypes.byref(args), stream)
    if status != 0:
        raise RuntimeError(f"cuda error {status}: {library.oscar_last_error().decode()}")


class CodedFormat:
    """Bits (kv_heads, head_dim / 8) and steps (kv_heads, head_dim) of keys and values, and the layout on the device."""

    def __init__(self, library, k_bits, v_bits, k_steps, v_steps):
        self.bits = [torch.tensor(bits, dtype=torch.uint8) for bits in (k_bits, v_bits)]
        self.steps = [torch.as_tensor(steps, dtype=torch.float32).contiguous() for steps in (k_steps, v_steps)]
        heads, dim = self.steps[0].shape
        format_ = Format(dim, heads, *(tensor.data_ptr() for tensor in self.bits + self.steps))
        self.layout = Layout()
        if library.oscar_coded_layout_of(ctypes.byref(format_), ctypes.byref(self.layout), None) != 0:
            raise ValueError(library.oscar_last_error().decode())
        table = torch.zeros(self.layout.table_bytes, dtype=torch.uint8)
        library.oscar_coded_layout_of(ctypes.byref(format_), ctypes.byref(self.layout), ctypes.c_void_p(table.data_ptr()))
        self.table = table.cuda()
        self.layout.table = self.table.data_ptr()

    def string_bytes(self, side, head):
        """Bytes of one of a row's eight strings."""
        return -(-int(self.bits[side][head].sum()) // 8)

    def head_bytes(self, head):
        """Bytes of a token's keys, values and scales."""
        return 8 * (self.string_bytes(0, head) + self.string_bytes(1, head)) + 4


def turn_table(library, order, frequency):
    """How keys before RoPE turn, on the device. order (kv_heads, head_dim): the pair of each coordinate; frequency (head_dim / 2)."""
    order, (heads, dim) = torch.as_tensor(order), (len(order), len(order[0]))
    basis, mean = torch.zeros(heads, dim, dim), torch.randn(heads, dim)
    for head in range(heads):
        coordinates = order[head].argsort(stable=True).view(-1, 2)
        for pair, (first, second) in enumerate(coordinates):
            basis[head, pair, first] = basis[head, pair + dim // 2, second] = 1
    pairs, frequency = torch.arange(dim, dtype=torch.int32).view(2, -1).T.contiguous(), torch.as_tensor(frequency, dtype=torch.float32)
    inverse, size = basis.transpose(1, 2).contiguous(), ctypes.c_int64()
    turn = Turn(dim, heads, pairs.data_ptr(), frequency.data_ptr(), None, basis.data_ptr(), inverse.data_ptr(), mean.data_ptr())
    for _ in range(2):  # first its size
        table = torch.zeros(size.value, dtype=torch.uint8)
        status = library.oscar_coded_turn_table_of(ctypes.byref(turn), ctypes.byref(size), ctypes.c_void_p(table.data_ptr()) if size.value else None)
        if status != 0:
            raise ValueError(library.oscar_last_error().decode())
    return table.cuda()


def head_planes(format_, pages, head, page_size):
    """pages: (pages, page_size * token_bytes) bytes. Views (pages, page_size, bytes): pieces of keys and of values, scales."""
    counts = [format_.string_bytes(side, head) for side in (0, 1)]
    at = page_size * sum(format_.head_bytes(h) for h in range(head))
    pieces = ([], [])
    for width, number in ((16, [n // 2 for n in counts]), (8, [n % 2 for n in counts])):
        for side in (0, 1):
            for _ in range(number[side]):
                pieces[side].append(pages[:, at:at + page_size * width].reshape(-1, page_size, width))
                at += page_size * width
    return pieces[0], pieces[1], pages[:, at:at + page_size * 4].reshape(-1, page_size, 4)


def decode_rows(format_, pages, head, page_size, side):
    """(pages, page_size, head_dim), fp64."""
    *pieces, scales = head_planes(format_, pages, head, page_size)
    halves = [piece for piece in pieces[side] if piece.shape[-1] == 8]
    strings = halves + [piece[..., i::2] for piece in pieces[side] if piece.shape[-1] == 16 for i in (0, 1)]  # bytes
    scale = torch.exp2((scales.double() - 128) / 16)[..., 2 * side:2 * side + 2]
    rows = torch.zeros(*scales.shape[:2], format_.steps[side].shape[1], dtype=torch.float64, device=pages.device)
    bits = format_.bits[side][head].tolist()
    codes = torch.zeros(*scales.shape[:2], len(bits), 8, dtype=torch.int32, device=pages.device)
    for block, byte, position, width, code_bit in placed(bits):
        codes[..., block, :] |= (strings[byte].int() >> position & 2**width - 1) << code_bit
    for block, width in enumerate(bits):
        if width > 0:
            step = format_.steps[side][head, 8 * block:8 * block + 8].double().to(pages.device)
            rows[..., 8 * block:8 * block + 8] = (codes[..., block, :] - (2**width - 1) / 2) * step * scale[..., 0 if width >= 4 else 1, None]
    return rows


def random_pages(format_, count, page_size):
    """Pages of random codes and scales near 1."""
    heads = range(format_.steps[0].shape[0])
    pages = torch.randint(0, 256, (count, page_size * format_.layout.token_bytes), dtype=torch.uint8, device="cuda")
    for head in heads:
        scales = head_planes(format_, pages, head, page_size)[2]
        at = page_size * (sum(format_.head_bytes(h) for h in range(head + 1)) - 4)
        pages[:, at:at + 4 * page_size] = torch.randint(112, 140, (count, 4 * page_size), device="cuda").to(torch.uint8)
        assert scales.shape[-1] == 4
    return pages
