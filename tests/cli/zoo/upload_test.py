# SPDX-License-Identifier: MIT
"""`oscar publish` over the network: WebDAV in nginx, moto's S3 server, the Hub's commit API: upload_test.py
[UploadTest.test_…]. Run by the project's virtual environment."""
import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

from peers import Handler, Nginx, Serving, pinned
from support import KEYS, NAME, ZooTest, make_set, read_folder
from writable_hub import WritableHub

REPOSITORY = "someone/zoo"


class PutServer(Serving):
    """Takes PUT into `files`, with ETags and their conditions. lazy: it does not look at the conditions; folders: those
    there are, if it makes them; removes: and removes them."""

    def __init__(self, files, lazy=False, folders=None, removes=True):
        outer = self
        self.methods, self.before_put, self.after_folder = [], lambda path: None, lambda path: None

        def etag(body):
            return f'"{hashlib.md5(body).hexdigest()}"'

        class Putting(Handler):
            def do_GET(self):
                body = b"" if self.path in (folders or ()) else files.get(self.path.lstrip("/"))
                self.reply(404) if body is None else self.reply(200, body, ETag=etag(body))

            def do_PUT(self):
                path, body = self.path.lstrip("/"), self.rfile.read(int(self.headers["Content-Length"]))
                outer.methods.append(("PUT", path))
                outer.before_put(path)
                there = files.get(path)
                wanted, none = self.headers.get("If-Match"), self.headers.get("If-None-Match")
                fits = (not wanted or (there is not None and etag(there) == wanted)) and not (none and there is not None)
                if not fits and not lazy:
                    return self.reply(412)
                files[path] = body
                self.reply(201)

            def do_MKCOL(self):
                outer.methods.append(("MKCOL", self.path))
                fresh = folders is not None and self.path not in folders
                if fresh:
                    folders.add(self.path)
                    outer.after_folder(self.path)
                self.reply(201 if fresh else 405)

            def do_DELETE(self):
                outer.methods.append(("DELETE", self.path))
                if removes:
                    folders.remove(self.path)
                self.reply(204 if removes else 405)

        super().__init__(Putting)


