# SPDX-License-Identifier: MIT
"""`oscar publish` to the Hugging Face Hub, by its commit API on localhost: upload_test.py [UploadTest.test_…]. Run by the
project's virtual environment, which has the Hub's own client."""
import base64
import hashlib
import json
import os
import unittest

from peers import Hub, Serving, pinned
from support import KEYS, NAME, ZooTest, make_set, read_folder

REPOSITORY = "someone/zoo"
SECRET = "hf_secret"


class WritableHub(Hub):
    """The Hub's API for uploads: preupload, Git LFS batch, storage, commits that name their parent."""

    def __init__(self, repository, files, **options):
        super().__init__(repository, files, **options)
        self.stored, self.commits, self.before_commit = {}, 0, lambda: None
        outer = self

        def put(request):
            outer.storage_headers.append(dict(request.headers))
            body = request.rfile.read(int(request.headers["Content-Length"]))
            oid = request.path.rsplit("/", 1)[1].split("?")[0]
            right = hashlib.sha256(body).hexdigest() == oid
            if right:
                outer.stored[oid] = body
            outer.reply(request, 200 if right else 400, b"")

        self.storage.server.RequestHandlerClass.do_PUT = put
        self.api.server.RequestHandlerClass.do_POST = lambda request: outer.post(request)

    @property
    def commit(self):
        return f"{self.commits:040x}"

    def answer(self, request):
        request.path = request.path.replace(self.commit, self.COMMIT)
        super().answer(request)

    def about(self):
        return {**super().about(), "sha": self.commit}

    def post(self, request):
        body = request.rfile.read(int(request.headers["Content-Length"]))
        self.seen.append((request.command, request.path, request.headers.get("Authorization")))
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return self.reply(request, 401, b"{}")
        api = f"/api/models/{self.repository}"
        if request.path == f"{api}/preupload/main":
            modes = [{"path": file["path"], "shouldIgnore": False,
                      "uploadMode": "lfs" if file["size"] >= self.lfs_from else "regular"}
                     for file in json.loads(body)["files"]]
            return self.reply_json(request, {"files": modes})
        if request.path == f"/{self.repository}.git/info/lfs/objects/batch":
            return self.reply_json(request, {"transfer": "basic", "objects": [self.lfs_object(wanted)
                                                                            for wanted in json.loads(body)["objects"]]})
        if request.path == f"{api}/commit/main":
            return self.take_commit(request, [json.loads(line) for line in body.splitlines()])
        return self.reply(request, 404, b"{}")

    def lfs_object(self, wanted):
        answer = {"oid": wanted["oid"], "size": wanted["size"]}
        if wanted["oid"] not in self.stored:
            answer["actions"] = {"upload": {"href": f"{self.storage_url}/{wanted['oid']}?X-Amz-Signature=secret",
                                            "header": {"X-Test": "1"}}}
        return answer

    def take_commit(self, request, lines):
        self.before_commit()
        header = lines[0]
        if header["key"] != "header" or header["value"].get("parentCommit", self.commit) != self.commit:
            return self.reply(request, 412, b'{"error":"A commit has happened since"}')
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"], validate=True)
            elif line["key"] == "lfsFile":
                self.files[value["path"]] = self.stored[value["oid"]]
        self.commits += 1
        self.reply_json(request, {"commitOid": self.commit, "commitUrl": f"{self.url}/{self.repository}/commit/{self.commit}", "success": True})


