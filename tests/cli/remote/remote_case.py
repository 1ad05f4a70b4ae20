# SPDX-License-Identifier: MIT
"""What the tests of streaming share: the sample model, a small dump of it, an S3 server that checks signatures, and web
servers."""
import importlib
import json
import logging
import os
import shutil
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "zoo"))
from support import ZooTest, read_folder  # noqa: E402

PROJECT = Path(os.environ["OSCAR_PROJECT"])
DATA = PROJECT / "tests/data"
MODEL = DATA / "qwen3-2m"
TOKENS = ["--tokens", DATA / "golden/qwen3-2m/tokens_calib.npy", "--sequences", "3", "--seq-len", "300"]


def main():
    program = unittest.main(module="__main__", exit=False)
    if Bucket.only:
        Bucket.only.server.stop()
    for _, why in program.result.skipped:
        print("skipped:", why)
    sys.exit(1 if not program.result.wasSuccessful() else 77 if program.result.skipped else 0)


class Bucket:
    """moto's S3 server with one bucket; `environment` has a key that may do everything there."""
    NAME = "calibration"
    only = None  # moto keeps what it has for the process's life

    def __init__(self):
        os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "4"  # then every request needs a valid signature
        try:
            moto, self.boto3 = importlib.import_module("moto.server"), importlib.import_module("boto3")
        except ImportError as error:
            raise unittest.SkipTest(f"{error}; run scripts/setup.sh --tests") from error
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.server.start()
        host, port = self.server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        iam = self.client("iam", "x", "x")
        iam.create_user(UserName="u")
        iam.put_user_policy(UserName="u", PolicyName="p", PolicyDocument=json.dumps(
            {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}))
        key = iam.create_access_key(UserName="u")["AccessKey"]
        self.client("s3", "x", "x").create_bucket(Bucket=self.NAME)
        self.s3 = self.client("s3", key["AccessKeyId"], key["SecretAccessKey"])
        self.environment = {"AWS_ENDPOINT_URL_S3": self.url, "AWS_REGION": "us-east-1",
                            "AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}

    def client(self, service, key, secret):
        return self.boto3.client(service, endpoint_url=self.url, region_name="us-east-1", aws_access_key_id=key,
                                 aws_secret_access_key=secret)

    def empty(self):
        for found in self.s3.list_objects_v2(Bucket=self.NAME).get("Contents", []):
            self.s3.delete_object(Bucket=self.NAME, Key=found["Key"])

    def upload(self, folder, prefix):
        """Returns the address of the copy."""
        for path, content in read_folder(folder).items():
            self.s3.put_object(Bucket=self.NAME, Key=f"{prefix}/{path}", Body=content)
        return f"s3://{self.NAME}/{prefix}"


class RemoteCase(ZooTest):
    def bucket(self):
        bucket = Bucket.only = Bucket.only or Bucket()
        bucket.empty()
        self.environment.update(bucket.environment)
        return bucket

    def fail_with(self, fragments, *arguments, code=1, **more):
        done = self.run_oscar(*arguments, **more)
        self.assertEqual(done.returncode, code, done.stderr)
        for fragment in fragments:
            self.assertIn(fragment, done.stderr)
        self.assertEqual([path.name for path in self.folder.iterdir() if path.name.startswith(("set", ".set"))], [])
        return done

    def dump(self, name="dump", *arguments):
        """A dump of the sample model with several chunks a layer."""
        self.succeed("dump", "-q", "--model", MODEL, *TOKENS, "--out", name, *arguments)
        return self.folder / name

    def fit(self, out, *arguments, **more):
        """The files of the set that is fitted."""
        self.succeed("fit", "-q", "--out", out, *arguments, **more)
        return read_folder(self.folder / out)

    def serving(self, folder):
        ranges = importlib.import_module("peers").RangeServer
        return ranges({f"{Path(folder).name}/{path}": content for path, content in read_folder(folder).items()})

    def bytes_asked(self, server, part):
        """Of files with `part` in their paths."""
        ranges = [asked for path, asked in server.seen if part in path]
        self.assertNotIn(None, ranges)
        return sum(end - begin for begin, end in ranges)

    def copy(self, source, name):
        shutil.copytree(source, self.folder / name)
        return self.folder / name
