# SPDX-License-Identifier: MIT
"""What the tests of streaming share: the sample model, small fits of it, and a server that does what a test tells it to."""
import base64
import os
import shutil
import sys
import threading
import urllib.parse
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "zoo"))
from peers import Handler, RangeServer, Serving, requested_range  # noqa: E402
from support import ZooTest, read_folder  # noqa: E402

PROJECT = Path(os.environ["OSCAR_PROJECT"])
DATA = PROJECT / "tests/data"
MODEL = DATA / "qwen3-2m"
TOKENS = ["--tokens", DATA / "golden/qwen3-2m/tokens_calib.npy", "--sequences", "3", "--seq-len", "300"]


class FaultyServer(Serving):
    """Serves {path: bytes} with ranges and ETags.
    fault(request, path, nth, asked): called for each request, the nth one for its path; true: it has answered itself.
    With `password`, "user:password" is asked for. closing: set when the test is over."""

    def __init__(self, files, fault=lambda *_: False, password=None):
        outer = self
        self.files, self.seen, self.conditions, self.hosts = files, [], [], set()
        self.closing, self.counting = threading.Event(), threading.Lock()

        class Faulty(Handler):
            def do_GET(self):
                asked_for = urllib.parse.urlsplit(self.path)  # of a proxy: with the host
                path = urllib.parse.unquote(asked_for.path).lstrip("/")
                with outer.counting:
                    outer.seen.append(path)
                    nth = outer.seen.count(path)
                outer.hosts.add(self.headers["Host"])
                given = self.headers.get("Authorization", "")
                if password and given != "Basic " + base64.b64encode(password.encode()).decode():
                    return self.reply(401)
                body = outer.files.get(path)
                if body is None:
                    return self.reply(404)
                asked = requested_range(self, len(body))
                if fault(self, path, nth, asked):
                    return None
                body = outer.files[path]  # the fault may have changed it; an ETag is of the bytes that go with it
                etag, wanted = outer.etag_of(body), self.headers.get("If-Match")
                outer.conditions.append(wanted)
                if wanted and wanted != etag:
                    return self.reply(412)
                self.reply_file(body, asked, ETag=etag)

        super().__init__(Faulty)

    def etag(self, path):
        return self.etag_of(self.files[path])

    @staticmethod
    def etag_of(body):
        return f'"{hash(body)}"'

    def __exit__(self, *_):
        self.closing.set()
        super().__exit__()


class RemoteCase(ZooTest):
    def fail_with(self, fragments, *arguments, code=1, **more):
        done = self.run_oscar(*arguments, **more)
        self.assertEqual(done.returncode, code, done.stderr)
        for fragment in fragments:
            self.assertIn(fragment, done.stderr)
        self.assertEqual([path.name for path in self.folder.iterdir() if path.name.startswith(("set", ".set"))], [])
        return done

    def fit(self, out, *arguments, **more):
        """The files of the set that is fitted."""
        self.succeed("fit", "-q", "--out", out, *arguments, **more)
        return read_folder(self.folder / out)

    def same(self, here, there):
        self.assertEqual([path for path in {**here, **there} if here.get(path) != there.get(path)], [])

    def serving(self, folder):
        return RangeServer({f"{Path(folder).name}/{path}": content for path, content in read_folder(folder).items()})

    def bytes_asked(self, server, part):
        """Of files with `part` in their paths."""
        ranges = [asked for path, asked in server.seen if part in path]
        self.assertNotIn(None, ranges)
        return sum(end - begin for begin, end in ranges)

    def copy(self, source, name):
        shutil.copytree(source, self.folder / name)
        return self.folder / name
