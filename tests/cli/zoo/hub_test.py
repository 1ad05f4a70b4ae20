# SPDX-License-Identifier: MIT
"""`oscar pull hf://…` against the Hugging Face Hub's API on localhost; the hub's own client checks that the API is the
real one: hub_test.py [HubTest.test_…]. Run by the project's virtual environment."""
import json
import os
import shutil
import socket
import sys
import time
import unittest
from pathlib import Path

from peers import Hub, pinned
from support import ZooTest, make_set, read_folder

SAMPLE = Path(os.environ["OSCAR_PROJECT"]) / "zoo/sample/qwen3-2m/latest"
KEYS, VALUES = "k_rotation_qqt_r_h_pbr.pt", "v_rotation_sst_r_h_pbr.pt"
REPOSITORY = "someone/RotationZoo"
FOLDER = "Qwen3/seq20000_group128"


class HubTest(ZooTest):
    def zoo_of_pickles(self):
        """As rotation zoos are: two .pt files in a folder, a README beside them."""
        files = {f"{FOLDER}/{name}": (SAMPLE / name).read_bytes() for name in (KEYS, VALUES)}
        return {"README.md": b"# Zoo\n", f"{FOLDER}/notes.txt": b"hello", **files}

    def pull(self, hub, address, *more, **env):
        return self.run_oscar("pull", address, *more, env={"HF_ENDPOINT": hub.url, **env})

    def test_foreign_files_become_a_set_that_says_what_is_known(self):
        with Hub(REPOSITORY, self.zoo_of_pickles()) as hub:
            done = self.pull(hub, f"hf://{REPOSITORY}/{FOLDER}")
            self.assertEqual(done.returncode, 0, done.stderr)
        folder = Path(done.stdout.strip())
        for name in (KEYS, VALUES):
            self.assertEqual((folder / name).read_bytes(), (SAMPLE / name).read_bytes())
        manifest = json.loads((folder / "manifest.json").read_text())
        self.assertEqual(manifest["origin"]["source"], f"hf://{REPOSITORY}/{FOLDER}@{Hub.COMMIT}")
        self.assertEqual(manifest["objectives"]["key"], "qqt_r_h_pbr")
        self.assertEqual({file["path"] for file in manifest["origin"]["files"]}, {KEYS, VALUES})
        for unknown in ("model", "calibration", "clip_ratios"):
            self.assertIn(unknown, manifest["origin"]["unknown"])
        self.assertIn("published ones", (folder / "serve.env").read_text())
        self.assertIn("rotation set", self.succeed("inspect", folder).stdout)
        self.assertIn("verify has not accepted", done.stderr)
        # Only what is needed was asked for, at one commit.
        asked = [path for _, path, _ in hub.seen]
        self.assertFalse([path for path in asked if "README" in path or "notes" in path])
        self.assertEqual(len([path for path in asked if f"/resolve/{Hub.COMMIT}/" in path]), 2)
        # Again: from the cache, the hub is gone; and into a folder of one's own.
        again = self.pull(hub, f"hf://{REPOSITORY}/{FOLDER}")
        self.assertEqual(again.stdout, done.stdout)
        self.assertEqual(self.pull(hub, f"hf://{REPOSITORY}/{FOLDER}", "--out", self.out, "--offline").returncode, 0)
        self.assertEqual(read_folder(self.out), read_folder(folder))

    def test_a_folder_of_several_pairs_asks_which(self):
        shared = self.zoo_of_pickles()
        per_head = {f"{FOLDER}/{side}_rotation_perhead.pt": shared[f"{FOLDER}/{name}"] for side, name in (("k", KEYS), ("v", VALUES))}
        address = f"hf://{REPOSITORY}/{FOLDER}"
        with Hub(REPOSITORY, shared | per_head) as hub:
            done = self.pull(hub, address)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("several pairs of rotations: perhead, qqt_r_h_pbr", done.stderr)
            self.assertIn("--pair NAME", done.stderr)
            done = self.pull(hub, address, "--pair", "none")
            self.assertEqual((done.returncode, 'no pair "none", but perhead, qqt_r_h_pbr' in done.stderr), (2, True), done.stderr)
            origins = {}
            for pair in ("perhead", "qqt_r_h_pbr"):
                done = self.pull(hub, address, "--pair", pair)
                self.assertEqual(done.returncode, 0, done.stderr)
                manifest = json.loads((Path(done.stdout.strip()) / "manifest.json").read_text())
                origins[pair] = {file["path"] for file in manifest["origin"]["files"]}
            self.assertEqual(origins, {"perhead": {"k_rotation_perhead.pt", "v_rotation_perhead.pt"},
                                       "qqt_r_h_pbr": {KEYS, VALUES}})
        # From the cache each is what was asked for.
        for pair in origins:
            done = self.pull(hub, address, "--pair", pair, "--offline")
            manifest = json.loads((Path(done.stdout.strip()) / "manifest.json").read_text())
            self.assertEqual({file["path"] for file in manifest["origin"]["files"]}, origins[pair])
        done = self.run_oscar("pull", "a/b", "--pair", "perhead")
        self.assertEqual((done.returncode, "sets in a zoo have one pair" in done.stderr), (2, True), done.stderr)

    def test_a_set_of_ours_comes_as_it_is_and_a_whole_zoo_too(self):
        files = make_set(self.folder / "set", 1)
        with Hub(REPOSITORY, {f"sets/one/{path}": content for path, content in files.items()}) as hub:
            done = self.pull(hub, f"hf://{REPOSITORY}/sets/one@{Hub.COMMIT}")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(read_folder(done.stdout.strip()), files)
        self.published()
        with Hub(REPOSITORY, read_folder(self.zoo)) as hub:
            done = self.pull(hub, "test/tiny", "--zoo", f"hf://{REPOSITORY}", "--out", self.out)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(read_folder(self.out), files)

    def test_a_set_of_ours_is_asked_for_without_a_listing(self):
        files = make_set(self.folder / "set", 1)
        with Hub(REPOSITORY, {f"sets/one/{path}": content for path, content in files.items()}) as hub:
            self.assertEqual(self.pull(hub, f"hf://{REPOSITORY}/sets/one").returncode, 0)
        asked = [path for method, path, _ in hub.seen if method == "GET"]
        self.assertLessEqual(len(asked), 1 + len([name for name, content in files.items() if content]), asked)
        self.assertFalse([path for path in asked if "/tree/" in path], asked)

    def pulled_with_time_for_redirects(self, change=lambda hub: None):
        """The manifest comes late: by then it is known where the files lie."""
        files = make_set(self.folder / "set", 1)
        with Hub(REPOSITORY, {f"sets/one/{path}": content for path, content in files.items()}) as hub:
            answer = hub.answer

            def late(request):
                time.sleep(0.3 if request.path.endswith("manifest.json") else 0)
                answer(request)
            hub.answer = late
            change(hub)
            done = self.pull(hub, f"hf://{REPOSITORY}/sets/one", "--retries", "0", HF_TOKEN="hf_secret")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(read_folder(done.stdout.strip()), files)
        self.assertFalse([headers for headers in hub.storage_headers if "Authorization" in headers])
        large = [path for method, path, _ in hub.seen if method == "GET" and path.endswith(".pt")]
        return large, hub.storage_headers, done.stderr

    def test_files_are_fetched_from_where_the_hub_is_known_to_redirect(self):
        asked_at_the_hub, storage, _ = self.pulled_with_time_for_redirects()
        self.assertEqual((asked_at_the_hub, len(storage)), ([], 2))

    def test_redirects_that_lead_astray_cost_no_try_and_no_word(self):
        with socket.create_server(("127.0.0.1", 0)) as gone:
            dead = f"http://127.0.0.1:{gone.getsockname()[1]}"

        def to(address):
            def change(hub):
                resolve = hub.resolve
                hub.files["larger"] = b"<html>" * 100_000

                def resolved(request, name):
                    if request.command == "HEAD":
                        return hub.reply(request, 302, b"", Location=address.format(hub.storage_url))
                    return resolve(request, name)
                hub.resolve = resolved
            return change
        for address in ("{}/expired", "{}/larger", f"{dead}/file"):
            with self.subTest(address):
                asked_at_the_hub, _, said = self.pulled_with_time_for_redirects(to(address))
                self.assertEqual(len(asked_at_the_hub), 2)
                self.assertNotIn("trying again", said)
                shutil.rmtree(self.cache)

    def test_a_body_that_comes_with_an_answer_to_head_is_no_failure(self):
        def chatty(hub):
            reply = hub.reply

            def replied(request, status, body, **headers):
                reply(request, status, body, **headers)
                if request.command == "HEAD":
                    time.sleep(0.6)  # by then the connection has its next request
                    request.wfile.write(b"<html>stray</html>")
            hub.reply = replied
        _, _, said = self.pulled_with_time_for_redirects(chatty)
        self.assertNotIn("trying again", said)

    def test_the_token_goes_along_where_the_hub_redirects_to_itself(self):
        def rename(hub):
            hub.token = "hf_secret"
            answer = hub.answer

            def renamed(request):
                if "/renamed/" not in request.path:
                    return hub.reply(request, 307, b"", Location=f"{hub.url}/renamed{request.path}")
                request.path = request.path.removeprefix("/renamed")
                return answer(request)
            hub.answer = renamed
        self.pulled_with_time_for_redirects(rename)

    def test_a_folder_of_many_files_is_listed_page_by_page(self):
        files = {f"{FOLDER}/a{i:04}.txt": b"x" for i in range(2500)} | self.zoo_of_pickles()
        os.environ.update(HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1")
        with Hub(REPOSITORY, files) as hub:
            done = self.pull(hub, f"hf://{REPOSITORY}/{FOLDER}")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len([path for _, path, _ in hub.seen if "/tree/" in path]), 3)
            try:
                huggingface_hub = pinned("huggingface_hub")
            except unittest.SkipTest:
                return
            listed = huggingface_hub.HfApi(endpoint=hub.url, token=False).list_repo_tree(REPOSITORY, FOLDER)
            self.assertEqual(len(list(listed)), 2503)
        self.assertEqual((Path(done.stdout.strip()) / KEYS).read_bytes(), (SAMPLE / KEYS).read_bytes())

    def test_a_listing_without_end_is_given_up(self):
        with Hub(REPOSITORY, self.zoo_of_pickles()) as hub:
            reply = hub.reply_json
            hub.reply_json = lambda request, value, **headers: reply(
                request, value, **({"Link": f'<{hub.url}/x?cursor=MA==>; rel="next"'} if isinstance(value, list) else headers))
            self.refused(hub, f"hf://{REPOSITORY}/{FOLDER}", "does not end")

    def test_the_token_goes_to_the_hub_and_not_where_it_redirects(self):
        with Hub(REPOSITORY, self.zoo_of_pickles(), token="hf_secret") as hub:
            done = self.pull(hub, f"hf://{REPOSITORY}/{FOLDER}")
            self.assertEqual(done.returncode, 1)
            self.assertIn("HTTP 401", done.stderr)
            done = self.pull(hub, f"hf://{REPOSITORY}/{FOLDER}", "--verbose", HF_TOKEN="hf_secret")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(hub.storage_headers), 2)
        for headers in hub.storage_headers:
            self.assertNotIn("Authorization", headers)
        self.assertNotIn("hf_secret", done.stdout + done.stderr)
        for path, content in read_folder(self.cache).items():
            self.assertNotIn(b"hf_secret", content, path)

    def refused(self, hub, address, message, exit_code=1):
        done = self.pull(hub, address, "--retries", "0", "--out", self.out)
        self.assertEqual(done.returncode, exit_code, done.stderr)
        self.assertIn(message, done.stderr)
        self.assertFalse(self.out.exists())
        self.assertFalse((self.cache / "sets").exists())

    def test_what_is_not_there_or_not_right_is_an_error(self):
        files = self.zoo_of_pickles()
        with Hub(REPOSITORY, files) as hub:
            self.refused(hub, f"hf://{REPOSITORY}/nothing", "HTTP 404")
            self.refused(hub, f"hf://{REPOSITORY}/{FOLDER}@other", "HTTP 404")
            self.refused(hub, "hf://someone/else/folder", "HTTP 404")
            self.refused(hub, f"hf://{REPOSITORY}", "no rotation files")
            for address in ("hf://", "hf://x", f"hf://{REPOSITORY}/../x", f"hf://{REPOSITORY}/a@../b"):
                self.refused(hub, address, "is not an address", exit_code=2)
            # The listing promises another content than what comes.
            entry = hub.entry
            hub.entry = lambda name: {**entry(name), "lfs": {"oid": "0" * 64, "size": len(files[name]), "pointerSize": 1}}
            self.refused(hub, f"hf://{REPOSITORY}/{FOLDER}", "sha256 differs")
            hub.entry = lambda name: {**entry(name), "path": "../" + name}
            self.refused(hub, f"hf://{REPOSITORY}/{FOLDER}", "unusable name")
            hub.entry = lambda name: {**entry(name), "size": 10 << 30}
            self.refused(hub, f"hf://{REPOSITORY}/{FOLDER}", "--max-size")
        with Hub(REPOSITORY, {f"{FOLDER}/{KEYS}": b"<html>" * 1000, f"{FOLDER}/{VALUES}": b"<html>" * 1000}) as hub:
            self.refused(hub, f"hf://{REPOSITORY}/{FOLDER}", "archive")

    def test_small_files_are_checked_by_gits_hash(self):
        files = self.zoo_of_pickles()
        with Hub(REPOSITORY, files, lfs_from=1 << 40) as hub:
            entry = hub.entry
            hub.entry = lambda name: {**entry(name), "oid": "0" * 40}
            self.refused(hub, f"hf://{REPOSITORY}/{FOLDER}", "differs")
            hub.entry = entry
            self.assertEqual(self.pull(hub, f"hf://{REPOSITORY}/{FOLDER}").returncode, 0)

    def test_the_hubs_own_client_gets_the_same_from_this_hub(self):
        os.environ.update(HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1")
        huggingface_hub = pinned("huggingface_hub")
        with Hub(REPOSITORY, self.zoo_of_pickles()) as hub:
            path = huggingface_hub.snapshot_download(REPOSITORY, allow_patterns=[f"{FOLDER}/*"], endpoint=hub.url,
                                                     cache_dir=self.folder / "hf", token=False)
        self.assertEqual((Path(path) / FOLDER / KEYS).read_bytes(), (SAMPLE / KEYS).read_bytes())


if __name__ == "__main__":
    program = unittest.main(exit=False)
    sys.exit(1 if not program.result.wasSuccessful() else 77 if program.result.skipped else 0)
