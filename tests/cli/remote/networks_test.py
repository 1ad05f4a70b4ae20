# SPDX-License-Identifier: MIT
"""What lies between a run and a server: redirects, proxies, addresses of version 6, hosts of buckets, regions, clocks:
networks_test.py [NetworksTest.test_…]."""
import email.utils
import json
import socket
import time

from remote_case import MODEL, TOKENS, RemoteCase, main, read_folder
from faulty_server import FaultyServer
from peers import Handler, Serving
from support import NAME, make_set

KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}


class UploadServer(Serving):
    """Keeps what is PUT, and the headers that came with it; `elsewhere`: (status, address) that uploads are sent to
    instead, and where that is 307 whoever reads, too."""

    def __init__(self, elsewhere=None):
        outer = self
        self.files, self.headers = {}, []

        class Uploads(Handler):
            def do_GET(self):
                if elsewhere and elsewhere[0] == 307:
                    return self.reply(307, Location=elsewhere[1] + self.path)
                body = outer.files.get(self.path)
                self.reply(404 if body is None else 200, body or b"")

            def do_PUT(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.headers.append(dict(self.headers))
                if elsewhere:
                    return self.reply(elsewhere[0], Location=elsewhere[1] + self.path)
                outer.files[self.path] = body
                self.reply(201)

        super().__init__(Uploads)


class ServerOfVersion6(FaultyServer):
    host = "::1"


class NetworksTest(RemoteCase):
    def model(self, prefix, *options, kind=FaultyServer):
        return kind({f"{prefix}/{path}": content for path, content in read_folder(MODEL).items()}, *options)

    def fit_layer(self, place, out, **env):
        return self.fit(out, "--model", place, *TOKENS, "--layers", "0", "--recipe", "oscar", env=env)

    def same(self, here, there):
        self.assertEqual([path for path in {**here, **there} if here.get(path) != there.get(path)], [])

    def here(self):
        return self.fit_layer(self.copy(MODEL, "m"), "here")

    def publish(self, zoo):
        make_set(self.folder / "s", 1)
        return self.run_oscar("publish", "s", "--zoo", zoo, "--name", NAME, env={"OSCAR_CACHE": str(self.folder / "cache")})

    def test_an_upload_that_is_sent_elsewhere_comes_whole_and_without_the_password(self):
        with (there := UploadServer()) as url, (first := UploadServer((307, url))) as asked:
            done = self.publish(asked.replace("http://", "http://me:secret@"))
        self.assertEqual(done.returncode, 0, done.stderr)
        index = json.loads(there.files["/index.json"])
        self.assertEqual(index["entries"][0]["name"], NAME)
        for path, content in read_folder(self.folder / "s").items():
            self.assertEqual(there.files[f"/{NAME}/latest/{path}"], content)
        self.assertTrue(all("Authorization" in headers for headers in first.headers))
        self.assertFalse([headers for headers in there.headers if "Authorization" in headers])

    def test_an_upload_that_is_answered_by_another_page_does_not_empty_it(self):
        with (there := UploadServer()) as url, UploadServer((303, url)) as asked:
            done = self.publish(asked)
        self.assertEqual(done.returncode, 1)
        self.assertIn("HTTP 303", done.stderr)
        self.assertEqual(there.files, {})

    def test_a_proxy_from_the_environment(self):
        with (proxy := self.model("m")) as url:
            there = self.fit_layer("http://weights.invalid/m", "there", http_proxy=url)
            self.assertEqual(proxy.hosts, {"weights.invalid"})
            proxy.hosts.clear()
            with self.model("m") as own:
                self.fit_layer(f"{own}/m", "direct", http_proxy=url, no_proxy="127.0.0.1")
        self.assertEqual(proxy.hosts, set())
        self.same(self.here(), there)

    def test_an_address_of_version_6(self):
        try:
            with socket.create_server(("::1", 0), family=socket.AF_INET6):
                pass
        except OSError as error:
            self.skipTest(f"no addresses of version 6 here: {error}")
        with self.model("bucket/m", kind=ServerOfVersion6) as url:
            there = [self.fit_layer(f"{url}/bucket/m", "a"), self.fit_layer("s3://bucket/m", "b", AWS_ENDPOINT_URL_S3=url, **KEYS)]
        here = self.here()
        for one in there:
            self.same(here, one)

    def test_a_bucket_that_is_asked_for_by_host(self):
        with (server := self.model("m")) as url:
            endpoint = url.replace("127.0.0.1", "{bucket}.localhost")  # which names this machine, whatever the bucket
            there = self.fit_layer("s3://weights/m", "there", AWS_ENDPOINT_URL_S3=endpoint, **KEYS)
        self.assertEqual({host.split(":")[0] for host in server.hosts}, {"weights.localhost"})
        self.same(self.here(), there)

    def refused(self, status, expected, **headers):
        class Refusing(Handler):
            def do_GET(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response_only(status)
                for name, value in {"Content-Length": "0", "Date": email.utils.formatdate(usegmt=True), **headers}.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()

            do_PUT = do_GET

        with Serving(Refusing) as url:
            env = {"AWS_ENDPOINT_URL_S3": url, **KEYS}
            self.fail_with([f"HTTP {status}", expected], "fit", "--model", "s3://bucket/m", *TOKENS, "--out", "set", env=env)
            make_set(self.folder / "s", 1)
            self.fail_with([f"HTTP {status}", expected], "publish", "s", "--zoo", "s3://bucket/m", "--name", NAME, env=env)

    def test_a_clock_that_is_off_is_named(self):
        def date(minutes):
            return email.utils.formatdate(time.time() + 60 * minutes, usegmt=True)
        self.refused(403, "this machine's clock is 20 minutes ahead of the server's", Date=date(-20))
        self.refused(403, "this machine's clock is 30 minutes behind the server's", Date=date(30))
        self.refused(403, "check the credentials", Date=date(1))

    def test_the_region_of_a_bucket_is_named(self):
        self.refused(301, "set AWS_REGION=eu-west-3", x_amz_bucket_region="eu-west-3")
        self.refused(400, "set AWS_REGION=eu-west-3", x_amz_bucket_region="eu-west-3")
        self.refused(403, "check the credentials", x_amz_bucket_region="us-east-1")


if __name__ == "__main__":
    main()
