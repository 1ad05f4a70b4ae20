# SPDX-License-Identifier: MIT
"""Models on the Hugging Face Hub are streamed as the folders of its cache are read: hub_models_test.py
[HubModelsTest.test_…]."""
import json
import re
import unittest
import urllib.parse

from remote_case import DATA, MODEL, TOKENS, RemoteCase, read_folder
from peers import Hub

REPOSITORY = "me/model"
OLD, NEW = "0123456789abcdef0123456789abcdef01234567", "89abcdef0123456789abcdef0123456789abcdef"
WEIGHTS = "model-00001-of-00001.safetensors"
LAYER = [*TOKENS, "--layers", "0", "--recipe", "oscar"]


def other_weights():
    """The sample model with a shard in which some bytes of weights differ."""
    files = read_folder(MODEL)
    shard = bytearray(files[WEIGHTS])
    begin = 8 + int.from_bytes(shard[:8], "little")
    for at in range(begin, len(shard), 64):
        shard[at] ^= 1
    return {**files, WEIGHTS: bytes(shard)}


class ModelHub(Hub):
    """Several commits {commit: {path: bytes}} of one repository, and what its branches are; gated: everybody may know of
    it, and nobody without the token may read files. after(path): called once a request is answered."""

    def __init__(self, commits, branches, gated=False, after=lambda path: None, **options):
        super().__init__(REPOSITORY, {f"{commit}/{name}": body for commit, files in commits.items() for name, body in files.items()},
                         **options)
        self.commits, self.branches, self.gated, self.after, self.raw = commits, branches, gated, after, []

    def answer(self, request):
        path = urllib.parse.unquote(urllib.parse.urlsplit(request.path).path)
        given = request.headers.get("Authorization")
        self.raw.append(request.path)
        self.seen.append((request.command, path, given))
        api, resolve = f"/api/models/{self.repository}", f"/{self.repository}/resolve/"
        allowed = self.token is None or given == f"Bearer {self.token}"
        if not allowed and not (self.gated and path.startswith(api)):
            return self.reply(request, 403 if given else 401, b'{"error":"no"}')
        commit, name = None, ""
        if path == api:
            commit = self.branches["main"]
        elif path.startswith(f"{api}/revision/"):
            commit = self.commit_of(path.removeprefix(f"{api}/revision/"))
        elif path.startswith(resolve):
            revision, _, name = path.removeprefix(resolve).partition("/")
            commit = self.commit_of(revision)
        if commit is None or (name and name not in self.commits[commit]):
            self.reply(request, 404, b'{"error":"not found"}')
        elif name:
            self.resolve(request, f"{commit}/{name}")
        else:
            self.reply_json(request, {"id": self.repository, "sha": commit,
                                      "siblings": [{"rfilename": file} for file in self.commits[commit]]})
        return self.after(path)

    def commit_of(self, revision):
        return revision if revision in self.commits else self.branches.get(revision)

    def asked(self, part):
        return [path for _, path, _ in self.seen if part in path]


