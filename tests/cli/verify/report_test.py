# SPDX-License-Identifier: MIT
"""verify --report in a real browser: every plot is drawn, nothing is fetched, the console stays silent, and the page fits a
phone. Skipped (77) without Chromium."""
import hashlib
import html
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path


BINARY, DATA = os.environ["OSCAR_BINARY"], Path(os.environ["OSCAR_TEST_DATA"])
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
GOLDEN = DATA / "golden/qwen3-2m"
PLOTS = 8
# Would end the element that holds the report, and run, if it were markup anywhere.
EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&amp;"

# Looks into the report from a page around it, at the widths of a phone and of a desk.
AROUND = """<body><iframe src="report.html" width="375" height="800"></iframe>
<iframe src="report.html" width="1170" height="800"></iframe><pre id="found"></pre><script>
onload = () => {
  const [page, desk] = [...document.querySelectorAll("iframe")].map((frame) => frame.contentWindow);
  const drawn = (canvas) => {
    const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const colours = new Set(new Uint32Array(data.buffer));
    return colours.size > 20;
  };
  document.getElementById("found").textContent = JSON.stringify({
    plots: [...page.document.querySelectorAll("canvas")].filter(drawn).length,
    width: page.document.documentElement.scrollWidth,
    cut_off: [...desk.document.querySelectorAll(".wide")].filter((table) => table.scrollWidth > table.clientWidth).length,
    fetched: page.performance.getEntriesByType("resource").length,
    rows: page.document.querySelectorAll("#methods tbody tr").length,
    verdict: page.document.getElementById("verdict").textContent,
    scripts: page.document.scripts.length,
    images: page.document.images.length,
    title: page.document.title,
    labels: [...page.document.querySelectorAll("canvas")].map((canvas) => canvas.getAttribute("aria-label").split(":")[0]),
    about: page.document.getElementById("about").innerText,
    stock: [...page.document.querySelectorAll("#stock tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent)),
    clips: page.document.querySelectorAll("#clips tbody tr").length,
    readers: [...page.document.querySelectorAll("#readers tbody tr")].map((row) => [...row.cells].slice(0, 2).map((cell) => cell.textContent)),
    raw: [...page.document.querySelectorAll("th, td:first-child")].filter((cell) => /[a-z0-9]_[a-z]/.test(cell.textContent) && !cell.closest("#methods, #stock, #descriptions")).map((cell) => cell.textContent),
  });
};
</script></body>"""


def browse(page, *options):
    """The DOM after scripts ran, and what the console said."""
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--enable-logging=stderr",
         "--virtual-time-budget=5000", f"--user-data-dir={page.parent}/profile", *options, page.as_uri()],
        capture_output=True, text=True, timeout=180)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def look_into(page):
    """What AROUND finds in a report, and what the console said."""
    around = page.parent / "around.html"
    around.write_text(AROUND)
    dom, console = browse(around, "--dump-dom")
    return json.loads(html.unescape(re.search(r'id="found">(.*?)</pre>', dom)[1])), console


