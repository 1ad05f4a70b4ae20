# SPDX-License-Identifier: MIT
"""The checker finds what it is there to find: each case breaks one rule in a small tree and expects that one finding."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECKER = Path(__file__).with_name("check_layers.py")
SPDX = "// SPDX-License-Identifier: MIT\n"
GOOD = {
    "lib/base/errors.hpp": SPDX + "#include <string>\n",
    "lib/base/version.hpp.in": SPDX,
    "lib/fit/fit.cpp": SPDX + '#include "base/errors.hpp"\n#include "kernels/backend.hpp"\n#include "base/version.hpp"\n',
    "lib/fit/fit.hpp": SPDX,
    "lib/verify/report.cpp": SPDX + '#include "base/errors.hpp"\n',
    "lib/model/torch/decoder.cpp": SPDX + "#include <torch/torch.h>\n",
    "kernels/backend.hpp": SPDX + '#include "base/errors.hpp"\n',
    "kernels/cpu/eigh.cpp": SPDX + "#include <Eigen/Core>\n" + '#include "kernels/backend.hpp"\n',
    "tests/unit/fit/fit_test.cpp": SPDX + '#include "fit/fit.hpp"\n',
}


def check(changes):
    """Exit code and output of the checker on the good tree with `changes` on top."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {**GOOD, **changes}.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        done = subprocess.run([sys.executable, "-B", CHECKER, folder], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


class CheckLayers(unittest.TestCase):
    def finds(self, name, text, finding):
        code, output = check({name: text})
        self.assertEqual(code, 1, output)
        self.assertEqual(len(output.splitlines()), 1, output)
        self.assertIn(name, output)
        self.assertIn(finding, output)

    def test_a_good_tree_passes(self):
        code, output = check({})
        self.assertEqual((code, output), (0, f"{len(GOOD)} files keep the rules\n"))

    def test_what_a_folder_may_not_see_and_what_a_file_may_not_be(self):
        for name, text, finding in (
                ("lib/base/x.hpp", '#include "fit/fit.hpp"\n', "lib/fit, which lib/base may not see"),
                ("lib/verify/x.cpp", '  #  include "fit/fit.hpp"\n', "lib/fit, which lib/verify may not see"),
                ("lib/verify/x.cpp", '#include "../fit/fit.hpp"\n', "lib/fit, which lib/verify may not see"),
                ("kernels/cpu/x.cpp", '#include "fit/fit.hpp"\n', "lib/fit, which kernels/cpu may not see"),
                ("lib/misc/x.cpp", "", "rules.py does not know"),
                ("lib/fit/x.cpp", "\n" * 500, "501 lines, more than 500"),
                ("tests/unit/fit/x.cpp", "\n" * 600, "601 lines, more than 600")):
            self.finds(name, SPDX + text, finding)
        self.finds("lib/fit/x.cpp", "int x;\n", "no SPDX")

    def test_two_classes_need_two_names(self):
        one = {"lib/base/one.hpp": SPDX + "class ConfigFile {\n};\nclass Other;\n"}
        code, output = check({**one, "lib/fit/two.hpp": SPDX + "class ConfigFile : public Other {\n};\n"})
        self.assertEqual((code, output.count("\n")), (1, 1), output)
        self.assertIn("lib/fit/two.hpp defines ConfigFile, as lib/base/one.hpp does", output)
        self.assertEqual(check({**one, "lib/fit/two.hpp": SPDX + "class ConfigFile;\n"})[0], 0)

    def test_the_method_may_not_see_a_backend(self):
        changes = {"kernels/cpu/gram.hpp": SPDX, "lib/fit/x.cpp": SPDX + '#include "kernels/cpu/gram.hpp"\n'}
        code, output = check(changes)
        self.assertEqual(code, 1)
        self.assertIn("kernels/cpu, which lib/fit may not see", output)

    def test_third_party_headers_stay_with_their_wrappers(self):
        for header in ("torch/torch.h", "ATen/ATen.h", "hdf5.h", "curl/curl.h", "openssl/evp.h", "CLI/CLI.hpp", "Eigen/Dense",
                       "pcre2.h", "utf8proc.h", "sentencepiece_processor.h",
                       "valijson/schema.hpp", "cuda_runtime.h"):
            self.finds("lib/fit/x.cpp", SPDX + f"#include <{header}>\n", f"<{header}>, which only")

    def test_the_house_may_not_see_its_tests(self):
        changes = {"tests/support/support.hpp": SPDX, "lib/fit/x.cpp": SPDX + '#include "tests/support/support.hpp"\n'}
        self.assertIn("is no part of the house", check(changes)[1])

    def test_an_empty_tree_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, "-B", CHECKER, folder], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no source files", done.stderr)


if __name__ == "__main__":
    unittest.main()
