# SPDX-License-Identifier: MIT
"""`oscar pull` against real web servers on localhost, honest and otherwise: pull_test.py [PullTest.test_…]"""
import base64
import fcntl
import hashlib
import json
import resource
import signal
import socket
import subprocess
import time
import unittest

import servers
from servers import OddServer, PlainServer
from support import KEYS, NAME, REMOTE_KEYS, ZooTest, make_set, read_folder

QUICK = ("--retries", "1", "--timeout", "2")


class PullTest(ZooTest):
    def odd(self, behave=None, **options):
        return OddServer(read_folder(self.zoo), behave, **options)

    def test_over_http_gives_back_bit_identical_files(self):
        files = self.published()
        with PlainServer(self.zoo) as url:
            done = self.succeed("pull", NAME, "--zoo", url)
            self.assertEqual(done.stdout.count("\n"), 1)
            self.assertEqual(read_folder(done.stdout.rstrip("\n")), files)
            self.assertTrue(done.stdout.startswith(f"{self.cache}/sets/"))
            self.assertIn("fetched test/tiny:latest", done.stderr)
            done = self.succeed("pull", NAME, "--zoo", url + "/", "--out", "my folder/set", "--quiet")
            self.assertEqual((done.stdout, done.stderr), (f"{self.folder}/my folder/set\n", ""))
        self.assertEqual(read_folder(self.folder / "my folder/set"), files)

    def test_from_a_folder_and_a_file_url_is_the_same(self):
        files = self.published()
        for zoo in (self.zoo, f"file://{self.zoo}"):
            self.assertEqual(read_folder(self.succeed("pull", NAME, "--zoo", zoo).stdout.strip()), files)
        self.assertEqual(read_folder(self.succeed("pull", NAME, env={"OSCAR_ZOO": str(self.zoo)}).stdout.strip()), files)

    def test_says_in_json_what_it_did(self):
        self.published()
        result = json.loads(self.succeed("pull", NAME, "--zoo", self.zoo, "--json").stdout)
        self.assertEqual((result["name"], result["fetched"]), ("test/tiny:latest", True))
        self.succeed("pull", NAME, "--zoo", self.zoo, "--json", self.folder / "result.json")
        again = json.loads((self.folder / "result.json").read_text())
        self.assertEqual((again["path"], again["fetched"]), (result["path"], False))

    def test_uses_the_cache_without_network(self):
        self.published()
        with PlainServer(self.zoo) as url:
            first = self.succeed("pull", NAME, "--zoo", url)
        self.assertEqual(self.succeed("pull", NAME, "--zoo", url).stdout, first.stdout)
        self.assertEqual(self.succeed("pull", NAME, "--zoo", url, "--offline").stdout, first.stdout)
        digest = first.stdout.strip().rsplit("/", 1)[1]
        self.assertEqual(self.succeed("pull", f"{NAME}@sha256:{digest}", "--zoo", url).stdout, first.stdout)
        self.assertEqual(self.run_oscar("pull", NAME, "--zoo", url, "--refresh", *QUICK).returncode, 1)

    def test_offline_with_an_empty_cache_fails(self):
        self.published()
        self.fail_with(1, "without --offline", "pull", NAME, "--zoo", "http://127.0.0.1:1", "--offline")

    def test_tries_again_after_503_429_and_lost_connections(self):
        files = self.published()
        behave = {"index.json": [servers.status(503, Retry_After="1")], REMOTE_KEYS: [servers.status(429), servers.truncate],
                  f"{NAME}/latest/manifest.json": [servers.truncate_silently]}
        with self.odd(behave) as url:
            done = self.succeed("pull", NAME, "--zoo", url)
        self.assertEqual(read_folder(done.stdout.strip()), files)
        for reason in ("HTTP 503", "HTTP 429", "trying again"):
            self.assertIn(reason, done.stderr)

    def test_gives_up_after_a_few_attempts(self):
        self.published()
        with (server := self.odd({"index.json": [servers.status(503)]}, forever=True)) as url:
            self.fail_with(1, "HTTP 503 (tried 2 times)", "pull", NAME, "--zoo", url, *QUICK)
        self.assertEqual(server.seen["index.json"], 2)

    def refused(self, behaviour, message, path=REMOTE_KEYS):
        """Into the cache and to --out: an error, and nothing written."""
        self.published()
        for out in ((), ("--out", self.out)):
            with (server := self.odd({path: [behaviour]}, forever=True)) as url:
                self.fail_with(1, message, "pull", NAME, "--zoo", url, *out, *QUICK)
        return server

    def test_refuses_a_truncated_file(self):
        self.refused(servers.truncate, "tried 2 times")

    def test_refuses_a_file_that_ends_early_without_a_length(self):
        self.refused(servers.truncate_silently, ["only 150000 of 300000 bytes", "tried 2 times"])

    def test_refuses_a_corrupted_file(self):
        server = self.refused(servers.corrupt, ["sha256 differs", REMOTE_KEYS])
        self.assertEqual(server.seen[REMOTE_KEYS], 1)

    def test_refuses_a_corrupted_manifest(self):
        self.refused(servers.corrupt, "sha256 differs", f"{NAME}/latest/manifest.json")

    def test_stops_a_server_that_sends_without_end(self):
        for path in (REMOTE_KEYS, "index.json"):
            server = self.refused(servers.flood, "more than the", path)
            self.assertLess(server.flooded, 40)

    def test_refuses_more_than_the_manifest_lists(self):
        self.refused(servers.lengthen, ["offers more than the 300000 bytes", REMOTE_KEYS])

    def test_names_a_missing_file(self):
        self.refused(servers.status(404), ["HTTP 404", REMOTE_KEYS])

    def test_names_a_missing_file_that_is_smaller_than_the_page_that_says_so(self):
        self.refused(servers.status(404), ["HTTP 404", "serve.env"], f"{NAME}/latest/serve.env")

    def test_a_store_that_forbids_what_is_not_there_does_not_hide_the_names_that_are(self):
        self.published()
        missing = "test/tyni/latest"
        with self.odd({f"{missing}/manifest.json": [servers.status(403)]}, forever=True) as url:
            self.fail_with(1, ["the zoo has no test/tyni:latest", f"did you mean {NAME}:latest"], "pull", "test/tyni", "--zoo", url)
        with self.odd({"index.json": [servers.status(403)]}, forever=True) as url:
            self.fail_with(1, ["HTTP 403", "index.json", "answer so for what is not there"], "pull", NAME, "--zoo", url)

    def test_names_a_missing_index(self):
        self.refused(servers.status(404), ["HTTP 404", "index.json"], "index.json")

    def test_refuses_a_page_that_is_no_index(self):
        self.published()
        with OddServer({"index.json": b"<html>Welcome</html>"}) as url:
            self.fail_with(1, ["not valid JSON", f"{url}/index.json"], "pull", NAME, "--zoo", url)

    def test_gives_up_on_a_silent_server(self):
        started = time.monotonic()
        self.published()
        with self.odd({REMOTE_KEYS: [servers.stall]}, forever=True) as url:
            self.fail_with(1, "the transfer failed", "pull", NAME, "--zoo", url, "--timeout", "1", "--retries", "0")
        self.assertLess(time.monotonic() - started, 30)

    def test_refuses_an_index_that_points_outside(self):
        self.published()
        secret = self.folder / "secret"
        make_set(secret, 9)
        for path in ("../secret", "/etc", "a/../../secret"):
            index = json.loads((self.zoo / "index.json").read_text())
            index["entries"][0]["path"] = path
            with OddServer({**read_folder(self.zoo), "index.json": json.dumps(index).encode()}) as url:
                self.fail_with(1, "unsafe path", "pull", NAME, "--zoo", url)

    def test_a_path_that_no_disk_takes_is_an_error(self):
        files = self.published()
        manifest = json.loads(files["manifest.json"])
        for path in ("x" * 300, "x" * 300 + "/file", "/".join("x" * 3000)):
            manifest["files"][0]["path"] = path
            text = json.dumps(manifest).encode()
            index = json.loads((self.zoo / "index.json").read_text())
            index["entries"][0]["manifest"] = {"sha256": hashlib.sha256(text).hexdigest(), "size": len(text)}
            index["entries"][0]["total_size"] = len(text) + sum(file["size"] for file in manifest["files"])
            content = {**read_folder(self.zoo), "index.json": json.dumps(index).encode(),
                       f"{NAME}/latest/manifest.json": text, f"{NAME}/latest/{path}": files[KEYS]}
            with OddServer(content) as url:
                done = self.fail_with(1, "cannot create", "pull", NAME, "--zoo", url)
            self.assertNotIn("bug in oscar", done.stderr)

    def test_suggests_near_names(self):
        self.published()
        with PlainServer(self.zoo) as url:
            self.fail_with(1, "did you mean test/tiny:latest", "pull", "test/tyni", "--zoo", url)
            self.fail_with(1, "did you mean test/tiny:latest", "pull", "test/tiny:newest", "--zoo", url)

    def test_an_unreachable_host_is_an_error_at_once(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))  # taken, but nobody listens
            url = f"http://127.0.0.1:{unused.getsockname()[1]}"
            self.fail_with(1, ["the transfer failed", url], "pull", NAME, "--zoo", url)
        self.fail_with(1, "the transfer failed", "pull", NAME, "--zoo", "http://zoo.invalid")

    def test_follows_a_few_redirects_but_no_loop(self):
        files = self.published()
        moved = {f"old/{path}": content for path, content in read_folder(self.zoo).items()}
        behave = {path[4:]: [servers.redirect(f"/{path}")] for path in moved}
        with OddServer(moved, behave) as url:
            self.assertEqual(read_folder(self.succeed("pull", NAME, "--zoo", url).stdout.strip()), files)
        with (server := OddServer({}, {"index.json": [servers.redirect("/index.json")]}, forever=True)) as url:
            self.assertEqual(self.run_oscar("pull", NAME, "--zoo", url, "--refresh").returncode, 1)
        self.assertLess(server.seen["index.json"], 10)

    def test_does_not_follow_a_redirect_to_a_file(self):
        self.published()
        with OddServer({}, {"index.json": [servers.redirect(f"file://{self.zoo}/index.json")]}) as url:
            self.fail_with(1, "the transfer failed", "pull", NAME, "--zoo", url)

    def test_credentials_in_the_address_are_sent_and_never_shown(self):
        self.published()
        with (server := self.odd()) as url:
            done = self.succeed("pull", NAME, "--zoo", url.replace("http://", "http://me:s3cret@"), "--verbose")
        expected = "Basic " + base64.b64encode(b"me:s3cret").decode()
        self.assertEqual(server.headers.get("Authorization"), expected)
        self.assertNotIn("s3cret", done.stdout + done.stderr)
        self.assertFalse(any(b"s3cret" in content for content in read_folder(self.cache).values()))

    def test_takes_the_proxy_from_the_environment(self):
        files = self.published()
        through = {f"http://zoo.invalid/{path}": content for path, content in read_folder(self.zoo).items()}
        with OddServer(through) as proxy:
            done = self.succeed("pull", NAME, "--zoo", "http://zoo.invalid", env={"http_proxy": proxy})
        self.assertEqual(read_folder(done.stdout.strip()), files)

    def certificate(self):
        key, certificate = self.folder / "key.pem", self.folder / "certificate.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
                        "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
                       check=True, capture_output=True)
        return certificate, key

    def test_tls_is_verified_and_never_left(self):
        files, certificate = self.published(), self.certificate()
        trusted = {"SSL_CERT_FILE": str(certificate[0])}
        with self.odd(certificate=certificate) as url:
            self.fail_with(1, "certificate", "pull", NAME, "--zoo", url)
            done = self.succeed("pull", NAME, "--zoo", url, env=trusted)
            self.assertEqual(read_folder(done.stdout.strip()), files)
        with self.odd() as plain, self.odd({"index.json": [servers.redirect(f"{plain}/index.json")]},
                                           certificate=certificate) as url:
            done = self.run_oscar("pull", NAME, "--zoo", url, "--refresh", env=trusted)
            self.assertEqual(done.returncode, 1, done.stderr)

    def test_two_at_once_fetch_once(self):
        files = self.published()
        with (server := self.odd({REMOTE_KEYS: [servers.slow(0.5)]})) as url:
            running = [self.start_oscar("pull", NAME, "--zoo", url) for _ in range(4)]
            outputs = [process.communicate(timeout=60) for process in running]
        self.assertEqual([process.returncode for process in running], [0] * 4, outputs)
        self.assertEqual(len({out for out, _ in outputs}), 1)
        self.assertEqual(read_folder(outputs[0][0].strip()), files)
        self.assertEqual((server.seen["index.json"], server.seen[REMOTE_KEYS]), (4, 1))

    def test_ctrl_c_ends_it_without_a_trace(self):
        self.published()
        for out in ((), ("--out", self.out)):
            with (server := self.odd({REMOTE_KEYS: [servers.stall]})) as url:
                process = self.start_oscar("pull", NAME, "--zoo", url, *out)
                while not server.seen[REMOTE_KEYS] and process.poll() is None:
                    time.sleep(0.01)
                time.sleep(0.2)
                process.send_signal(signal.SIGINT)
                output = process.communicate(timeout=20)
            self.assertEqual((process.returncode, output[0]), (130, ""), output)
            self.assert_nothing_written()

    def test_ctrl_c_ends_a_wait_for_another_pull(self):
        files = self.published()
        lock = self.cache / "locks" / (hashlib.sha256(files["manifest.json"]).hexdigest() + ".lock")
        lock.parent.mkdir(parents=True)
        with lock.open("w") as held, (server := self.odd()) as url:
            fcntl.flock(held, fcntl.LOCK_EX)
            process = self.start_oscar("pull", NAME, "--zoo", url)
            while not server.seen[f"{NAME}/latest/manifest.json"] and process.poll() is None:
                time.sleep(0.01)
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            output = process.communicate(timeout=20)
        self.assertEqual((process.returncode, output[0]), (130, ""), output)
        self.assert_nothing_written()

    def test_a_full_disk_is_an_error_without_a_trace(self):
        self.published()

        def limit():  # as a full disk: writing beyond 100 kB fails
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        self.fail_with(1, ["cannot write", KEYS], "pull", NAME, "--zoo", self.zoo, preexec_fn=limit)

    def test_wrong_usage_is_told_apart(self):
        self.published()
        for arguments in (("pull",), ("pull", "tiny"), ("pull", "../x/y"), ("pull", NAME, "--zoo", "ftp://host/"),
                          ("pull", NAME, "--zoo", ""), ("pull", NAME, "--zoo", self.zoo, "--out", ""),
                          ("pull", NAME, "--offline", "--refresh"), ("pull", NAME, "--retries", "-1")):
            self.fail_with(2, "error:", *arguments)

    def test_keeps_what_it_may_not_replace(self):
        files = self.published()
        self.succeed("pull", NAME, "--zoo", self.zoo, "--out", self.out)
        self.published(seed=2)
        self.assertEqual(self.run_oscar("pull", NAME, "--zoo", self.zoo, "--out", self.out).returncode, 2)
        self.assertEqual(read_folder(self.out), files)
        self.succeed("pull", NAME, "--zoo", self.zoo, "--out", self.out, "--force")
        self.assertNotEqual(read_folder(self.out), files)

    def test_without_a_zoo_the_one_of_this_build_is_asked(self):
        self.fail_with(1, ["the zoo has no nobody/nothing:latest", "/zoo/index.json"], "pull", "nobody/nothing")


if __name__ == "__main__":
    unittest.main()
