# SPDX-License-Identifier: MIT
"""Models that are streamed give the bytes that the same folders on disk give, whatever lies between: stream_test.py
[StreamTest.test_…]."""
import json
import shutil
import socket
import unittest

from remote_case import DATA, MODEL, TOKENS, RemoteCase, read_folder
from peers import FileServer, Nginx, certificate

LAYER = [*TOKENS, "--layers", "0", "--recipe", "oscar"]


class ServerOfVersion6(FileServer):
    host = "::1"


class StreamTest(RemoteCase):
    def model(self, kind=FileServer):
        return kind({f"m/{path}": content for path, content in read_folder(MODEL).items()})

    def fit_layer(self, place, out, **env):
        return self.fit(out, "--model", place, *LAYER, env=env)

    def test_a_model_at_a_server(self):
        text = ["--text", DATA / "text/pep-0334.txt", "--max-tokens", "600"]
        with self.serving(MODEL) as url:
            address = f"{url}/{MODEL.name}"
            self.same(self.fit("a", "--model", MODEL, *TOKENS), self.fit("b", "--model", address + "/", *TOKENS))
            self.succeed("dump", "-q", "--model", MODEL, *text, "--out", "c")
            self.succeed("dump", "-q", "--model", address, *text, "--out", "d")
            self.same(read_folder(self.folder / "c"), read_folder(self.folder / "d"))
            resumed = self.fit("e", "--recipe", "oscar", "--resume", "--model", address, *TOKENS)
            self.same(self.fit("f", "--recipe", "oscar", "--model", MODEL, *TOKENS), resumed)

    def test_a_model_in_one_file(self):
        single = self.copy(MODEL, "qwen3-2m")
        (single / "model.safetensors.index.json").unlink()
        (single / "model-00001-of-00001.safetensors").rename(single / "model.safetensors")
        with self.serving(single) as url:
            self.same(self.fit_layer(single, "a"), self.fit_layer(f"{url}/qwen3-2m", "b"))

    def test_statistics_at_an_address(self):
        parts = ("first.safetensors", "second.safetensors")
        for part, text in zip(parts, ("calib", "eval")):
            of_text = (DATA / f"golden/qwen3-2m/tokens_{text}.npy", *TOKENS[2:])
            self.succeed("fit", "-q", "--model", MODEL, "--recipe", "oscar", "--tokens", *of_text, "--save-stats", part)
        with FileServer({name: (self.folder / name).read_bytes() for name in parts}) as url:
            there = self.fit("b", "--recipe", "oscar", "--stats", *(f"{url}/{name}" for name in parts))
        self.same(self.fit("a", "--recipe", "oscar", "--stats", *parts), there)

    def test_no_more_is_asked_for_than_is_needed(self):
        weights = "model-00001-of-00001.safetensors"
        with (server := self.serving(MODEL)) as url:
            self.same(self.fit_layer(MODEL, "a"), self.fit_layer(f"{url}/{MODEL.name}", "b"))
        self.assertLess(self.bytes_asked(server, weights), (MODEL / weights).stat().st_size * 0.6)

    def test_verify_fetches_a_model_no_more_often_for_more_methods(self):
        self.fit("a", "--model", MODEL, *TOKENS, "--recipe", "oscar")
        verify = ["verify", "-q", "a", *TOKENS, "--compare", "naive,fp8", "--no-default-limits", "--recent", "64", "--json"]
        server = self.serving(MODEL)
        with server as url:
            figures = [json.loads(self.succeed(*verify, "--model", place).stdout)["methods"] for place in (MODEL, f"{url}/{MODEL.name}")]
        self.assertEqual(*figures)
        self.assertGreater(len(figures[0]), 2)
        # Once for its rows, and once for all methods; embeddings, a sixth of this small model, come a third time.
        self.assertLess(self.bytes_asked(server, "00001.safetensors"), 2.8 * (MODEL / "model-00001-of-00001.safetensors").stat().st_size)

    def test_nginx_over_http2(self):
        shutil.copytree(MODEL, self.folder / "www/a+b/qwen3-2m")
        files = certificate(self.folder)
        with Nginx(self.folder / "nginx", self.folder / "www", files) as nginx:
            there = self.fit_layer(f"{nginx.url}/a%2Bb/qwen3-2m", "b", SSL_CERT_FILE=str(files[0]))
            ranges = [line for line in nginx.requests() if line[4] == "206"]
        self.same(self.fit_layer(MODEL, "a"), there)
        self.assertGreater(len(ranges), 4)
        self.assertEqual({line[1] for line in ranges}, {"HTTP/2.0"})

    def test_a_proxy_from_the_environment(self):
        with (proxy := self.model()) as url:
            there = self.fit_layer("http://weights.invalid/m", "there", http_proxy=url)
            self.assertEqual(proxy.hosts, {"weights.invalid"})
            proxy.hosts.clear()
            with self.model() as own:
                self.fit_layer(f"{own}/m", "direct", http_proxy=url, no_proxy="127.0.0.1")
        self.assertEqual(proxy.hosts, set())
        self.same(self.fit_layer(self.copy(MODEL, "m"), "here"), there)

    def test_an_address_of_version_6(self):
        try:
            with socket.create_server(("::1", 0), family=socket.AF_INET6):
                pass
        except OSError as error:
            self.skipTest(f"no addresses of version 6 here: {error}")
        with self.model(ServerOfVersion6) as url:
            there = self.fit_layer(f"{url}/m", "there")
        self.same(self.fit_layer(self.copy(MODEL, "m"), "here"), there)


if __name__ == "__main__":
    unittest.main()
