# SPDX-License-Identifier: MIT
"""Models that are streamed give the bytes that the same folders on disk give: stream_test.py [StreamTest.test_…]."""
import json
import shutil
import subprocess

from remote_case import DATA, MODEL, TOKENS, RemoteCase, main, read_folder
from peers import Nginx, RangeServer


class StreamTest(RemoteCase):
    def test_a_model_in_a_bucket(self):
        address = self.bucket().upload(MODEL, "models/qwen3-2m")
        text = ["--text", DATA / "text/pep-0334.txt", "--max-tokens", "600"]
        here, there = self.fit("a", "--model", MODEL, *TOKENS), self.fit("b", "--model", address + "/", *TOKENS)
        self.assertEqual(here, there)
        self.succeed("dump", "-q", "--model", MODEL, *text, "--out", "c")
        self.succeed("dump", "-q", "--model", address, *text, "--out", "d")
        self.assertEqual(read_folder(self.folder / "c"), read_folder(self.folder / "d"))
        verify = ["verify", "-q", "a", *TOKENS, "--compare", "none", "--no-default-limits", "--recent", "64", "--json"]
        figures = [json.loads(self.succeed(*verify, "--model", place).stdout)["methods"] for place in (MODEL, address)]
        self.assertEqual(*figures)

    def test_a_model_in_one_file(self):
        single = self.copy(MODEL, "qwen3-2m")
        (single / "model.safetensors.index.json").unlink()
        (single / "model-00001-of-00001.safetensors").rename(single / "model.safetensors")
        address = self.bucket().upload(single, "qwen3-2m")
        options = ["--recipe", "stretch", "--target", "any", *TOKENS]
        self.assertEqual(self.fit("a", "--model", single, *options), self.fit("b", "--model", address, *options))

    def test_a_model_on_a_web_server_asks_for_no_more_than_it_needs(self):
        files = read_folder(MODEL)
        weights = files["model-00001-of-00001.safetensors"]
        server = RangeServer({f"models/qwen3-2m/{path}": content for path, content in files.items()})
        with server as url:
            there = self.fit("b", "--model", f"{url}/models/qwen3-2m", "--layers", "0", "--recipe", "oscar", *TOKENS)
        self.assertEqual(self.fit("a", "--model", MODEL, "--layers", "0", "--recipe", "oscar", *TOKENS), there)
        asked = [piece for path, piece in server.seen if path.endswith(".safetensors")]
        self.assertNotIn(None, asked)
        self.assertLess(sum(end - begin for begin, end in asked), len(weights) * 0.6)

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
        certificate, key = self.folder / "c.pem", self.folder / "k.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
                        "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        with Nginx(self.folder / "nginx", self.folder / "www", (certificate, key)) as nginx:
            there = self.fit("b", "--model", f"{nginx.url}/a%2Bb/qwen3-2m", *TOKENS, env={"SSL_CERT_FILE": str(certificate)})
            ranges = [line for line in nginx.requests() if line[4] == "206"]
        self.assertEqual(self.fit("a", "--model", MODEL, *TOKENS), there)
        self.assertGreater(len(ranges), 4)
        self.assertEqual({line[1] for line in ranges}, {"HTTP/2.0"})

    def test_a_resumed_fit_knows_the_weights_again(self):
        bucket = self.bucket()
        address = bucket.upload(MODEL, "qwen3-2m")
        options = ["--recipe", "oscar", "--resume", "--model", address, *TOKENS]
        self.assertEqual(self.fit("a", "--recipe", "oscar", "--model", MODEL, *TOKENS), self.fit("b", *options))



if __name__ == "__main__":
    main()