class UploadTest(ZooTest):
    def publish(self, zoo, name=NAME, *more, seed=1, **env):
        make_set(self.folder / f"set-{seed}", seed)
        return self.run_oscar("publish", self.folder / f"set-{seed}", "--zoo", zoo, "--name", name, *more, env=env)

    def published_at(self, zoo, *arguments, **more):
        done = self.publish(zoo, *arguments, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def pulled_from(self, zoo, name=NAME, **env):
        done = self.run_oscar("pull", name, "--zoo", zoo, env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        return read_folder(done.stdout.strip())

    def test_by_put_and_back(self):
        with (server := PutServer(files := {})) as url:
            self.published_at(url)
            self.assertEqual(self.pulled_from(url), read_folder(self.folder / "set-1"))
            self.assertEqual(server.methods[-1], ("PUT", "index.json"))  # when everything else is there
            again = self.published_at(url)
            self.assertIn("exactly this set already", again.stderr)
            self.assertEqual(server.methods.count(("PUT", "index.json")), 1)
            other = self.publish(url, seed=2)
            self.assertEqual(other.returncode, 2)
            self.assertIn("another set under test/tiny:latest", other.stderr)
            self.published_at(url, NAME, "--force", seed=2)
        self.assertEqual(files[f"{NAME}/latest/{KEYS}"], (self.folder / "set-2" / KEYS).read_bytes())

    def test_somebody_else_publishing_in_between_is_not_lost(self):
        for lazy in (False, True):  # just before; or just after, by somebody who did not see it
            files = {}
            with (server := PutServer(files, lazy)) as url:
                self.published_at(url, "test/first")
                rival = json.loads(files["index.json"])
                rival["entries"][0]["name"] = "test/rival"
                pending = [json.dumps(rival).encode()]

                def interfere(path):
                    if path != "index.json" or not pending:
                        return
                    write = lambda text=pending.pop(): files.update({"index.json": text})
                    threading.Timer(0.2, write).start() if lazy else write()
                server.before_put = interfere
                self.published_at(url, "test/second")
            names = {entry["name"] for entry in json.loads(files["index.json"])["entries"]}
            self.assertEqual(names, {"test/rival", "test/second"})

    def test_where_conditions_are_ignored_a_folder_keeps_others_out(self):
        files, folders = {}, set()
        with (server := PutServer(files, lazy=True, folders=folders)) as url:
            running = []
            for i in range(6):
                make_set(self.folder / f"many-{i}", i)
                running.append(self.start_oscar("publish", f"many-{i}", "--zoo", url, "--name", f"test/n{i}"))
            for process in running:
                said = process.communicate(timeout=60)[1]
                self.assertEqual(process.returncode, 0, said)
                self.assertNotIn("may be lost", said)
        names = {entry["name"] for entry in json.loads(files["index.json"])["entries"]}
        self.assertEqual((names, folders), ({f"test/n{i}" for i in range(6)}, set()))
        self.assertEqual(server.methods.count(("PUT", "index.json")), 6)  # none was repeated

    def test_a_lock_that_nobody_holds_any_more_is_named(self):
        with PutServer({}, lazy=True, folders={"/.index.lock/"}) as url:
            done = self.publish(url, NAME, "--timeout", "1")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("remove this folder at the server", done.stderr)

    def test_ctrl_c_while_the_lock_is_made_leaves_none(self):
        files, folders = {}, set()
        make_set(self.folder / "set-1", 1)
        with (server := PutServer(files, lazy=True, folders=folders)) as url:
            made = threading.Event()

            def interrupt(path):
                made.wait(20)
                running.send_signal(signal.SIGINT)
                time.sleep(0.5)  # the answer comes when it was heard
            server.after_folder = lambda path: interrupt(path) if path == "/.index.lock/" else None
            running = self.start_oscar("publish", "set-1", "--zoo", url, "--name", NAME)
            made.set()
            said = running.communicate(timeout=60)[1]
        self.assertEqual((running.returncode, folders), (130, set()), said)
        self.assertNotIn("index.json", files)

    def test_folders_that_a_server_does_not_remove_are_named(self):
        folders = {"/.index.lock/"}
        with PutServer({}, lazy=True, folders=folders, removes=False) as url:
            said = self.published_at(url).stderr
            left, = [path for path in folders if path.startswith("/.index.lock.")]
            self.assertIn(f"remove this one there: {url}{left}", said)
            self.assertIn("an entry may be lost", said)

    def test_where_nothing_keeps_others_out_it_is_said(self):
        with PutServer({}, lazy=True) as url:
            self.assertIn("an entry may be lost", self.published_at(url).stderr)
        with PutServer({}) as url:
            self.assertNotIn("may be lost", self.published_at(url).stderr)

    def test_what_servers_refuse_is_told(self):
        class Static(Handler):
            def do_GET(self):
                self.send_error(404)

            def do_PUT(self):
                self.send_error(405)

        with Serving(Static) as url:
            done = self.publish(url, NAME, )
        self.assertEqual(done.returncode, 1)
        self.assertIn("takes no uploads", done.stderr)
        make_set(self.folder / "bad", 1, "rejected")
        with PutServer(files := {}) as url:
            self.fail_with(1, "oscar verify", "publish", "bad", "--zoo", url, "--name", NAME)
            (self.folder / "set-1/serve.env").write_text("A=2\n")
            self.fail_with(1, "its manifest says", "publish", "set-1", "--zoo", url, "--name", NAME)
        self.assertNotIn("index.json", files)

    def test_webdav_in_nginx(self):
        certificate, key = self.folder / "c.pem", self.folder / "k.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
                        "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
                       check=True, capture_output=True)
        root = self.folder / "root"
        root.mkdir()
        trusted = {"SSL_CERT_FILE": str(certificate)}
        with Nginx(self.folder / "nginx", root, (certificate, key), dav=True) as nginx:
            self.published_at(nginx.url + "/zoo", **trusted)
            self.assertEqual(self.pulled_from(nginx.url + "/zoo", **trusted), read_folder(self.folder / "set-1"))
            requests = [(method, path) for _, _, method, path, _ in nginx.requests()]
        self.assertEqual(read_folder(root / "zoo" / NAME / "latest"), read_folder(self.folder / "set-1"))
        lock = requests.index(("MKCOL", "/zoo/.index.lock/"))
        self.assertEqual(requests[lock + 1:lock + 4],
                         [("GET", "/zoo/index.json"), ("PUT", "/zoo/index.json"), ("DELETE", "/zoo/.index.lock/")])
        self.assertFalse((root / "zoo/.index.lock").exists())

    def test_s3_by_moto_with_signatures_checked(self):
        os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "4"  # then every request needs a valid signature
        try:
            moto, boto3 = importlib.import_module("moto.server"), importlib.import_module("boto3")
        except ImportError as error:
            raise unittest.SkipTest(f"{error}; run scripts/setup.sh --tests") from error
        server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        self.addCleanup(server.stop)
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        def client(service, key="x", secret="x"):
            return boto3.client(service, endpoint_url=endpoint, region_name="eu-west-1", aws_access_key_id=key,
                                aws_secret_access_key=secret)
        iam = client("iam")
        iam.create_user(UserName="u")
        iam.put_user_policy(UserName="u", PolicyName="p", PolicyDocument=json.dumps(
            {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}))
        key = iam.create_access_key(UserName="u")["AccessKey"]
        client("s3").create_bucket(Bucket="zoo", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        env = {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
               "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
        self.published_at("s3://zoo/rotations", **env)
        self.published_at("s3://zoo/rotations", "test/other:v_1", seed=2, **env)
        self.assertEqual(self.pulled_from("s3://zoo/rotations", **env), read_folder(self.folder / "set-1"))
        stored = client("s3", key["AccessKeyId"], key["SecretAccessKey"]).get_object(
            Bucket="zoo", Key=f"rotations/{NAME}/latest/{KEYS}")["Body"].read()
        self.assertEqual(stored, (self.folder / "set-1" / KEYS).read_bytes())
        wrong = self.publish("s3://zoo/rotations", "test/wrong", **{**env, "AWS_SECRET_ACCESS_KEY": "wrong"})
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("check the credentials", wrong.stderr)
        self.assertNotIn(key["SecretAccessKey"], wrong.stderr)

    def hub_env(self, hub):
        return {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_secret"}

    def test_one_commit_on_the_hub(self):
        with WritableHub(REPOSITORY, {"README.md": b"# Zoo\n"}, token="hf_secret") as hub:
            env = self.hub_env(hub)
            self.published_at(f"hf://{REPOSITORY}", **env)
            self.assertEqual(hub.commits, 1)
            self.assertEqual(len(hub.stored), 4)  # the two .pt files, serve.env and the manifest are large
            self.assertEqual(self.pulled_from(f"hf://{REPOSITORY}", **env), read_folder(self.folder / "set-1"))
            self.published_at(f"hf://{REPOSITORY}", "test/other", seed=2, **env)
            self.assertEqual(len(json.loads(hub.files["index.json"])["entries"]), 2)
            for headers in hub.storage_headers:
                self.assertNotIn("Authorization", headers)
            self.assertIn("needs a token", self.publish(f"hf://{REPOSITORY}", HF_ENDPOINT=hub.url).stderr)
            denied = self.publish(f"hf://{REPOSITORY}", "test/x", HF_ENDPOINT=hub.url, HF_TOKEN="other")
        self.assertEqual(denied.returncode, 1)
        self.assertIn("HTTP 401", denied.stderr)

    def test_what_lets_into_a_storage_does_not_go_on_to_another(self):
        hub, first = WritableHub(REPOSITORY, {}, token="hf_secret"), []
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
            self.published_at(f"hf://{REPOSITORY}", **self.hub_env(hub))
        self.assertEqual(set(first), {"Basic permission"})
        self.assertEqual({headers.get("Authorization", headers.get("authorization")) for headers in hub.storage_headers}, {None})
        self.assertEqual({headers["X-Test"] for headers in hub.storage_headers}, {"1"})

    def test_two_publishers_of_one_set_at_once(self):
        files, manifest = {}, f"{NAME}/latest/manifest.json"
        with PutServer(files) as elsewhere, WritableHub(REPOSITORY, {}, token="hf_secret") as hub:
            wanted, sizes = hub.lfs_object, []

            def publish_elsewhere_first(object):
                sizes.append(object["size"])
                done = self.run_oscar("publish", self.folder / "set-1", "--zoo", f"{elsewhere}/{len(sizes)}", "--name", NAME)
                self.assertEqual(done.returncode, 0, done.stderr)
                return wanted(object)

            hub.lfs_object = publish_elsewhere_first
            self.published_at(f"hf://{REPOSITORY}", **self.hub_env(hub))
        self.assertEqual(hub.files[manifest], (self.folder / "set-1/manifest.json").read_bytes())
        self.assertIn(len(hub.files[manifest]), sizes)  # the manifest went that way, too
        self.assertEqual([files[f"{count + 1}/{manifest}"] for count in range(len(sizes))], [hub.files[manifest]] * len(sizes))

    def test_a_commit_in_between_is_not_overwritten(self):
        with WritableHub(REPOSITORY, {}, token="hf_secret") as hub:
            self.published_at(f"hf://{REPOSITORY}", "test/first", **self.hub_env(hub))
            rivals = [1]

            def interfere():
                if rivals and rivals.pop():
                    index = json.loads(hub.files["index.json"])
                    index["entries"][0]["name"] = "test/rival"
                    hub.files["index.json"] = json.dumps(index).encode()
                    hub.commits += 1
            hub.before_commit = interfere
            self.published_at(f"hf://{REPOSITORY}", "test/second", seed=2, **self.hub_env(hub))
            names = [entry["name"] for entry in json.loads(hub.files["index.json"])["entries"]]
        self.assertEqual(names, ["test/rival", "test/second"])

    def test_the_hubs_own_client_commits_to_this_hub(self):
        os.environ["HF_HUB_DISABLE_XET"] = "1"
        huggingface_hub = pinned("huggingface_hub")
        with WritableHub(REPOSITORY, {}, token="hf_secret") as hub:
            api = huggingface_hub.HfApi(endpoint=hub.url, token="hf_secret")
            make_set(self.folder / "set", 1)
            api.upload_folder(repo_id=REPOSITORY, folder_path=str(self.folder / "set"))
        self.assertEqual(hub.files[KEYS], (self.folder / "set" / KEYS).read_bytes())


if __name__ == "__main__":
    program = unittest.main(exit=False)
    for _, why in program.result.skipped:
        print("skipped:", why)
    sys.exit(1 if not program.result.wasSuccessful() else 77 if program.result.skipped else 0)
