# SPDX-License-Identifier: MIT
"""What the tests of streaming share: the sample model, and small fits of it."""
import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "zoo"))
from peers import FileServer  # noqa: E402
from support import ZooTest, read_folder  # noqa: E402

PROJECT = Path(os.environ["OSCAR_PROJECT"])
DATA = PROJECT / "tests/data"
MODEL = DATA / "qwen3-2m"
TOKENS = ["--tokens", DATA / "golden/qwen3-2m/tokens_calib.npy", "--sequences", "2", "--seq-len", "500"]  # the coded part needs 481 at least


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

    def serving(self, folder, **options):
        files = {f"{Path(folder).name}/{path}": content for path, content in read_folder(folder).items()}
        return FileServer(files, **options)

    def bytes_asked(self, server, part):
        """Of files with `part` in their paths."""
        ranges = server.asked(part)
        self.assertNotIn(None, ranges)
        return sum(end - begin for begin, end in ranges)

    def copy(self, source, name):
        shutil.copytree(source, self.folder / name)
        return self.folder / name
