# SPDX-License-Identifier: MIT
"""`oscar pull` from folders and from real web servers on localhost, honest and otherwise: every byte is checked, what was
there stays when something fails, and what was fetched is not fetched again: pull_test.py [PullTest.test_…]"""
import fcntl
import hashlib
import json
import resource
import signal
import socket
import subprocess
import tempfile
import time
import unittest
from collections import Counter
from pathlib import Path

import peers
from peers import FileServer, Nginx
from support import KEYS, MANIFEST, NAME, REMOTE_KEYS, ZooTest, make_set, read_folder

QUICK = ("--retries", "1", "--timeout", "2")
MEGABYTE = 1 << 20


class PullTest(ZooTest):
    def serving(self, behave=None, files=None, **options):
        return FileServer({**read_folder(self.zoo), **(files or {})}, behave, **options)

    def pulled(self, url, *more, **options):
        done = self.succeed("pull", NAME, "--zoo", url, *more, **options)
        self.same(read_folder(done.stdout.strip()), read_folder(self.zoo / NAME / "latest"))
        return done

    def test_over_http_gives_back_bit_identical_files(self):
        files = self.published()
        with self.serving() as url:
            done = self.pulled(url)
            self.assertEqual(done.stdout.count("\n"), 1)
            self.assertTrue(done.stdout.startswith(f"{self.cache}/sets/"))
            self.assertIn("fetched test/tiny:latest", done.stderr)
            done = self.succeed("pull", NAME, "--zoo", url + "/", "--out", "my folder/set", "--quiet")
            self.assertEqual((done.stdout, done.stderr), (f"{self.folder}/my folder/set\n", ""))
        self.assertEqual(read_folder(self.folder / "my folder/set"), files)

    def test_from_a_folder_and_a_file_url_is_the_same(self):
        self.published()
        self.fail_with(1, ["the zoo has no nobody/nothing:latest", "/zoo/index.json"], "pull", "nobody/nothing", env={"OSCAR_ZOO": ""})
        for zoo in (self.zoo, f"file://{self.zoo}"):
            self.pulled(zoo)
        first = json.loads(self.succeed("pull", NAME, "--json", env={"OSCAR_ZOO": str(self.zoo)}).stdout)
        self.assertEqual((first["name"], first["fetched"]), ("test/tiny:latest", False))
        self.published(seed=2)
        self.pulled(self.zoo)  # a folder is asked every time
        self.assertFalse((self.cache / "names").exists())

    def test_a_set_that_no_reader_may_have_comes_with_a_warning(self):
        self.published(verdict="rejected")
        for _ in range(2):  # from the cache, too
            self.assertIn("accepted this set for no reader (sglang rejected", self.succeed("pull", NAME, "--zoo", self.zoo).stderr)

    def test_a_name_is_what_it_was_until_the_zoo_is_asked_again(self):
        old = self.published()
        with (server := self.serving()) as url:
            folder = Path(self.pulled(url).stdout.strip())
            server.seen.clear()
            self.pulled(url, "--refresh")
            self.assertEqual(server.seen, [("index.json", None)])  # which says that nothing has changed
            for damage, more in ((lambda file: file.write_bytes(bytes(file.stat().st_size)), ()), (Path.unlink, ("--refresh",)),
                                 (lambda file: file.write_bytes(b""), ())):
                damage(folder / "serve.env")
                self.pulled(url, *more)
            make_set(folder, 9)  # which is whole, and another
            self.pulled(url)
            self.published(seed=2)
            server.files = read_folder(self.zoo)
            self.assertEqual(read_folder(self.succeed("pull", NAME, "--zoo", url).stdout.strip()), old)
            for more in (("--refresh",), ()):
                self.pulled(url, *more)

    def test_the_cache_needs_no_network(self):
        self.published()
        self.succeed("pull", NAME, "--zoo", self.zoo, "--offline", "--out", self.folder / "copy")
        self.fail_with(1, "without --offline", "pull", NAME, "--zoo", "http://127.0.0.1:1", "--offline")
        with self.serving() as url:
            first = self.pulled(url)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        for more in ((), ("--offline",), ("--offline",)):
            self.assertEqual(self.succeed("pull", NAME, "--zoo", url, *more).stdout, first.stdout)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 3
        self.assertLess(used, 0.05)  # of processor time: others may use this machine too
        self.assertIn("without --offline", self.run_oscar("pull", f"{NAME}:other", "--zoo", url, "--offline").stderr)
        digest = first.stdout.strip().rsplit("/", 1)[1]
        self.assertEqual(self.succeed("pull", f"{NAME}@sha256:{digest}", "--zoo", url).stdout, first.stdout)
        self.assertEqual(self.run_oscar("pull", NAME, "--zoo", url, "--refresh", *QUICK).returncode, 1)
        name, = (self.cache / "names").iterdir()
        for damaged in ("", "[]", '{"manifest_sha256": 7}', json.dumps({"manifest_sha256": f"{digest}/."})):
            name.write_text(damaged)
            self.assertIn("without --offline", self.run_oscar("pull", NAME, "--zoo", url, "--offline").stderr)

    def test_tries_again_after_503_429_and_lost_connections(self):
        self.published()
        behave = {"index.json": [peers.status(503, Retry_After="2")], REMOTE_KEYS: [peers.status(429), peers.announce(1, 0.5)],
                  MANIFEST: [peers.announce(None, 0.5), peers.status(507)]}
        begun = time.monotonic()
        with self.serving(behave) as url:
            done = self.pulled(url)
        self.assertGreater(time.monotonic() - begun, 2)  # as the server asks; by itself pull waits half a second
        for reason in ("HTTP 503", "HTTP 507", "HTTP 429", "trying again"):
            self.assertIn(reason, done.stderr)
        with (server := self.serving({"index.json": [peers.status(503)]}, forever=True)) as url:
            done = self.run_oscar("pull", NAME, "--zoo", url, *QUICK)
            self.assertIn("HTTP 503 (tried 2 times)", done.stderr)
        self.assertEqual(server.count("index.json"), 2)
        begun = time.monotonic()
        with self.serving({"index.json": [peers.status(503, Retry_After="2")]}) as url:
            self.pulled(url)
        self.assertGreater(time.monotonic() - begun, 2)  # as the server asks; by itself pull waits half a second

    def test_what_a_server_gets_wrong_is_refused(self):
        """An error, and nothing written. More of them, with --out: tests/faults/transport.py."""
        self.published()
        for number, (behaviour, path, message) in enumerate((
                (peers.announce(1, 0.5), REMOTE_KEYS, "tried 2 times"),
                (peers.announce(None, 0.5), REMOTE_KEYS, "only 150000 of 300000 bytes"),
                (peers.announce(0.5), REMOTE_KEYS, "only 150000 of 300000 bytes"),
                (peers.corrupt, REMOTE_KEYS, "sha256 differs"),
                (peers.corrupt, MANIFEST, "sha256 differs"),
                (peers.flood, REMOTE_KEYS, "more than the"),
                (peers.flood, "index.json", "more than the"),
                (peers.lengthen, REMOTE_KEYS, "offers more than the 300000 bytes"),
                (peers.page, REMOTE_KEYS, "only 26 of 300000 bytes"),
                (peers.page, "index.json", "this is not the index of a zoo: not valid JSON"),
                (peers.status(404), REMOTE_KEYS, "HTTP 404"),
                (peers.status(404), f"{NAME}/latest/serve.env", "HTTP 404"),  # smaller than the page that says so
                (peers.status(404), "index.json", "HTTP 404"),
                (peers.status(403), "index.json", "answer so for what is not there"),
                (peers.stall, REMOTE_KEYS, "the transfer failed"),
                (peers.redirect(f"file://{self.zoo}/index.json"), "index.json", "the transfer failed"),
                (peers.redirect("/index.json"), "index.json", "the transfer failed"))):
            self.cache = self.folder / f"cache-{number}"
            self.environment["OSCAR_CACHE"] = str(self.cache)
            with self.subTest(message, path=path), (server := self.serving({path: [behaviour]}, forever=True)) as url:
                self.fail_with(1, [message, path], "pull", NAME, "--zoo", url, "--retries", "1", "--timeout", "3")
            self.assertLess(server.sent, 40 * MEGABYTE)
            self.assertLess(server.count(path), 10)
            if behaviour == peers.corrupt or message == "HTTP 404":  # which lasts, so that nobody asks again
                self.assertEqual(server.count(path), 1)

    def test_a_server_that_drips_is_given_up(self):
        self.published()
        started = time.monotonic()
        with self.serving(block=8, pause=0.2) as url:
            self.fail_with(1, "the transfer failed", "pull", NAME, "--zoo", url, "--timeout", "2", "--retries", "0")
        self.assertLess(time.monotonic() - started, 20)

    def test_a_file_that_changes_on_the_way_is_refused(self):
        def change(request, path, nth, asked):
            if path == REMOTE_KEYS and nth == 2:
                server.files[path] = bytes(len(server.files[path]))

        self.published()
        with (server := self.serving(fault=change, cut_after=131072)) as url:
            self.fail_with(1, ["sha256 differs", KEYS], "pull", NAME, "--zoo", url, "--out", self.out, "--timeout", "2")

    def test_more_than_is_allowed_is_not_fetched(self):
        files = self.published()
        with (server := self.serving()) as url:
            self.fail_with(1, "--max-size", "pull", NAME, "--zoo", url, "--max-size", "100K")
            self.assertEqual(len(server.seen), 2)
            self.pulled(url, "--max-size", str(sum(map(len, files.values()))))
            self.assertIn("pass a larger --max-size", self.run_oscar("pull", NAME, "--zoo", url, "--max-size", "100K").stderr)  # cached, too

    def test_an_unreachable_host_is_an_error_at_once(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))  # taken, but nobody listens
            url = f"http://127.0.0.1:{unused.getsockname()[1]}"
            self.fail_with(1, ["the transfer failed", url], "pull", NAME, "--zoo", url)
        self.fail_with(1, "the transfer failed", "pull", NAME, "--zoo", "http://zoo.invalid")

    def test_follows_redirects_and_a_proxy_from_the_environment(self):
        self.published()
        there = read_folder(self.zoo)
        moved = {path: [peers.redirect(f"/new/{path}")] for path in there}
        with FileServer({f"new/{path}": content for path, content in there.items()}, moved) as url:
            self.pulled(url)
        with (proxy := self.serving()) as url:
            self.pulled("http://zoo.invalid", "--refresh", env={"http_proxy": url})
        self.assertEqual(proxy.hosts, {"zoo.invalid"})

    def test_a_password_is_taken_from_netrc_and_never_from_an_address(self):
        self.published()
        with (server := self.serving(password="me:s3cret")) as url:
            done = self.fail_with(1, ["HTTP 401", "netrc"], "pull", NAME, "--zoo", url)
            named = url.replace("http://", "http://me:s3cret@")
            self.assertNotIn("s3cret", self.fail_with(2, "no password", "pull", NAME, "--zoo", named).stderr)
            (self.folder / ".netrc").write_text("machine 127.0.0.1 login me password s3cret\n")
            with self.serving({"index.json": [peers.redirect(url.replace("127.0.0.1", "localhost") + "/index.json")]}) as first:
                done = self.run_oscar("pull", NAME, "--zoo", first, *QUICK)
                self.assertIn("HTTP 401", done.stderr)  # the password is of another host
            done = self.pulled(url, "--verbose")
        self.assertTrue(server.headers["Authorization"].startswith("Basic "))
        self.assertNotIn("s3cret", done.stdout + done.stderr)
        self.assertFalse(any(b"s3cret" in content for content in read_folder(self.cache).values()))

    def test_tls_is_verified_and_never_left(self):
        self.published()
        certificate = peers.certificate(self.folder)
        trusted = {"SSL_CERT_FILE": str(certificate[0])}
        with self.serving(certificate=certificate) as url:
            self.fail_with(1, "certificate", "pull", NAME, "--zoo", url)
            self.pulled(url, env=trusted)
        with self.serving() as plain, self.serving({"index.json": [peers.redirect(f"{plain}/index.json")]},
                                                   certificate=certificate) as url:
            done = self.run_oscar("pull", NAME, "--zoo", url, "--refresh", env=trusted)
            self.assertEqual(done.returncode, 1, done.stderr)

    def test_http2_carries_everything_on_one_connection(self):
        self.published()
        certificate = peers.certificate(self.folder)
        with Nginx(self.folder / "nginx", self.zoo, certificate) as nginx:
            self.pulled(nginx.url, env={"SSL_CERT_FILE": str(certificate[0])})
        requests = nginx.requests()
        # Index, manifest, and the files that are not empty.
        files = [content for content in read_folder(self.zoo / NAME / "latest").values() if content]
        self.assertEqual(Counter(method for _, _, method, *_ in requests), {"GET": 1 + len(files)})
        self.assertEqual({protocol for _, protocol, *_ in requests}, {"HTTP/2.0"})
        self.assertEqual(len({connection for connection, *_ in requests}), 1)

    def test_files_come_at_the_same_time(self):
        self.published()
        with self.serving(delay=0.5) as url:
            started = time.monotonic()
            self.pulled(url)
            self.assertLess(time.monotonic() - started, 3)  # one after the other it would be nine times half a second

    def test_a_cut_line_costs_only_what_was_lost(self):
        files = self.published(keys_size=8 * MEGABYTE)
        with (server := self.serving(cut_after=3 * MEGABYTE)) as url:
            self.assertIn("trying again", self.pulled(url, "--retries", "2").stderr)
        self.assertLess(server.sent, 1.2 * sum(map(len, files.values())))
        self.assertEqual(server.asked(KEYS), [None, (3 * MEGABYTE, 8 * MEGABYTE), (6 * MEGABYTE, 8 * MEGABYTE)])
        with (server := self.serving(ranges=False, behave={REMOTE_KEYS: [peers.announce(1, 0.5)]})) as url:
            self.pulled(url, env={"OSCAR_CACHE": str(self.folder / "another")})  # all of it comes again
        self.assertEqual(server.asked(KEYS), [None, None])

    def test_a_pull_that_was_killed_goes_on_where_it_was(self):
        for more in ((), ("--out", self.out)):
            self.published(keys_size=8 * MEGABYTE)
            with self.serving(stall_at=4 * MEGABYTE) as url:
                running = self.start_oscar("pull", NAME, "--zoo", url, *more)
                for _ in range(500):
                    if sum(file.stat().st_size for file in (self.cache / "partial").rglob(KEYS)) >= 4 * MEGABYTE:
                        break
                    time.sleep(0.02)
                running.kill()
                running.communicate()
            self.assertFalse(self.out.exists())
            with (again := self.serving()) as url:
                self.pulled(url, *more)
            self.assertEqual(again.asked(KEYS), [(4 * MEGABYTE, 8 * MEGABYTE)])
            self.assertEqual(list((self.cache / "partial").glob("*")), [])
            for kept in self.cache.glob("sets/*"):
                kept.rename(self.folder / "aside")

    def test_what_was_kept_is_checked_too(self):
        self.published()
        with self.serving(stall_at=131072) as url:
            self.run_oscar("pull", NAME, "--zoo", url, "--timeout", "1", "--retries", "0")
        kept, = (self.cache / "partial").rglob(KEYS)
        self.assertEqual(kept.read_bytes(), (self.zoo / REMOTE_KEYS).read_bytes()[:131072])
        kept.write_bytes(b"x" * 1000)
        with (server := self.serving()) as url:
            self.pulled(url)
        self.assertEqual(server.asked(KEYS), [(1000, 300_000), None])

    def test_the_folder_may_be_on_another_file_system(self):
        memory = Path("/dev/shm")
        if not memory.is_dir() or memory.stat().st_dev == self.folder.stat().st_dev:
            self.skipTest("/dev/shm is no other file system here")
        self.published()
        with tempfile.TemporaryDirectory(dir=memory) as folder, self.serving() as url:
            self.pulled(url, "--out", Path(folder) / "set")
        self.assertEqual(list((self.cache / "partial").glob("*")), [])

    def test_a_full_disk_is_told(self):
        self.published()
        small = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=300k none "$0" && "$@"', self.folder / "set-1"]
        if subprocess.run([*small, "true"], capture_output=True).returncode:
            self.skipTest("no file system can be mounted here")
        done = subprocess.run([*small, *self.command("pull", NAME, "--zoo", self.zoo, "--out", self.folder / "set-1/out")],
                              capture_output=True, text=True, env=self.environment)
        self.assertEqual((done.returncode, "No space left on device" in done.stderr), (1, True), done.stderr)

    def test_two_at_once_fetch_once(self):
        self.published()
        for more in (("--out", self.out), ()):
            with (server := self.serving({REMOTE_KEYS: [lambda server, *rest: (time.sleep(0.5), server.honest(*rest))]})) as url:
                running = [self.start_oscar("pull", NAME, "--zoo", url, *more) for _ in range(4)]
                outputs = [process.communicate(timeout=60) for process in running]
            self.assertEqual([process.returncode for process in running], [0] * 4, outputs)
            self.assertEqual(len({out for out, _ in outputs}), 1)
            self.assertEqual((server.count("index.json"), server.count(REMOTE_KEYS)), (4, 1))

    def interrupted(self, server, path, *more):
        """Ctrl-C once `path` was asked for."""
        with server as url:
            process = self.start_oscar("pull", NAME, "--zoo", url, *more)
            while not server.count(path) and process.poll() is None:
                time.sleep(0.01)
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            output = process.communicate(timeout=20)
        self.assertEqual((process.returncode, output[0]), (130, ""), output)
        self.assert_nothing_written()

    def test_ctrl_c_ends_it_without_a_trace(self):
        files = self.published()
        for out in ((), ("--out", self.out)):
            self.interrupted(self.serving({REMOTE_KEYS: [peers.stall]}), REMOTE_KEYS, *out)
        lock = self.cache / "locks" / (hashlib.sha256(files["manifest.json"]).hexdigest() + ".lock")
        with lock.open("w") as held:  # and the wait for another pull
            fcntl.flock(held, fcntl.LOCK_EX)
            self.interrupted(self.serving(), MANIFEST)

    def test_what_cannot_be_written_is_an_error_without_a_trace(self):
        self.published()

        def limit():  # as a full disk: writing beyond 100 kB fails
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        self.fail_with(1, ["cannot write", KEYS], "pull", NAME, "--zoo", self.zoo, preexec_fn=limit)
        (self.folder / "blocked").write_text("a file")
        for place in (self.folder / "blocked/set", "/sys/oscar/set"):
            self.fail_with(1, "cannot", "pull", NAME, "--zoo", self.zoo, "--out", place)

    def test_what_was_there_stays_when_a_pull_fails(self):
        old = self.published()
        with self.serving() as url:
            fetched = [json.loads(self.succeed("pull", NAME, "--zoo", url, "--out", self.out, "--json").stdout)["fetched"] for _ in range(2)]
            self.assertEqual((fetched, list((self.cache / "sets").glob("*"))), ([True, False], []))
            in_cache = self.succeed("pull", NAME, "--zoo", url).stdout.strip()
            self.published(seed=2)
            self.assertEqual(self.run_oscar("pull", NAME, "--zoo", self.zoo, "--out", self.out).returncode, 2)
            with self.serving({REMOTE_KEYS: [peers.corrupt]}, forever=True) as bad:
                done = self.run_oscar("pull", NAME, "--zoo", bad, "--out", self.out, "--force", *QUICK)
                self.assertIn("sha256 differs", done.stderr)
                self.assertEqual(self.run_oscar("pull", NAME, "--zoo", bad, *QUICK).returncode, 1)
            self.assertEqual(self.succeed("pull", NAME, "--zoo", url, "--offline").stdout.strip(), in_cache)
        self.assertEqual(read_folder(self.out), old)
        self.assertEqual(read_folder(in_cache), old)
        self.succeed("pull", NAME, "--zoo", self.zoo, "--out", self.out, "--force")
        self.assertNotEqual(read_folder(self.out), old)

    def test_nothing_is_written_through_links(self):
        files = self.published()
        precious = self.folder / "precious"
        make_set(precious, 9)
        before = read_folder(precious)
        with self.serving({REMOTE_KEYS: [peers.announce(1, 0.5)]}) as url:
            self.run_oscar("pull", NAME, "--zoo", url, "--out", self.out, "--retries", "0")
            kept, = (self.cache / "partial").rglob(KEYS)
            kept.unlink()
            kept.symlink_to(precious / KEYS)
            done = self.run_oscar("pull", NAME, "--zoo", url, "--out", self.out, *QUICK)
            self.assertEqual((done.returncode, self.out.exists()), (1, False), done.stderr)
            kept.unlink()
            self.out.symlink_to(precious)
            self.assertEqual(self.run_oscar("pull", NAME, "--zoo", url, "--out", self.out).returncode, 2)
            self.succeed("pull", NAME, "--zoo", url, "--out", self.out, "--force")
        self.assertEqual(read_folder(self.out), files)
        self.assertEqual(read_folder(precious), before)


if __name__ == "__main__":
    unittest.main()
