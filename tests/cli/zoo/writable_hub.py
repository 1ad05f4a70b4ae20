# SPDX-License-Identifier: MIT
"""A hub that also takes uploads, for the tests of `oscar publish`."""
import base64
import hashlib
import json

from peers import Hub


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