def pixels(png):
    """Rows of (r, g, b) tuples of an 8-bit PNG."""
    width, height, _, colour = struct.unpack(">IIBB", png[16:26])
    size = {2: 3, 6: 4}[colour]
    body, at = b"", 8
    while at < len(png):
        length, = struct.unpack(">I", png[at:at + 4])
        if png[at + 4:at + 8] == b"IDAT":
            body += png[at + 8:at + 8 + length]
        at += length + 12
    data, above = zlib.decompress(body), bytearray(width * size)
    for y in range(height):
        start = y * (width * size + 1)
        kind, row = data[start], bytearray(data[start + 1:start + 1 + width * size])
        for i in range(len(row)):
            left, up, corner = (row[i - size] if i >= size else 0), above[i], (above[i - size] if i >= size else 0)
            guess = left + up - corner
            nearest = min((left, up, corner), key=lambda value: abs(guess - value))
            row[i] = (row[i] + (0, left, up, (left + up) // 2, nearest)[kind]) & 255
        above = row
        yield [tuple(row[i:i + 3]) for i in range(0, len(row), size)]


class ReportTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="oscar-report-")))
        cls.page = cls.folder / "report.html"
        run = lambda *words: subprocess.run([BINARY, *map(str, words)], check=True, capture_output=True, timeout=300)
        model = ("--model", DATA / "qwen3-2m", "--seq-len", 512)
        rotations = cls.folder / "<script>a & b"
        run("fit", "--recipe", "oscar", *model, "--tokens", GOLDEN / "tokens_calib.npy", "--max-tokens", 1024, "--out", rotations,
            "--format", "h5")
        manifest = json.loads((rotations / "manifest.json").read_text())
        manifest["model"]["id"] = EVIL
        for file in manifest["files"]:
            content = (rotations / file["path"]).read_bytes()
            file["sha256"], file["size"] = hashlib.sha256(content).hexdigest(), len(content)
        (rotations / "manifest.json").write_text(json.dumps(manifest))
        tokens = cls.folder / "<" / "script><b>.npy"
        tokens.parent.mkdir()
        shutil.copy(GOLDEN / "tokens_eval.npy", tokens)
        run("verify", rotations, *model, "--tokens", tokens, "--sequences", 2, "--compare", "naive,kivi_g128",
            "--needle", GOLDEN / "tokens_passkey.npy", "--needle-answers", GOLDEN / "passkey_answer_len.npy",
            "--max-needles", 2, "--report", cls.page)

    def test_every_plot_is_drawn_and_nothing_is_fetched(self):
        found, console = look_into(self.page)
        self.assertEqual(console, [])
        self.assertLessEqual(found.pop("width"), 375)
        about = found.pop("about")
        for words in (EVIL, "oscar verify '", "</script><b>.npy'", "1024 tokens, 2 sequences", "first 64 and last 256 tokens", "UTC",
                      "key: qqt_r_h_pbr", "<script>a & b"):
            self.assertIn(words, about)
        self.assertEqual(len(found.pop("labels")), PLOTS)
        self.assertIn(["sglang-v1", "rotations"], found.pop("readers"))
        self.assertEqual(found.pop("title"), f"oscar verify: {EVIL}, recipe oscar")
        self.assertEqual(found, {"plots": PLOTS, "fetched": 0, "cut_off": 0, "rows": 4, "verdict": "accepted",
                                 "scripts": 3, "images": 0, "clips": 4, "raw": [], "stock": []})

    def test_parts_show_who_reads_them_their_plan_and_their_spectra(self):
        folder = self.folder / "parts"
        folder.mkdir()
        run = lambda *words: subprocess.run([BINARY, *map(str, words)], check=True, capture_output=True, timeout=300)
        run("fit", "--model", DATA / "qwen3-2m", "--seq-len", 512, "--tokens", GOLDEN / "tokens_calib.npy", "--max-tokens", 1024,
            "--out", folder / "set")
        run("verify", folder / "set", "--no-record", "--report", folder / "report.html")
        found, console = look_into(folder / "report.html")
        self.assertEqual(console, [])
        self.assertLessEqual(found["width"], 375)
        # Without data there is nothing else to draw.
        self.assertEqual((found["plots"], found["raw"]), (6, []))
        self.assertEqual(found["labels"][:4], ["Bits of keys", "Bits of values", "rotations", "with means"])
        self.assertEqual(found["readers"], [["llamacpp", "rotations"], ["sglang", "with means"], ["sglang-v1", "rotations"],
                                            ["transformers", "coded"], ["vllm", "coded"]])

    def test_stock_caches_need_no_set(self):
        folder = self.folder / "stock"
        folder.mkdir()
        subprocess.run([BINARY, "verify", "--stock", "fp8,q4_0,nvfp4", "--model", DATA / "qwen3-2m", "--tokens", GOLDEN / "tokens_eval.npy",
                        "--seq-len", "512", "--sequences", "1", "--max-kld", "0.03", "--report", folder / "report.html"],
                       check=True, capture_output=True, timeout=300)
        found, console = look_into(folder / "report.html")
        self.assertEqual(console, [])
        self.assertLessEqual(found["width"], 375)
        self.assertEqual((found["plots"], found["raw"], found["cut_off"]), (2, [], 0))
        self.assertEqual(found["title"], "oscar verify: qwen3-2m")
        self.assertEqual([row[0] for row in found["stock"]], ["fp8", "q4_0", "nvfp4"])
        self.assertEqual([row[2] for row in found["stock"][:2]], ["nothing", "keys"])
        self.assertEqual(found["stock"][1][-1], "--cache-type-k f16 --cache-type-v q4_0")
        self.assertRegex(found["stock"][2][-1], r"^--kv-cache-dtype nvfp4 --kv-cache-dtype-skip-layers \d")

    def test_a_mistake_would_show_on_the_console(self):
        broken = self.folder / "broken.html"
        broken.write_text(self.page.read_text().replace('"use strict";', "throw new Error('planted');"))
        _, console = browse(broken, "--dump-dom")
        self.assertIn("planted", "".join(console))

    def test_the_screenshot_is_not_blank(self):
        shot = self.folder / "shot.png"
        browse(self.page, "--window-size=600,900", f"--screenshot={shot}")
        colours = {}
        for row in pixels(shot.read_bytes()):
            for colour in row:
                colours[colour] = colours.get(colour, 0) + 1
        share_of_white = colours[(255, 255, 255)] / sum(colours.values())
        self.assertGreater(len(colours), 100)
        self.assertTrue(0.5 < share_of_white < 0.98, share_of_white)

    def test_it_carries_its_library_with_the_licence(self):
        text = self.page.read_text()
        self.assertIn("Chart.js v", text)
        self.assertIn("Permission is hereby granted, free of charge", text)
        self.assertNotRegex(text, r"""(src|href)=["']?(https?:)?//""")


if __name__ == "__main__":
    if BROWSER is None:
        print("skipped: needs chromium")
        sys.exit(77)
    help_text = subprocess.run([BINARY, "verify", "nowhere", "--report", "x.html"], capture_output=True, text=True).stderr
    if "no plotting library" in help_text:
        print("skipped: this build has no plotting library")
        sys.exit(77)
    unittest.main()