class HubModelsTest(RemoteCase):
    def setUp(self):
        super().setUp()
        self.environment["OSCAR_DEVICE"] = "cpu"

    def hub(self, **options):
        return ModelHub({OLD: read_folder(MODEL), NEW: other_weights()}, {"main": OLD, "next": NEW}, **options)

    def cached(self, commit, files):
        """As the hub's own client keeps them."""
        folder = self.folder / "models--me--model/snapshots" / commit
        for name, body in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(body)
        return folder

    def fit_layer(self, hub, out, place=f"hf://{REPOSITORY}", **env):
        return self.fit(out, "--model", place, *LAYER, env={"HF_ENDPOINT": hub.url, **env})

    def refused(self, hub, fragments, place=f"hf://{REPOSITORY}", code=1, **env):
        return self.fail_with(fragments, "fit", "--model", place, *LAYER, "--out", "set", code=code,
                              env={"HF_ENDPOINT": hub.url, **env})

    def test_a_model_gives_the_bytes_of_the_hubs_cache(self):
        folder, rotations = self.cached(OLD, read_folder(MODEL)), [*TOKENS, "--recipe", "oscar"]
        text = ["--text", DATA / "text/pep-0334.txt", "--max-tokens", "600"]
        with self.hub() as hub:
            env = {"HF_ENDPOINT": hub.url}
            there = self.fit("there", "--model", f"hf://{REPOSITORY}", *rotations, env=env)
            self.succeed("dump", "-q", "--model", f"hf://{REPOSITORY}/", *text, "--out", "d", env=env)
            verify = ["verify", "-q", "there", *TOKENS, "--compare", "none", "--no-default-limits", "--recent", "64", "--json"]
            figures = [json.loads(self.succeed(*verify, "--model", place, env=env).stdout)["methods"]
                       for place in (folder, f"hf://{REPOSITORY}")]
        self.same(self.fit("here", "--model", folder, *rotations), there)
        self.succeed("dump", "-q", "--model", folder, *text, "--out", "c")
        self.same(read_folder(self.folder / "c"), read_folder(self.folder / "d"))
        self.assertEqual(*figures)
        model = json.loads(there["manifest.json"])["model"]
        self.assertEqual((model["id"], model["revision"]), (REPOSITORY, OLD))

    def test_the_revision_is_asked_for_once_and_its_commit_is_read(self):
        here = self.fit("here", "--model", self.cached(NEW, other_weights()), *LAYER)
        with self.hub() as hub:
            self.same(here, self.fit_layer(hub, "branch", f"hf://{REPOSITORY}@next"))
            self.assertEqual(hub.asked("/revision/"), [f"/api/models/{REPOSITORY}/revision/next"])
            self.assertEqual({re.search("resolve/([^/]*)", path)[1] for path in hub.asked("/resolve/")}, {NEW})
            self.same(here, self.fit_layer(hub, "commit", f"hf://{REPOSITORY}@{NEW}"))
            main = self.fit_layer(hub, "main")
        self.assertNotEqual(here, main)

    def test_a_branch_that_moves_during_the_run_does_not_mix_commits(self):
        here = self.fit("here", "--model", self.cached(OLD, read_folder(MODEL)), *LAYER)

        def move(path):
            if path.endswith("config.json"):
                hub.branches["main"] = NEW
        hub = self.hub(after=move)
        with hub:
            there = self.fit_layer(hub, "there")
        self.assertEqual(hub.branches["main"], NEW)
        self.same(here, there)

    def test_a_folder_of_a_repository(self):
        inside = {f"small/{name}": body for name, body in read_folder(MODEL).items()}
        here = self.fit("here", "--model", self.copy(MODEL, "small"), *LAYER)
        with ModelHub({OLD: inside}, {"a/b": OLD}) as hub:
            self.same(here, self.fit_layer(hub, "there", f"hf://{REPOSITORY}/small/@a/b"))
        self.assertEqual(hub.raw[0], f"/api/models/{REPOSITORY}/revision/a%2Fb?blobs=true")  # as the hub's own client sends it

    def test_the_token_goes_to_the_hub_alone_and_into_no_text(self):
        (self.folder / "kept").write_text("hf_secret\n")
        home = self.folder / ".cache/huggingface"
        home.mkdir(parents=True)
        with self.hub(token="hf_secret") as hub:
            for number, where in enumerate(({"HF_TOKEN": "hf_secret"}, {"HF_TOKEN_PATH": str(self.folder / "kept")}, {})):
                if not where:
                    (home / "token").write_text("hf_secret")
                done = self.succeed("fit", "--verbose", "--model", f"hf://{REPOSITORY}", *LAYER, "--out", f"o{number}",
                                    env={"HF_ENDPOINT": hub.url, **where})
                self.assertNotIn("hf_secret", done.stdout + done.stderr)
                for path, content in read_folder(self.folder / f"o{number}").items():
                    self.assertNotIn(b"hf_secret", content, path)
        self.assertEqual({given for _, _, given in hub.seen}, {"Bearer hf_secret"})
        self.assertGreater(len(hub.storage_headers), 2)
        self.assertFalse([headers for headers in hub.storage_headers if "Authorization" in headers])

    def test_what_is_not_there(self):
        pickles = {name: body for name, body in read_folder(MODEL).items() if "safetensors" not in name}
        with self.hub() as hub:
            self.refused(hub, ["has no such repository", "hf://me/other@main", "check ORG/NAME"], "hf://me/other")
            self.refused(hub, ['has no revision "v9"', f"hf://{REPOSITORY}@v9", "a branch, a tag"], f"hf://{REPOSITORY}@v9")
            self.refused(hub, ["has no such file", f"resolve/{OLD}/nothing/config.json"], f"hf://{REPOSITORY}/nothing")
        with ModelHub({OLD: {**pickles, "pytorch_model.bin": b"x" * 2000}}, {"main": OLD}) as hub:
            self.refused(hub, ["no weights in safetensors format", "save_pretrained"])

    def test_what_may_not_be_read(self):
        with self.hub(token="hf_secret") as hub:
            self.refused(hub, ["HTTP 401", "private or gated", f"hf://{REPOSITORY}", "set HF_TOKEN", "licence"])
            done = self.refused(hub, ["HTTP 403", "private or gated", "that the token", "licence"], HF_TOKEN="hf_other")
            self.assertNotIn("hf_other", done.stderr)
        with self.hub(token="hf_secret", gated=True) as hub:
            self.refused(hub, ["HTTP 401", "private or gated", f"hf://{REPOSITORY}", "set HF_TOKEN", "licence"])
            self.refused(hub, ["HTTP 403", "private or gated", "that the token", "licence"], HF_TOKEN="hf_other")

    def test_what_is_no_address(self):
        with self.hub() as hub:
            for place in ("hf://", "hf://x", "hf://a/../b", "hf://datasets/me", "hf://me/model@", "hf://me/model@../x", "hf://me/mo del"):
                self.refused(hub, ["is not an address on the Hugging Face Hub", "hf://ORG/NAME@REVISION"], place, code=2)
            done = self.refused(hub, ["no '@' before ORG", "HF_TOKEN"], f"hf://hf_secret@{REPOSITORY}", code=2)
        self.assertNotIn("hf_secret", done.stderr)
        self.assertEqual(hub.seen, [])


if __name__ == "__main__":
    unittest.main()
