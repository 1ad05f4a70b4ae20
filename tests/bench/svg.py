# SPDX-License-Identifier: MIT
"""SVG as text, for pictures that a page shows: readable on light and dark grounds, with a title and a description for those
who do not see them, and nothing that lies elsewhere. Standard library only."""
from html import escape

# Names of colours: on a light ground, on a dark one.
COLOURS = {"ground": ("#ffffff", "#0d1117"), "ink": ("#1f2328", "#e6edf3"), "quiet": ("#59636e", "#9198a1"),
           "grid": ("#d8dee4", "#30363d"), "blue": ("#0969da", "#58a6ff"), "orange": ("#bc4c00", "#f0883e"),
           "grey": ("#6e7781", "#8b949e")}


def style():
    rules = [[f".{name}{{fill:{colours[i]}}}.{name}-line{{stroke:{colours[i]}}}" for name, colours in COLOURS.items()] for i in (0, 1)]
    halos = [f".halo{{stroke:{colours}}}" for colours in COLOURS["ground"]]
    return (f"text{{font:13px system-ui,sans-serif}}.small{{font-size:12px}}.bold{{font-weight:600}}"
            f".halo{{stroke-width:4;paint-order:stroke}}\n{''.join(rules[0])}{halos[0]}\n"
            f"@media (prefers-color-scheme:dark){{{''.join(rules[1])}{halos[1]}}}")


def number(value):
    return f"{value:.1f}".removesuffix(".0")


def attributes(values):
    return "".join(f' {name.replace("_", "-").strip("-")}="{number(value) if isinstance(value, float) else value}"'
                   for name, value in values.items())


def shape(kind, colour, **values):
    return f'<{kind} class="{colour}"{attributes(values)}/>'


def text(x, y, words, colour="ink", **values):
    return f'<text class="{colour}"{attributes({"x": x, "y": y, **values})}>{escape(words)}</text>'


def picture(width, height, title, description, parts):
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        'aria-labelledby="title description">', f'<title id="title">{escape(title)}</title>',
        f'<desc id="description">{escape(description)}</desc>', f"<style>\n{style()}\n</style>",
        shape("rect", "ground", width=width, height=height), *parts, "</svg>", ""])