class UploadTest(ZooTest):
    def publish(self, hub, name=NAME, *more, seed=1, **env):
        make_set(self.folder / f"set-{seed}", seed)
        return self.run_oscar("publish", self.folder / f"set-{seed}", "--zoo", f"hf://{REPOSITORY}", "--name", name, *more,
                              env={"HF_ENDPOINT": hub.url, "HF_TOKEN": SECRET, **env})

    def published_at(self, hub, *arguments, **more):
        done = self.publish(hub, *arguments, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def names(self, hub):
        return [entry["name"] for entry in json.loads(hub.files["index.json"])["entries"]]

    def test_one_commit_on_the_hub_and_back(self):
        with WritableHub(REPOSITORY, {"README.md": b"# Zoo\n"}, token=SECRET) as hub:
            self.published_at(hub)
            self.assertEqual(hub.commits, 1)
            self.assertEqual(len(hub.stored), 3)  # the two .pt files and serve.env are large
            pulled = self.succeed("pull", NAME, "--zoo", f"hf://{REPOSITORY}", env={"HF_ENDPOINT": hub.url, "HF_TOKEN": SECRET})
            self.assertEqual(read_folder(pulled.stdout.strip()), read_folder(self.folder / "set-1"))
            self.assertIn("exactly this set already", self.published_at(hub).stderr)
            self.assertEqual(hub.commits, 1)
            other = self.publish(hub, seed=2)
            self.assertEqual(other.returncode, 2)
            self.assertIn("another set under test/tiny:latest", other.stderr)
            self.published_at(hub, NAME, "--force", seed=2)
            self.published_at(hub, "test/other", seed=2)
            self.assertEqual(self.names(hub), ["test/other", NAME])
            for headers in hub.storage_headers:
                self.assertNotIn("Authorization", headers)
        self.assertEqual(hub.files[f"{NAME}/latest/{KEYS}"], (self.folder / "set-2" / KEYS).read_bytes())

    def test_what_is_refused_is_told_and_changes_nothing(self):
        with WritableHub(REPOSITORY, {}, token=SECRET) as hub:
            self.assertIn("needs a token", self.publish(hub, HF_TOKEN="").stderr)
            denied = self.publish(hub, HF_TOKEN="other")
            self.assertEqual(denied.returncode, 1)
            self.assertIn("HTTP 401", denied.stderr)
            env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": SECRET}
            make_set(self.folder / "bad", 1, "rejected")
            self.fail_with(1, "oscar verify", "publish", "bad", "--zoo", f"hf://{REPOSITORY}", "--name", NAME, env=env)
            (self.folder / "set-1/serve.env").write_text("A=2\n")
            self.fail_with(1, "its manifest says", "publish", "set-1", "--zoo", f"hf://{REPOSITORY}", "--name", NAME, env=env)
            self.assertEqual((hub.files, hub.commits), ({}, 0))
            self.fail_with(2, ["is not written to", "copy that"], "publish", "set-1", "--zoo", hub.url, "--name", NAME)

    def test_what_lets_into_a_storage_does_not_go_on_to_another(self):
        hub, first = WritableHub(REPOSITORY, {}, token=SECRET), []
        storage, wanted = hub.storage.server.RequestHandlerClass, hub.lfs_object
        with Serving(type("Another", (storage,), {"do_PUT": storage.do_PUT})) as another, hub:
            def send_on(request):
                first.append(request.headers.get("Authorization"))
                request.rfile.read(int(request.headers["Content-Length"]))
                hub.reply(request, 307, b"", Location=another + request.path)

            def with_permission(object):
                answer = wanted(object)
                answer["actions"]["upload"]["header"] = {"authorization": "Basic permission", "X-Test": "1"}
                return answer

            storage.do_PUT, hub.lfs_object = send_on, with_permission
            self.published_at(hub)
        self.assertEqual(set(first), {"Basic permission"})
        self.assertEqual({headers.get("Authorization", headers.get("authorization")) for headers in hub.storage_headers}, {None})
        self.assertEqual({headers["X-Test"] for headers in hub.storage_headers}, {"1"})

    def test_a_commit_in_between_is_not_overwritten(self):
        with WritableHub(REPOSITORY, {}, token=SECRET) as hub:
            self.published_at(hub, "test/first")
            rivals = [1]

            def interfere():
                if rivals and rivals.pop():
                    index = json.loads(hub.files["index.json"])
                    index["entries"][0]["name"] = "test/rival"
                    hub.files["index.json"] = json.dumps(index).encode()
                    hub.commits += 1
            hub.before_commit = interfere
            self.published_at(hub, "test/second", seed=2)
        self.assertEqual(self.names(hub), ["test/rival", "test/second"])

    def test_the_hubs_own_client_commits_to_this_hub(self):
        os.environ["HF_HUB_DISABLE_XET"] = "1"
        huggingface_hub = pinned("huggingface_hub")
        with WritableHub(REPOSITORY, {}, token=SECRET) as hub:
            api = huggingface_hub.HfApi(endpoint=hub.url, token=SECRET)
            make_set(self.folder / "set", 1)
            api.upload_folder(repo_id=REPOSITORY, folder_path=str(self.folder / "set"))
        self.assertEqual(hub.files[KEYS], (self.folder / "set" / KEYS).read_bytes())


if __name__ == "__main__":
    unittest.main()
