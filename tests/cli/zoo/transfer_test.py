# SPDX-License-Identifier: MIT
"""How `oscar pull` moves bytes: ranges, cut lines, HTTP/2, slow peers: transfer_test.py [TransferTest.test_…]"""
import hashlib
import json
import os
import resource
import subprocess
import tempfile
import time
import unittest
from collections import Counter
from pathlib import Path

from peers import Nginx, RangeServer, Relay
from support import KEYS, NAME, REMOTE_KEYS, ZooTest, read_folder

PIECE = 8 << 20
LARGE = 3 * PIECE + 12345


class TransferTest(ZooTest):
    def large(self):
        self.published(keys_size=LARGE)
        return read_folder(self.zoo)

    def pulled(self, url, *more, **options):
        done = self.succeed("pull", NAME, "--zoo", url, *more, **options)
        self.assertEqual(read_folder(done.stdout.strip()), read_folder(self.zoo / NAME / "latest"))
        return done

    def test_a_large_file_comes_in_pieces_at_once(self):
        with (server := RangeServer(self.large(), pause=0.002)) as url:
            self.pulled(url)
        pieces = sorted(asked for path, asked in server.seen if path == REMOTE_KEYS)
        self.assertEqual(pieces, [(0, PIECE), (PIECE, 2 * PIECE), (2 * PIECE, 3 * PIECE), (3 * PIECE, LARGE)])
        self.assertGreaterEqual(server.most_at_once, 3)

    def test_a_server_without_ranges_is_asked_once(self):
        with (server := RangeServer(self.large(), ranges=False)) as url:
            self.pulled(url)
        self.assertEqual([path for path, _ in server.seen].count(REMOTE_KEYS), 1)

    def test_a_cut_line_costs_only_what_was_lost(self):
        files = self.large()
        with (server := RangeServer(files, cut_after=3 << 20)) as url:
            done = self.pulled(url, "--retries", "2")
        self.assertIn("trying again", done.stderr)
        self.assertLess(server.sent, 1.2 * sum(map(len, files.values())))

    def test_a_pull_that_was_killed_goes_on_where_it_was(self):
        self.killed_and_resumed()

    def test_so_does_one_into_a_folder(self):
        self.killed_and_resumed("--out", self.out)
        self.assertEqual([path.name for path in self.folder.iterdir() if path.name.startswith(".")], [])

    def test_the_folder_may_be_on_another_file_system(self):
        memory = Path("/dev/shm")
        if not memory.is_dir() or memory.stat().st_dev == self.folder.stat().st_dev:
            self.skipTest("/dev/shm is no other file system here")
        files = self.published()
        with tempfile.TemporaryDirectory(dir=memory) as folder, RangeServer(read_folder(self.zoo)) as url:
            self.pulled(url, "--out", Path(folder) / "set")
            self.assertEqual(read_folder(Path(folder) / "set"), files)
        self.assertEqual(list((self.cache / "partial").glob("*")), [])

    def killed_and_resumed(self, *more):
        files = self.large()
        with RangeServer(files, stall_at=PIECE // 2) as url:
            running = self.start_oscar("pull", NAME, "--zoo", url, *more)
            part = self.cache / "partial"
            for _ in range(500):
                if sum(file.stat().st_size for file in part.rglob(KEYS)) >= PIECE // 2:
                    break
                time.sleep(0.02)
            running.kill()
            running.communicate()
        self.assertEqual(list((self.cache / "sets").glob("*")) if (self.cache / "sets").exists() else [], [])
        self.assertFalse(self.out.exists())
        with (again := RangeServer(files)) as url:
            self.pulled(url, *more)
        begins = [asked[0] for path, asked in again.seen if path == REMOTE_KEYS]
        self.assertEqual(min(begins), PIECE // 2)
        self.assertEqual(list((self.cache / "partial").glob("*")), [])

    def test_what_was_kept_is_checked_too(self):
        files = self.published()
        url_files = read_folder(self.zoo)
        with RangeServer(url_files, stall_at=65536 * 2) as url:
            self.run_oscar("pull", NAME, "--zoo", url, "--timeout", "1", "--retries", "0")
        kept, = (self.cache / "partial").rglob(KEYS)
        self.assertEqual(kept.read_bytes(), files[KEYS][:65536 * 2])
        kept.write_bytes(b"x" * 1000)
        with (server := RangeServer(url_files)) as url:
            self.pulled(url)
        self.assertEqual([asked for path, asked in server.seen if path == REMOTE_KEYS], [(1000, 300_000), None])

    def test_a_server_that_drips_is_given_up(self):
        self.published()
        started = time.monotonic()
        with RangeServer(read_folder(self.zoo), block=8, pause=0.2) as url:
            self.fail_with(1, "the transfer failed", "pull", NAME, "--zoo", url, "--timeout", "2", "--retries", "0")
        self.assertLess(time.monotonic() - started, 20)

    def test_http2_carries_everything_on_one_connection(self):
        self.published()
        certificate, key = self.folder / "c.pem", self.folder / "k.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
                        "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
                       check=True, capture_output=True)
        with Nginx(self.folder / "nginx", self.zoo, (certificate, key)) as nginx:
            self.pulled(nginx.url, env={"SSL_CERT_FILE": str(certificate)})
        requests = nginx.requests()
        # Index, manifest, and the seven files that are not empty; beside them what a set usually has was expected.
        self.assertEqual(Counter(method for _, _, method, *_ in requests), {"GET": 9, "HEAD": 5})
        self.assertEqual({protocol for _, protocol, *_ in requests}, {"HTTP/2.0"})
        self.assertEqual(len({connection for connection, *_ in requests}), 1)

    def test_files_come_together_over_a_slow_line(self):
        self.published()
        with RangeServer(read_folder(self.zoo)) as url, Relay(url, 0.1) as relay:
            started = time.monotonic()
            self.pulled(relay.url)
            seconds = time.monotonic() - started
        # One after the other: 10 requests of 0.2 s and as many connections. Together: connect, index with manifest, files.
        self.assertLess(seconds, 2.0)

    def test_a_set_in_the_cache_costs_no_time(self):
        self.published()
        with RangeServer(read_folder(self.zoo)) as url:
            self.pulled(url)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        for _ in range(5):
            self.pulled(url)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 5
        self.assertLess(used, 0.05)  # of processor time: others may use this machine too

    def test_more_than_is_allowed_is_not_fetched(self):
        files = self.published()
        with (server := RangeServer(read_folder(self.zoo))) as url:
            self.fail_with(1, "--max-size", "pull", NAME, "--zoo", url, "--max-size", "100K")
            self.assertEqual(len(server.seen), 2)
            self.pulled(url, "--max-size", str(sum(map(len, files.values()))))

    def test_ten_gigabytes_are_refused_by_what_the_manifest_says(self):
        self.published()
        manifest = json.loads((self.zoo / NAME / "latest/manifest.json").read_text())
        manifest["files"][0]["size"] = 10 << 30
        self.republish(manifest)
        with RangeServer(read_folder(self.zoo)) as url:
            self.fail_with(1, "more than the 4294967296 that are allowed", "pull", NAME, "--zoo", url)

    def republish(self, manifest):
        """Another manifest under the same name, as whoever owns a server could put there."""
        text = json.dumps(manifest).encode()
        (self.zoo / NAME / "latest/manifest.json").write_bytes(text)
        index = json.loads((self.zoo / "index.json").read_text())
        index["entries"][0]["manifest"] = {"sha256": hashlib.sha256(text).hexdigest(), "size": len(text)}
        index["entries"][0]["total_size"] = len(text) + sum(file["size"] for file in manifest["files"])
        (self.zoo / "index.json").write_text(json.dumps(index))

    def test_a_target_that_cannot_be_written_is_an_error(self):
        self.published()
        (self.folder / "blocked").write_text("a file")
        with RangeServer(read_folder(self.zoo)) as url:
            self.fail_with(1, "cannot", "pull", NAME, "--zoo", url, "--out", self.folder / "blocked/set")


if __name__ == "__main__":
    program = unittest.main(exit=False)
    os._exit(1 if not program.result.wasSuccessful() else 77 if program.result.skipped else 0)
