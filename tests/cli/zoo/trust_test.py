# SPDX-License-Identifier: MIT
"""Signatures from publish to pull, and keys that openssl made: trust_test.py [TrustTest.test_…]"""
import base64
import json
import subprocess
import unittest

from peers import FileServer
from support import NAME, ZooTest, make_set, read_folder

SIGNATURE = f"{NAME}/latest/signature.json"


class TrustTest(ZooTest):
    def publish(self, key, seed=1, name=NAME, *more):
        make_set(self.folder / f"set-{seed}", seed)
        return self.succeed("publish", self.folder / f"set-{seed}", "--zoo", self.zoo, "--name", name, "--sign", key, *more)

    def entry(self):
        return json.loads((self.zoo / "index.json").read_text())["entries"][0]

    def test_a_signed_set_is_accepted_and_openssl_agrees(self):
        private, public = self.key()
        self.publish(private)
        document = json.loads((self.zoo / SIGNATURE).read_text())
        raw = subprocess.run(["openssl", "pkey", "-pubin", "-in", public, "-outform", "DER"], check=True, capture_output=True)
        self.assertEqual(base64.b64decode(document["signatures"][0]["key"]), raw.stdout[-32:])
        (self.folder / "signature").write_bytes(base64.b64decode(document["signatures"][0]["signature"]))
        subprocess.run(["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin", "-in",
                        self.zoo / NAME / "latest/manifest.json", "-sigfile", self.folder / "signature"], check=True,
                       capture_output=True)
        self.assertEqual(self.entry()["signed_by"], [document["signatures"][0]["key"]])
        with FileServer(read_folder(self.zoo)) as url:
            self.succeed("pull", NAME, "--zoo", url, "--key", public)
        self.succeed("pull", NAME, "--zoo", url, "--key", public)  # from the cache, without the server
        self.succeed("pull", NAME, "--zoo", url, "--key", private, "--offline")

    def test_what_is_not_signed_is_refused(self):
        self.published()
        with FileServer(read_folder(self.zoo)) as url:
            self.fail_with(1, "not signed", "pull", NAME, "--zoo", url, "--require-signature")
            self.succeed("pull", NAME, "--zoo", url)
            done = self.run_oscar("pull", NAME, "--zoo", url, "--require-signature")
        self.assertEqual(done.returncode, 1)
        self.assertIn("not signed", done.stderr)

    def test_a_signature_by_another_key_or_of_other_bytes_is_refused(self):
        private, public = self.key()
        _, other = self.key("other")
        self.publish(private)
        self.fail_with(1, "not by a key that was given", "pull", NAME, "--zoo", self.zoo, "--key", other)
        good = json.loads((self.zoo / SIGNATURE).read_text())
        signature = good["signatures"][0]
        changed = [
            ({**good, "manifest_sha256": "0" * 64}, "of another manifest"),
            ({**good, "signatures": [{**signature, "signature": "A" * 86 + "=="}]}, "is wrong"),
            ({**good, "signatures": [{**signature, "key": base64.b64encode(b"k" * 32).decode()}]}, "is wrong"),
            ({**good, "signatures": [{**signature, "key": "not base64" + "!" * 34}]}, "is wrong"),
            ({**good, "signatures": []}, "schema"),
            ({**good, "schema": "oscar.signature.v2"}, "oscar.signature.v1"),
            ("text", "oscar.signature.v1"),
        ]
        for document, message in changed:
            (self.zoo / SIGNATURE).write_text(json.dumps(document))
            self.fail_with(1, [message, f"where: {self.zoo / SIGNATURE}"], "pull", NAME, "--zoo", self.zoo, "--key", public)

    def test_the_first_key_is_remembered_and_others_refused(self):
        private, _ = self.key()
        stranger, stranger_public = self.key("stranger")
        self.publish(private)
        done = self.succeed("pull", NAME, "--zoo", self.zoo, "--require-signature")
        self.assertIn("from now on", done.stderr)
        self.publish(stranger, 2, f"{NAME}:other")
        done = self.run_oscar("pull", f"{NAME}:other", "--zoo", self.zoo, "--require-signature")
        self.assertEqual(done.returncode, 1)
        self.assertIn("earlier ones by", done.stderr)
        self.succeed("pull", f"{NAME}:other", "--zoo", self.zoo, "--key", stranger_public)
        for file in (self.cache / "keys").iterdir():
            file.write_text("{}")
        done = self.run_oscar("pull", NAME, "--zoo", self.zoo, "--require-signature")
        self.assertEqual(done.returncode, 1)
        self.assertIn("remembered keys cannot be read", done.stderr)

    def test_two_can_sign_and_a_new_set_loses_old_signatures(self):
        first, first_public = self.key()
        second, second_public = self.key("second")
        self.publish(first)
        exact = f"{NAME}@sha256:{self.entry()['manifest']['sha256']}"
        self.succeed("pull", exact, "--zoo", self.zoo, "--key", first_public)
        self.publish(second)
        self.assertIn("already", self.publish(first).stderr)
        self.assertEqual(len(json.loads((self.zoo / SIGNATURE).read_text())["signatures"]), 2)
        for public in (first_public, second_public):
            for name in (exact, NAME):
                self.succeed("pull", name, "--zoo", self.zoo, "--key", public)
        third, third_public = self.key("third")
        self.publish(third)
        with FileServer(read_folder(self.zoo)) as url:
            self.succeed("pull", exact, "--zoo", url, "--key", third_public, "--refresh")
        make_set(self.folder / "set-3", 3)
        self.succeed("publish", self.folder / "set-3", "--zoo", self.zoo, "--name", NAME, "--force")
        self.assertNotIn("signed_by", self.entry())
        self.assertFalse((self.zoo / SIGNATURE).exists())

    def signers(self, zoo):
        return [signature["key"] for signature in json.loads((zoo / SIGNATURE).read_text())["signatures"]]

    def test_signatures_of_a_set_join_those_of_its_copy_and_broken_ones_do_not_stay(self):
        self.publish(self.key()[0])
        publish = ("publish", "set-1", "--name", NAME, "--zoo")
        self.succeed(*publish, "other", "--sign", self.key("second")[0])
        own = self.folder / "set-1/signature.json"
        own.write_bytes((self.folder / "other" / SIGNATURE).read_bytes())
        both = self.signers(self.zoo) + self.signers(self.folder / "other")
        self.assertNotIn("already", self.succeed(*publish, "zoo").stderr)
        self.assertEqual((self.signers(self.zoo), self.entry()["signed_by"]), (both, both))
        self.assertIn("already", self.succeed(*publish, "zoo").stderr)
        self.succeed(*publish, "zoo", "--sign", self.key("third")[0])
        self.assertEqual(self.signers(self.zoo)[:2], both)
        self.assertEqual(len(self.signers(self.zoo)), 3)
        document = json.loads((self.zoo / SIGNATURE).read_text())
        document["signatures"][2]["signature"] = document["signatures"][0]["signature"]
        (self.zoo / SIGNATURE).write_text(json.dumps(document))
        self.assertIn("1 signature", self.succeed(*publish, "zoo").stderr)
        self.assertEqual((self.signers(self.zoo), self.entry()["signed_by"]), (both, both))
        for broken in ("{", "{}"):
            (self.zoo / SIGNATURE).write_text(broken)
            self.assertIn("count as absent", self.succeed(*publish, "zoo").stderr)
            self.assertEqual((self.signers(self.zoo), self.entry()["signed_by"]), (both[1:], both[1:]))
        own.unlink()
        (self.zoo / SIGNATURE).write_text("{")
        self.succeed(*publish, "zoo")
        self.assertFalse((self.zoo / SIGNATURE).exists())

    def test_keys_that_cannot_sign_are_told_before_anything_is_written(self):
        private, public = self.key()
        locked, rsa = self.folder / "locked.pem", self.folder / "rsa.pem"
        subprocess.run(["openssl", "pkey", "-in", private, "-aes256", "-passout", "pass:x", "-out", locked], check=True)
        subprocess.run(["openssl", "genpkey", "-algorithm", "rsa", "-out", rsa], check=True, capture_output=True)
        make_set(self.folder / "set", 1)
        for key in (public, locked, rsa, self.folder / "nothing", "/dev/null"):
            self.fail_with(1, str(key), "publish", "set", "--zoo", self.zoo, "--name", NAME, "--sign", key)
            self.assertEqual([path for path in read_folder(self.zoo) if not path.startswith(".")], [])


if __name__ == "__main__":
    unittest.main()
