# SPDX-License-Identifier: MIT
"""What goes wrong between a fit and a server: faults_test.py [FaultsTest.test_…]."""
import json
import signal
import subprocess
import threading
import time
import unittest

from remote_case import MODEL, TOKENS, RemoteCase, read_folder
from peers import FileServer

WEIGHTS = "model-00001-of-00001.safetensors"


def answer(server, request, path, begin, end, said=None, etag=None):
    """Sends these bytes of a file as the range `said`, if it is another one."""
    first, last = said or (begin, end)
    body = server.files[path]
    return request.reply(206, body[begin:end], ETag=etag or server.etag(body), Content_Range=f"bytes {first}-{last - 1}/{len(body)}")


class FaultsTest(RemoteCase):
    def setUp(self):
        super().setUp()
        self.environment["OSCAR_DEVICE"] = "cpu"  # a GPU reads layers side by side, before something can happen in between

    def model(self, fault=None, **options):
        """fault(request, path, nth, asked): in place of what is asked for of the weights."""
        def of_weights(request, path, *more):
            return fault is not None and path.endswith(WEIGHTS) and fault(request, path, *more)
        server = FileServer({f"m/{path}": content for path, content in read_folder(MODEL).items()}, fault=of_weights, **options)
        return server

    def fails(self, fragments, server, *options, path="m", **more):
        with server as url:
            return self.fail_with(fragments, "fit", "--model", f"{url}/{path}", *TOKENS, *options, "--out", "set", **more)

    def comes_whole(self, server):
        rotations = [*TOKENS, "--recipe", "oscar"]
        with server as url:
            there = self.fit("b", "--model", f"{url}/m", *rotations)
        self.same(self.fit("a", "--model", self.copy(MODEL, "m"), *rotations), there)

    def test_a_line_that_is_cut_is_taken_up_again(self):
        def cut(request, path, nth, asked):
            if nth % 3:
                return False
            body = server.files[path]
            request.close_connection = True
            return request.reply(206, body[asked[0]:sum(asked) // 2], length=asked[1] - asked[0], ETag=server.etag(body),
                                 Content_Range=f"bytes {asked[0]}-{asked[1] - 1}/{len(body)}")
        server = self.model(cut)
        self.comes_whole(server)
        self.assertTrue(any(server.conditions))

    def test_answers_that_say_too_little(self):
        server = self.model(lambda request, path, nth, asked: asked[1] - asked[0] > 1000 and answer(
            server, request, path, asked[0], asked[1] - 7))
        self.comes_whole(server)  # pieces of pieces are asked for again

    def test_servers_that_cannot_serve_a_model(self):
        self.fails(["HTTP 503", "(tried 4 times)", WEIGHTS, "trying again"],
                   self.model(lambda request, path, nth, asked: nth > 2 and request.reply(503)))
        self.fails(["whole files only", WEIGHTS, "nginx, Apache"], self.model(ranges=False))
        server = self.model(lambda request, path, nth, asked: answer(server, request, path, 1, 65537))
        self.fails(["the range that was asked for", WEIGHTS], server)

    def test_a_file_that_changes(self):
        def change(request, path, nth, asked):
            if nth == 4:
                server.files[path] = server.files[path][:-1] + bytes([server.files[path][-1] ^ 1])
            return False
        server = self.model(change)
        self.fails(["has changed since this run first read it", WEIGHTS, "run again"], server)
        without_conditions = self.model(lambda request, path, nth, asked: answer(
            without_conditions, request, path, *asked, etag=f'"{nth // 4}"'))
        self.fails(["has changed since this run first read it", WEIGHTS], without_conditions)

    def test_what_is_not_there(self):
        self.fails(["no such file", "/x/config.json"], self.model(), path="x")
        server = self.model()
        del server.files[f"m/{WEIGHTS}"]
        self.fails(["no such file", WEIGHTS], server)
        for bad, code in (("http://", 2), ("https://h/m?version=1", 2), ("s3://bucket/m", 1)):
            self.fail_with(["try:"], "fit", "--model", bad, *TOKENS, "--out", "set", code=code)

    def test_a_dump_at_an_address_is_refused_and_its_password_shown_nowhere(self):
        for address in ("https://me:secret@host/dump", "hf://me/secret"):
            for command in (["fit", "--out", "set"], ["fit", "--save-stats", "set"], ["verify", MODEL.parent / "tiny-set"]):
                done = self.fail_with(["a dump is read from a folder on disk", "copy the folder to disk", "--save-stats FILE"],
                                      *command, "--dump", address, code=2)
                self.assertNotIn("secret", done.stderr)

    def test_a_password_is_taken_from_netrc_and_never_from_an_address(self):
        self.fails(["HTTP 401", "netrc"], self.model(password="me:p@ss"))
        with self.model() as url:
            named = url.replace("http://", "http://me:p@ss@")
            done = self.fail_with(["no password"], "fit", "--model", f"{named}/m", *TOKENS, "--out", "set", code=2)
            self.assertNotIn("p@ss", done.stderr)
        (self.folder / ".netrc").write_text("machine 127.0.0.1 login me password p@ss\n")
        self.comes_whole(self.model(password="me:p@ss"))

    def test_an_index_cannot_name_files_outside_its_folder(self):
        server = self.model()
        server.files["m/model.safetensors.index.json"] = json.dumps(
            {"weight_map": {"model.embed_tokens.weight": "..%2fprivate%2fx.safetensors"}}).encode()
        self.fails(["leads out of its folder"], server, code=2)
        self.assertEqual(server.asked("private"), [])

    def test_an_error_does_not_wait_for_the_next_layer_of_a_model(self):
        held, server = threading.Event(), self.model()
        weights = bytearray(server.files[f"m/{WEIGHTS}"])
        size = int.from_bytes(weights[:8], "little")
        places = {name: [8 + size + at for at in entry["data_offsets"]]
                  for name, entry in json.loads(weights[8:8 + size]).items() if name.startswith("model.layers.")}
        begin, end = places["model.layers.0.self_attn.k_proj.weight"]
        weights[begin:end] = b"\xff" * (end - begin)
        after = [place for name, place in places.items() if name.startswith("model.layers.1.")]

        def hold_back(request, path, nth, asked):
            if not any(begin <= asked[0] < end for begin, end in after):
                return False
            held.set()
            return server.closing.wait(60)
        server = self.model(hold_back)
        server.files[f"m/{WEIGHTS}"] = bytes(weights)
        begun = time.monotonic()
        self.fails(["layer 0", "not finite"], server, "--recipe", "oscar")  # which takes a layer at a time
        self.assertTrue(held.is_set())  # the run would wait for that for two minutes
        self.assertLess(time.monotonic() - begun, 10)

    def test_ctrl_c(self):
        with (server := self.model(stall_at=200_000)) as url:
            running = subprocess.Popen(self.command("fit", "--model", f"{url}/m", *TOKENS, "--out", "set"), cwd=self.folder,
                                       env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            while not any(piece and piece[1] > 200_000 for piece in server.asked(WEIGHTS)):
                time.sleep(0.05)
            begun = time.monotonic()
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=60)
        self.assertEqual(running.returncode, 130, said)
        self.assertLess(time.monotonic() - begun, 5)
        self.assertFalse((self.folder / "set").exists())


if __name__ == "__main__":
    unittest.main()
