# SPDX-License-Identifier: MIT
"""What goes wrong between a fit and a server: faults_test.py [FaultsTest.test_…]."""
import json
import signal
import subprocess
import threading
import time
import unittest

from remote_case import MODEL, TOKENS, FaultyServer, RemoteCase, read_folder
from peers import RangeServer

WEIGHTS = "model-00001-of-00001.safetensors"


class FaultsTest(RemoteCase):
    def setUp(self):
        super().setUp()
        self.environment["OSCAR_DEVICE"] = "cpu"  # a GPU reads layers side by side, before something can happen in between

    def model(self, **options):
        return FaultyServer({f"m/{path}": content for path, content in read_folder(MODEL).items()}, **options)

    def fails(self, fragments, **options):
        with self.model(**options) as url:
            return self.fail_with(fragments, "fit", "--model", f"{url}/m", *TOKENS, "--out", "set")

    def test_a_line_that_is_cut_is_taken_up_again(self):
        def cut(request, path, nth, asked):
            if not path.endswith(WEIGHTS) or nth % 3:
                return False
            body = server.files[path][asked[0]:asked[1]]
            request.close_connection = True
            return request.reply(206, body[:len(body) // 2], length=len(body), ETag=server.etag(path),
                                 Content_Range=f"bytes {asked[0]}-{asked[1] - 1}/{len(server.files[path])}")
        server = self.model(fault=cut)
        with server as url:
            there = self.fit("b", "--model", f"{url}/m", *TOKENS)
        self.assertEqual(self.fit("a", "--model", self.copy(MODEL, "m"), *TOKENS), there)
        self.assertTrue(any(server.conditions))

    def test_a_server_that_is_busy_for_good(self):
        def busy(request, path, nth, asked):
            return path.endswith(WEIGHTS) and nth > 2 and request.reply(503)
        self.fails(["HTTP 503", "(tried 4 times)", WEIGHTS, "trying again"], fault=busy)

    def test_answers_that_say_too_little(self):
        def short(request, path, nth, asked):
            size = len(server.files.get(path, b""))
            return path.endswith(WEIGHTS) and asked[1] - asked[0] > 1000 and request.reply(
                206, server.files[path][asked[0]:asked[1] - 7], ETag=server.etag(path),
                Content_Range=f"bytes {asked[0]}-{asked[1] - 8}/{size}")
        server = self.model(fault=short)
        with server as url:  # pieces of pieces are asked for again
            there = self.fit("b", "--model", f"{url}/m", *TOKENS)
        self.assertEqual(self.fit("a", "--model", self.copy(MODEL, "m"), *TOKENS), there)

    def test_a_file_that_changes(self):
        def change(request, path, nth, asked):
            if path.endswith(WEIGHTS) and nth == 4:
                body = bytearray(server.files[path])
                body[-1] ^= 1
                server.files[path] = bytes(body)
            return False
        server = self.model(fault=change)
        with server as url:
            self.fail_with(["has changed since this run first read it", WEIGHTS, "run again"], "fit", "--model", f"{url}/m", *TOKENS,
                           "--out", "set")

    def test_a_file_that_changes_at_a_server_without_conditions(self):
        def change(request, path, nth, asked):
            body = server.files[path]
            if not path.endswith(WEIGHTS):
                return False
            return request.reply(206, body[asked[0]:asked[1]], ETag=f'"{nth // 4}"',
                                 Content_Range=f"bytes {asked[0]}-{asked[1] - 1}/{len(body)}")
        server = self.model(fault=change)
        with server as url:
            self.fail_with(["has changed since this run first read it", WEIGHTS], "fit", "--model", f"{url}/m", *TOKENS, "--out", "set")

    def test_a_server_without_ranges(self):
        with RangeServer({f"m/{path}": content for path, content in read_folder(MODEL).items()}, ranges=False) as url:
            self.fail_with(["whole files only", WEIGHTS, "nginx, Apache"], "fit", "--model", f"{url}/m", *TOKENS,
                           "--out", "set")

    def test_a_server_that_sends_another_range(self):
        def shifted(request, path, nth, asked):
            body = server.files[path]
            return path.endswith(WEIGHTS) and request.reply(206, body[1:65537], Content_Range=f"bytes 1-65536/{len(body)}")
        server = self.model(fault=shifted)
        with server as url:
            self.fail_with(["the range that was asked for", WEIGHTS], "fit", "--model", f"{url}/m", *TOKENS, "--out", "set")

    def test_what_is_not_there(self):
        out = ["--out", "set"]
        with (server := self.model()) as url:
            self.fail_with(["no such file", "/x/config.json"], "fit", "--model", f"{url}/x", *TOKENS, *out)
            del server.files[f"m/{WEIGHTS}"]
            self.fail_with(["no such file", WEIGHTS], "fit", "--model", f"{url}/m", *TOKENS, *out)
        for bad in ("http://", "https://h/m?version=1"):
            self.fail_with(["try:"], "fit", "--model", bad, *TOKENS, *out, code=2)
        self.fail_with(["s3://bucket/m"], "fit", "--model", "s3://bucket/m", *TOKENS, *out)  # no kind of address

    def test_a_dump_at_an_address_is_refused_and_its_password_shown_nowhere(self):
        for address in ("https://me:secret@host/dump", "hf://me/secret"):
            for command in (["fit", "--out", "set"], ["fit", "--save-stats", "set"], ["verify", MODEL.parent / "tiny-set"]):
                done = self.fail_with(["a dump is read from a folder on disk", "copy the folder to disk", "--save-stats FILE"],
                                      *command, "--dump", address, code=2)
                self.assertNotIn("secret", done.stderr)

    def test_a_password_in_an_address_is_used_and_shown_nowhere(self):
        with self.model(password="me:p@ss") as url:
            place = url.replace("http://", "http://me:p%40ss@")
            files = self.fit("b", "--model", f"{place}/m", *TOKENS)
            self.assertEqual(self.fit("a", "--model", self.copy(MODEL, "m"), *TOKENS), files)
            done = self.fail_with(["no such file", "/x/config.json"], "fit", "--model", f"{place}/x", *TOKENS, "--out", "set")
            self.fail_with(["HTTP 401", "check the credentials"], "fit", "--model", f"{url}/m", *TOKENS, "--out", "set")
        for secret in ("p@ss", "p%40ss"):
            self.assertNotIn(secret, done.stderr)

    def test_an_index_cannot_name_files_outside_its_folder(self):
        server = self.model()
        server.files["m/model.safetensors.index.json"] = json.dumps(
            {"weight_map": {"model.embed_tokens.weight": "..%2fprivate%2fx.safetensors"}}).encode()
        with server as url:
            self.fail_with(["leads out of its folder"], "fit", "--model", f"{url}/m", *TOKENS, "--out", "set", code=2)
        self.assertFalse([path for path in server.seen if "private" in path])

    def test_statistics_at_an_address(self):
        self.succeed("fit", "-q", "--dump", self.dump(), "--value-objective", "vtv", "--save-stats", "sums.safetensors")
        with FaultyServer({"sums.safetensors": (self.folder / "sums.safetensors").read_bytes()}) as url:
            there = self.fit("b", "--stats", f"{url}/sums.safetensors", "--value-objective", "vtv")
        self.assertEqual(self.fit("a", "--stats", "sums.safetensors", "--value-objective", "vtv"), there)

    def fails_at_once(self, server, fragments, *arguments, **more):
        """Although the server holds back what is read ahead: the run would wait for that for two minutes."""
        with server:
            begun = time.monotonic()
            self.fail_with(fragments, "fit", *arguments, "--recipe", "oscar", "--out", "set", **more)
        self.assertTrue(server.held.is_set())
        self.assertLess(time.monotonic() - begun, 10)

    def holding_back(self, files, held, before=lambda path, asked: False):
        """Holds back what held() tells, and does not answer what before() tells until it holds something back."""
        def fault(request, path, nth, asked):
            if held(path, asked):
                server.held.set()
                return server.closing.wait(60)
            return before(path, asked) and not server.held.wait(20)
        server = FaultyServer(files, fault)
        server.held = threading.Event()
        return server

    def test_an_error_does_not_wait_for_the_next_layer_of_a_model(self):
        files = {f"m/{path}": content for path, content in read_folder(MODEL).items()}
        weights = bytearray(files[f"m/{WEIGHTS}"])
        size = int.from_bytes(weights[:8], "little")
        places = {name: [8 + size + at for at in entry["data_offsets"]]
                  for name, entry in json.loads(weights[8:8 + size]).items() if name.startswith("model.layers.")}
        begin, end = places["model.layers.0.self_attn.k_proj.weight"]
        weights[begin:end] = b"\xff" * (end - begin)
        files[f"m/{WEIGHTS}"] = bytes(weights)
        after = [place for name, place in places.items() if name.startswith("model.layers.1.")]
        server = self.holding_back(files, lambda path, asked: path.endswith(WEIGHTS) and any(
            begin <= asked[0] < end for begin, end in after))
        self.fails_at_once(server, ["layer 0", "not finite"], "--model", f"{server.url}/m", *TOKENS)

    def test_ctrl_c(self):
        files = {f"m/{path}": content for path, content in read_folder(MODEL).items()}
        server = RangeServer(files, stall_at=200_000)
        with server as url:
            running = subprocess.Popen(self.command("fit", "--model", f"{url}/m", *TOKENS, "--out", "set"), cwd=self.folder,
                                       env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            while not any(path.endswith(WEIGHTS) and piece and piece[1] > 200_000 for path, piece in list(server.seen)):
                time.sleep(0.05)
            begun = time.monotonic()
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=60)
        self.assertEqual(running.returncode, 130, said)
        self.assertLess(time.monotonic() - begun, 5)
        self.assertFalse((self.folder / "set").exists())


if __name__ == "__main__":
    unittest.main()
