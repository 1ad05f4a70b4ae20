# SPDX-License-Identifier: MIT
"""What the tests of publish and pull share: a small valid set, the binary, and a clean environment for it."""
import hashlib
import io
import json
import os
import random
import subprocess
import tempfile
import unittest
import zipfile
from pathlib import Path

NAME = "test/tiny"
KEYS, VALUES = "k_rotation_qqt_r_h_pbr.pt", "v_rotation_sst_r_h_pbr.pt"
TINY_SET = Path(__file__).resolve().parents[2] / "data/tiny-set"
REMOTE_KEYS, MANIFEST = f"{NAME}/latest/{KEYS}", f"{NAME}/latest/manifest.json"


def padded(archive, size, random_bytes):
    """A .pt file of this size: with one record more, which its readers do not look at."""
    def with_payload(payload):
        content = io.BytesIO(archive)
        with zipfile.ZipFile(content, "a", zipfile.ZIP_STORED) as records:
            records.writestr(zipfile.ZipInfo("archive/payload"), payload)
        return content.getvalue()

    return with_payload(random_bytes(max(0, size - len(with_payload(b"")))))


def make_set(folder, seed, verdict="accepted", keys_size=300_000):
    """Writes a sound set of which files differ for every seed; returns {path: bytes}."""
    source, piece = random.Random(seed), 1 << 26  # Python makes no more than 256 MB at once

    def random_bytes(size):
        return b"".join(source.randbytes(min(piece, size - at)) for at in range(0, size, piece))

    files = {path.name: path.read_bytes() for path in sorted(TINY_SET.iterdir())}
    manifest = json.loads(files.pop("manifest.json"))
    files["tables/empty.txt"] = b""
    files[KEYS] = padded(files[KEYS], keys_size, random_bytes)
    files[VALUES] = padded(files[VALUES], 200_000, random_bytes)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    before = {file["path"]: file["sha256"] for file in manifest["files"]}
    for name in (KEYS, VALUES):
        files["serve.env"] = files["serve.env"].replace(before[name].encode(), hashes[name].encode())
    hashes["serve.env"] = hashlib.sha256(files["serve.env"]).hexdigest()
    manifest["files"] = [{"path": path, "sha256": hashes[path], "size": len(content)} for path, content in files.items()]
    of_readers = {name: {"part": part, "verdict": verdict} for name, part in manifest["readers"].items()}
    measured = {"attention": {"softmax_kl": 0.01}, "layers": [1, 2, 3]}
    manifest["verification"] = {"verdict": verdict, "readers": of_readers, **measured} if verdict else None
    files["manifest.json"] = (json.dumps(manifest, indent=1) + "\n").encode()
    for path, content in files.items():
        (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
        (Path(folder) / path).write_bytes(content)
    return files


def read_folder(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


class ZooTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-zoo-")))
        self.zoo, self.cache, self.out = self.folder / "zoo", self.folder / "cache", self.folder / "out"
        # No proxies, tokens or caches of whoever runs the tests.
        self.environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "OSCAR_CACHE": str(self.cache)}
        for variable in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS"):
            if variable in os.environ:
                self.environment[variable] = os.environ[variable]

    def key(self, name="key"):
        """(private, public) PEM files, by openssl."""
        private, public = self.folder / f"{name}.pem", self.folder / f"{name}.pub"
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
        subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
        return private, public

    def command(self, *arguments):
        return [os.environ["OSCAR_BINARY"], *map(str, arguments)]

    def run_oscar(self, *arguments, **more):
        environment = {**self.environment, **more.pop("env", {})}
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, env=environment, timeout=250,
                              cwd=self.folder, **more)

    def start_oscar(self, *arguments):
        return subprocess.Popen(self.command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=self.environment, cwd=self.folder)

    def succeed(self, *arguments, **more):
        done = self.run_oscar(*arguments, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def fail_with(self, exit_code, fragments, *arguments, **more):
        done = self.run_oscar(*arguments, **more)
        self.assertEqual(done.returncode, exit_code, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertIn("try:", done.stderr)
        for fragment in [fragments] if isinstance(fragments, str) else fragments:
            self.assertIn(fragment, done.stderr)
        self.assert_nothing_written()
        return done

    def same(self, here, there):
        """Files by path: what differs is named, and not shown."""
        self.assertEqual([path for path in {**here, **there} if here.get(path) != there.get(path)], [])

    def assert_nothing_written(self):
        """No set, whole or half, under any name, and no leftovers beside it."""
        self.assertFalse(self.out.exists())
        for path in self.cache.rglob("*") if self.cache.exists() else []:
            self.assertIn(path.relative_to(self.cache).parts[0], ("locks", "sets", "partial"))
            self.assertTrue(path == self.cache / "sets" or {"locks", "partial"} & set(path.parts), path)
        self.assertEqual([path.name for path in self.folder.iterdir() if path.name.startswith(".") and path.name != ".netrc"], [])

    def published(self, seed=1, verdict="accepted", name=NAME, keys_size=300_000):
        """A set, published in self.zoo; returns its files."""
        files = make_set(self.folder / f"set-{seed}", seed, verdict, keys_size)
        self.succeed("publish", self.folder / f"set-{seed}", "--zoo", self.zoo, "--name", name, "--force")
        return files
