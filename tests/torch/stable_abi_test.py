# SPDX-License-Identifier: MIT
"""liboscar_torch.so in every torch that servers have: stable_abi_test.py LIBRARY [ENVIRONMENT]

The library needs C functions of libtorch alone, those of torch's stable interface, and no torch but the one that is loaded.
ENVIRONMENT (vllm, server-torch) is one of those of scripts/setup.sh: the tests of the operators run in it. Exit status 77 if it
is not there, or no nm to look with.
"""
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

STABLE = ("aoti_torch_", "torch_")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(library, which):
    """Names as the linker has them, those with versions as name@VERSION."""
    return {line.split()[-1] for line in output("nm", "-D", f"--{which}-only", str(library)).splitlines()}


def check_interface(library):
    if not shutil.which("nm"):
        print("skipped: there is no nm; install binutils")
        return 77
    torch = Path(importlib.util.find_spec("torch").submodule_search_locations[0])
    needed = symbols(library, "undefined")
    of_torch = {name for file in ("libtorch_cpu.so", "libc10.so", "libtorch_cuda.so", "libc10_cuda.so")
                if (torch / "lib" / file).exists() for name in symbols(torch / "lib" / file, "defined")}
    assert len(of_torch) > 10000, f"{torch} has no libtorch"
    unstable = sorted(name for name in needed & of_torch if not name.startswith(STABLE))
    assert not unstable, f"{library} needs {len(unstable)} unstable symbols of libtorch: {unstable[:5]}"
    assert any(name.startswith("torch_library_impl") for name in needed), "the library registers no operators"
    dynamic = output("readelf", "-d", str(library)).splitlines()
    libraries = [line.split("[")[1].rstrip("]") for line in dynamic if "NEEDED" in line]
    assert [name for name in libraries if "torch" in name or "c10" in name] == ["libtorch_cpu.so"], libraries
    paths = [path for line in dynamic if "PATH" in line for path in line.split("[")[1].rstrip("]").split(":")]
    assert all(path.startswith("$ORIGIN") for path in paths), f"the library looks for a torch of its own in {paths}"
    return 0


def check_operators(library, environment):
    python = CACHE / "oscar-build" / environment / "bin/python"
    if not python.is_file():
        print(f"skipped: there is no {python}; run scripts/setup.sh --{environment}")
        return 77
    print(output(python, "-c", "import torch; print('in torch', torch.__version__)").strip(), flush=True)
    for name in ("operators", "coded_operators"):
        status = subprocess.run([python, "-B", Path(__file__).parents[1] / f"conformance/{name}_test.py"],
                                env=os.environ | {"OSCAR_TORCH_LIBRARY": str(library)}).returncode
        assert status == 0, f"{name} ended with status {status}"
    return 0


def main():
    library = Path(sys.argv[1])
    return check_operators(library, sys.argv[2]) if len(sys.argv) > 2 else check_interface(library)


if __name__ == "__main__":
    sys.exit(main())
