# SPDX-License-Identifier: MIT
"""Links between the pages lead somewhere: to a file or folder of the project, and to a heading that the page has.
check_links.py [ROOT]; exit status 1 and one line per link that does not."""
import re
import sys
from pathlib import Path

LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGES = ("*.md", "apps/**/*.md", "kernels/**/*.md", "lib/**/*.md", "schemas/**/*.md", "scripts/**/*.md", "tests/**/*.md", "zoo/**/*.md")


def anchors(page):
    """Of headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists():
            yield f"{link}: there is no such file"
        elif anchor and anchor not in anchors(target):
            yield f"{link}: the page has no such heading"


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]).resolve()
    pages = [page for pattern in PAGES for page in sorted(root.glob(pattern))]
    findings = [f"{page.relative_to(root)}: {problem}" for page in pages for problem in broken_links(page)]
    print("\n".join(findings) if findings else f"links of {len(pages)} pages lead somewhere")
    sys.exit(1 if findings or len(pages) < 5 else 0)


if __name__ == "__main__":
    main()
