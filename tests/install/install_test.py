# SPDX-License-Identifier: MIT
"""An installed oscar needs neither the source tree nor .venv nor Python: install_test.py BUILD SOURCE.

Installs into a fresh folder, checks where every library would come from, and runs the installed binary in an empty
environment, including a command that opens the libtorch plug-in.
"""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SYSTEM_LIBRARIES = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")
# Of the CUDA toolkit of the machine, if there is one, and of the process that loads the operators for torch; nothing else
# may need them.
OF_OTHERS = {"oscar_cuda.so": ("libcublas", "libcusolver", "libcusparse", "libnvJitLink"),
             "liboscar_torch.so": ("libc10", "libtorch")}


def run(*command, exit_code=0):
    """Standard output and error of a command that must end with `exit_code`; it sees no variables but PATH."""
    done = subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=300)
    text = done.stdout + done.stderr
    assert done.returncode == exit_code, f"{command}: exit status {done.returncode}\n{text}"
    return text


def is_elf(path):
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def elf_files(prefix):
    return [path for path in sorted(prefix.rglob("*")) if path.is_file() and not path.is_symlink() and is_elf(path)]


def check_libraries(prefix):
    """Every library is found, inside the folder or in the system; no search path leads anywhere else."""
    files = elf_files(prefix)
    assert len(files) >= 3, f"too few binaries: {files}"
    for path in files:
        for line in run("ldd", str(path)).splitlines():
            if line.strip().startswith(OF_OTHERS.get(path.name, ("nothing",))):
                continue
            assert "not found" not in line, f"{path}: {line}"
            target = line.split("=>")[1].split("(")[0].strip() if "=>" in line else ""
            assert not target or target.startswith((str(prefix), *SYSTEM_LIBRARIES)), f"{path}: {line}"
        for line in run("readelf", "-d", str(path)).splitlines():
            if "RPATH" in line or "RUNPATH" in line:
                parts = line.split("[")[1].rstrip("]").split(":")
                assert all(part.startswith("$ORIGIN") for part in parts), f"{path}: {line}"


def check_commands(prefix, source):
    oscar = str(prefix / "bin/oscar")
    assert run(oscar, "--version").startswith("oscar 0.")
    data = source / "tests/data"
    assert "NumPy file" in run(oscar, "inspect", str(data / "tensor/f4_2x3.npy"))
    assert "posix.system" in run(oscar, "inspect", str(data / "malformed/forbidden_global.pt"), exit_code=1)
    # Only libtorch runs models: the installed plug-in was found and opened.
    run(oscar, "dump", "--model", str(source / "tests/data/qwen3-2m"), "--text", str(source / "README.md"), "--max-tokens", "64",
        "--device", "cpu", "--out", str(prefix / "dump"))


def main():
    build, source = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory(dir=build, prefix="install-test-") as folder:
        prefix = Path(folder, "a folder with spaces")
        run("cmake", "--install", str(build), "--prefix", str(prefix))
        check_libraries(prefix)
        check_commands(prefix, source)
        for wanted in ("share/oscar/zoo", "share/oscar/schemas"):
            assert os.listdir(prefix / wanted), f"{wanted} is empty"
        if shutil.which("help2man"):
            assert ".SH NAME" in (prefix / "share/man/man1/oscar-fit.1").read_text(), "no manual page"
    print("the installed folder stands on its own")


if __name__ == "__main__":
    main()
