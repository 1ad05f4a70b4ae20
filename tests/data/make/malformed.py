# SPDX-License-Identifier: MIT
"""Makes tests/data/malformed/*.pt: archives that a careless reader would run or overrun. Needs torch.

    .venv/bin/python tests/data/make/malformed.py tests/data/malformed
"""
import io
import os
import sys
import zipfile
from pathlib import Path

import torch


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/oscar-was-here",)


def patched(source, old, new):
    """The archive `source` with old replaced by new (same length) in its pickle."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(source)) as archive, zipfile.ZipFile(out, "w") as copy:
        for info in archive.infolist():
            data = archive.read(info)
            if info.filename.endswith("data.pkl"):
                assert old in data and len(old) == len(new)
                data = data.replace(old, new)
            copy.writestr(info.filename, data)
    return out.getvalue()


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
(folder / "forbidden_global.pt").write_bytes(saved({"format_version": 1, "x": Evil()}))
# shape (2, 3): BININT1 2, BININT1 3, TUPLE2 becomes (200, 3)
(folder / "oversized_view.pt").write_bytes(patched(saved(torch.zeros(2, 3)), b"K\x02K\x03\x86", b"K\xc8K\x03\x86"))
# A view that repeats one element a thousand million times
(folder / "repeated_element.pt").write_bytes(saved(torch.zeros(1).expand(1_000_000_000)))
