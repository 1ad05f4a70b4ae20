# SPDX-License-Identifier: MIT
"""What a server, or whoever owns one, may do to `oscar pull`: nothing outside the target changes, the old set stays usable:
hostile_test.py [HostileTest.test_…]"""
import io
import json
import unittest
import zipfile

import servers
from peers import Hub, RangeServer
from servers import OddServer
from support import KEYS, NAME, REMOTE_KEYS, ZooTest, make_set, read_folder

PIECE = 8 << 20
QUICK = ("--retries", "0", "--timeout", "2")


def understate(server, request, path):
    """Announces half and sends all."""
    body = server.files[path]
    request.close_connection = True
    request.reply(200, body, length=len(body) // 2)


def page(server, request, path):
    request.reply(200, b"<html>Please log in</html>", Content_Type="text/html")


class Changing(dict):
    """Files of which one is another from its second request on."""

    def get(self, path, default=None):
        body = super().get(path, default)
        if path == REMOTE_KEYS:
            self[path] = bytes(len(body))
        return body


class HostileTest(ZooTest):
    def refused(self, behaviour, message):
        self.published()
        with OddServer(read_folder(self.zoo), {REMOTE_KEYS: [behaviour]}, forever=True) as url:
            self.fail_with(1, [message, REMOTE_KEYS], "pull", NAME, "--zoo", url, "--out", self.out, *QUICK)

    def test_a_length_that_is_too_small_is_a_file_that_is_too_short(self):
        self.refused(understate, "only 150000 of 300000 bytes")

    def test_a_page_instead_of_a_file_is_refused(self):
        self.refused(page, "only 26 of 300000 bytes")

    def test_a_file_that_changes_on_the_way_is_refused(self):
        self.published(keys_size=2 * PIECE)
        with RangeServer(Changing(read_folder(self.zoo))) as url:
            self.fail_with(1, ["sha256 differs", KEYS], "pull", NAME, "--zoo", url, "--out", self.out, *QUICK)

    def test_what_was_there_stays_when_a_pull_fails(self):
        old = self.published()
        with OddServer(read_folder(self.zoo)) as url:
            self.succeed("pull", NAME, "--zoo", url, "--out", self.out)
            in_cache = self.succeed("pull", NAME, "--zoo", url).stdout.strip()
            self.published(seed=2)
            with OddServer(read_folder(self.zoo), {REMOTE_KEYS: [servers.corrupt]}, forever=True) as bad:
                # The same address, as far as the cache can tell, is another port: pull what is new into both places.
                done = self.run_oscar("pull", NAME, "--zoo", bad, "--out", self.out, "--force", *QUICK)
                self.assertIn("sha256 differs", done.stderr)
                self.assertEqual(self.run_oscar("pull", NAME, "--zoo", bad, *QUICK).returncode, 1)
            self.assertEqual(self.succeed("pull", NAME, "--zoo", url, "--offline").stdout.strip(), in_cache)
        self.assertEqual(read_folder(self.out), old)
        self.assertEqual(read_folder(in_cache), old)

    def test_nothing_is_written_through_links(self):
        files = self.published()
        precious = self.folder / "precious"
        make_set(precious, 9)
        before = read_folder(precious)
        with OddServer(read_folder(self.zoo), {REMOTE_KEYS: [servers.truncate]}) as url:
            self.run_oscar("pull", NAME, "--zoo", url, "--out", self.out, *QUICK)
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

    def test_a_file_system_that_takes_no_files_is_an_error(self):
        self.published()
        self.fail_with(1, "cannot create", "pull", NAME, "--zoo", self.zoo, "--out", "/sys/oscar/set")

    def bomb(self, member):
        """A zip archive of 200 kB whose member becomes 200 MB."""
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, b"\x80\x02" + bytes(200_000_000))
            archive.writestr(member.split("/")[0] + "/version", b"3\n")
        return content.getvalue()

    def test_archives_that_grow_are_refused(self):
        pickle = self.bomb("archive/data.pkl")
        with Hub("some/where", {"a/k_rotation_x.pt": pickle, "a/v_rotation_x.pt": pickle}) as hub:
            self.fail_with(1, "compressed", "pull", "hf://some/where/a", "--out", self.out, env={"HF_ENDPOINT": hub.url})

    def test_another_version_of_the_index_asks_for_another_oscar(self):
        self.published()
        index = {**json.loads((self.zoo / "index.json").read_text()), "schema": "oscar.zoo_index.v9"}
        with OddServer({**read_folder(self.zoo), "index.json": json.dumps(index).encode()}) as url:
            self.fail_with(1, "update oscar", "pull", NAME, "--zoo", url)

    def test_a_name_that_is_there_twice_is_refused(self):
        self.published()
        index = json.loads((self.zoo / "index.json").read_text())
        index["entries"] *= 2
        with OddServer({**read_folder(self.zoo), "index.json": json.dumps(index).encode()}) as url:
            self.fail_with(1, "twice", "pull", NAME, "--zoo", url)


if __name__ == "__main__":
    unittest.main()
