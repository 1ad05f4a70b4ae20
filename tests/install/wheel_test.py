# SPDX-License-Identifier: MIT
"""The wheel of scripts/wheel.sh, as a user meets it: wheel_test.py BUILD SOURCE [WHEEL]

It goes into an empty virtual environment, with what it asks for from PyPI, and a set is pulled within a minute. What it says of
itself is held to what is in it: the glibc of its tag, its libraries, their licences. Its operators and its plugin load into the torch
of the tests and into that of vLLM, and the program runs models with the torch that it was built with and with no other. Exit status
77 where the wheel's tools or PyPI cannot be had.
"""
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oscar-build"
SECONDS_TO_A_SET, BUILT_WITH = 60, "2.11"
# Of every system that the tag names (PEP 600), and of torch.
NOT_BROUGHT = ("libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libresolv.so", "libgcc_s.so", "libstdc++.so", "libz.so",
               "ld-linux", "libtorch_cpu.so", "libc10.so", "libcublas", "libcusolver", "libcusparse", "libnvJitLink")


KEPT = {"PATH": "/usr/bin:/bin"} | {name: os.environ[name] for name in ("HOME", "XDG_CACHE_HOME") if name in os.environ}


def run(*command, exit_code=0, talk=True, **variables):
    """What a command that must end with `exit_code` says; talk: on standard error, too."""
    done = subprocess.run(command, env=KEPT | variables, capture_output=True, text=True,
                          timeout=600)
    text = done.stdout + done.stderr
    assert done.returncode == exit_code, f"{command}: exit status {done.returncode}\n{text}"
    return text if talk else done.stdout.strip()


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def elf_files(folder):
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.open("rb").read(4) == b"\x7fELF"]


def check_content(wheel, folder):
    """The tag is the newest glibc that anything needs; every library comes along, or is every system's; each has a licence."""
    zipfile.ZipFile(wheel).extractall(folder)
    needed, named = set(), set()
    files = elf_files(folder)
    brought = {path.name for path in files}
    for path in files:
        named |= set(map(int, re.findall(r"Name: GLIBC_2\.(\d+)", run("readelf", "-V", str(path)))))
        needed |= set(re.findall(r"\(NEEDED\) .*\[(.*)\]", run("readelf", "-d", str(path))))
    tag = re.search(r"-py3-none-manylinux_2_(\d+)_x86_64\.whl$", wheel.name)
    assert tag and int(tag[1]) == max(named), f"{wheel.name}: a symbol of glibc 2.{max(named)} is needed"
    missing = [name for name in needed - brought if not name.startswith(NOT_BROUGHT)]
    assert not missing, f"libraries that are neither in the wheel nor on every system: {missing}"
    assert not [name for name in brought if "torch_cpu" in name or "c10" in name]
    licences = list(folder.glob("*.dist-info/licenses/*/copyright"))
    assert len(licences) > 10 and any("libcurl" in str(path) for path in licences), licences


def check_set(python, oscar, cache):
    """An empty environment has a set within a minute."""
    path = run(oscar, "pull", "sample/qwen3-2m", talk=False, OSCAR_CACHE=cache)
    run(oscar, "verify", path)  # also its .pt files, without torch
    code = f"import oscar_kv, sys; found = oscar_kv.read_set({path!r}); assert 'torch' not in sys.modules; print(len(found.layers))"
    assert run(python, "-c", code).strip() == "4"
    return path


def check_report(python, path, site, torch_site, version, vllm):
    """What `python -m oscar_kv` says, in an environment with this torch."""
    said = run(python, "-m", "oscar_kv", PYTHONPATH=f"{site}:{torch_site}", OSCAR_KV_SET=path)
    assert f"torch: {version}." in said and "the operators load" in said, said
    assert "can be read, 4 layers" in said and f"oscar_kv: 0." in said, said
    assert ("loads the plugin oscar" if vllm else "vLLM: not installed") in said, said
    left_out = {"PYTHONPATH": f"{site}:{torch_site}", "OSCAR_KV_SET": path, "VLLM_PLUGINS": "another"}
    if vllm:
        assert "leaves the plugin oscar out" in run(python, "-m", "oscar_kv", exit_code=1, **left_out)
    assert "OSCAR_KV_SET: error: /nowhere: there is no such file" in run(
        python, "-m", "oscar_kv", exit_code=1, PYTHONPATH=f"{site}:{torch_site}", OSCAR_KV_SET="/nowhere")


def check_models(oscar, site, torch_site, source, folder, version):
    """The program beside a torch: models run with the one that it was built with."""
    fits = version == BUILT_WITH
    for name in ("torch", "nvidia"):
        (site / name).symlink_to(torch_site / name)
    model = source / "tests/data/qwen3-2m"
    command = (oscar, "dump", "--model", model, "--text", source / "README.md", "--max-tokens", "64", "--out", folder, "--device", "cpu")
    said = run(*map(str, command), exit_code=0 if fits else 1)
    assert fits or (f"this needs torch {BUILT_WITH}, with which oscar was built, and finds torch {version}" in said and "pip install" in said), said
    for name in ("torch", "nvidia"):
        (site / name).unlink()


def site_of(python):
    return Path(run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())


def main():
    build, source = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    if not (CACHE / "wheel").exists():
        skip(f"{CACHE}/wheel is not there; run scripts/setup.sh --wheel")
    with tempfile.TemporaryDirectory(prefix="oscar-wheel-") as name:
        folder = Path(name)
        if len(sys.argv) > 3:
            wheel = Path(sys.argv[3])
        else:
            wheel = Path(run(str(source / "scripts/wheel.sh"), "--built", str(build), "--out", str(folder), talk=False))
        check_content(wheel, folder / "content")
        began = time.monotonic()
        run("/usr/bin/python3", "-m", "venv", str(folder / "venv"))
        python, oscar = str(folder / "venv/bin/python"), str(folder / "venv/bin/oscar")
        done = subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-cache-dir", str(wheel)], capture_output=True, text=True)
        if done.returncode != 0 and "connection" in done.stderr.lower():
            skip("PyPI, which has what the wheel asks for, does not answer")
        assert done.returncode == 0, done.stderr
        path = check_set(python, oscar, str(folder / "cache"))
        seconds = time.monotonic() - began
        print(f"figure: {seconds:.0f} s from an empty environment to a set, {wheel.stat().st_size / 1e6:.1f} MB")
        assert seconds < SECONDS_TO_A_SET, f"{seconds:.0f} s"
        site = site_of(python)
        said = run(python, "-m", "oscar_kv")
        assert "torch: error: No module named 'torch'" in said and "OSCAR_KV_SET: not set" in said, said
        assert f"install torch {BUILT_WITH} beside oscar" in run(oscar, "dump", "--model", str(source / "tests/data/qwen3-2m"), "--text",
                                                       str(source / "README.md"), "--out", str(folder / "none"), exit_code=1)
        for there, version in ((source / ".venv", "2.11"), (CACHE / "vllm", "2.13"), (CACHE / "server-torch", "2.14")):
            if not there.exists():
                print(f"without torch {version}: {there} is not there; scripts/README.md says what installs it")
                continue
            torch_python = there / "bin/python"
            check_report(str(torch_python), path, site, site_of(torch_python), version, version == "2.13")
            check_models(oscar, site, site_of(torch_python), source, folder / version, version)
    print("the wheel works in an empty environment")


if __name__ == "__main__":
    main()
