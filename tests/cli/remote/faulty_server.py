# SPDX-License-Identifier: MIT
"""A server of models that does what a test tells it to."""
import base64
import threading
import urllib.parse

from peers import Handler, Serving, requested_range


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
