"""What our web pages share: one self-contained file, in the reader's light or dark setting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from enplace.pictures.palette import DARK, LIGHT, device_class, picture_style

_STYLE = """
body{margin:0;padding:24px;background:var(--bg);color:var(--text);
font:13px/1.5 Inter,system-ui,sans-serif}
main{max-width:1200px;margin:auto}
h1{font-size:20px;font-weight:600;margin:0 0 4px}
h2{font-size:13px;font-weight:600;margin:0 0 8px}
p{margin:0 0 16px;color:var(--dim)}
section{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:12px;
margin-bottom:10px;overflow-x:auto}
.facts{display:flex;flex-wrap:wrap;gap:10px 40px}
.facts b{display:block;font-size:20px;font-weight:600}
.facts span,.dim{color:var(--dim)}
.bad{color:var(--bad)}.good{color:var(--good)}
table{border-collapse:collapse;width:100%}
th{font-weight:500;color:var(--dim);text-align:right}
td{text-align:right;border-top:1px solid var(--line);padding:4px 0 4px 16px}
th:first-child,td:first-child{text-align:left;padding-left:0}
table.settings td{text-align:left;overflow-wrap:anywhere}
pre{background:var(--lane);border-radius:6px;padding:8px 12px;margin:4px 0 12px;overflow-x:auto;
font:12px/1.5 ui-monospace,monospace}
svg{display:block;width:100%;height:auto}
.small{max-width:600px}
svg.chip{display:inline;width:10px;height:10px;margin-right:6px}
@page{size:A4;margin:12mm}
@media print{
body{padding:0;font-size:10px;background:none;-webkit-print-color-adjust:exact;print-color-adjust:exact}
section{break-inside:avoid;overflow:visible;margin-bottom:8px}
h2{break-after:avoid}
svg:not(.chip){max-height:245mm}
pre{white-space:pre-wrap}
tr{break-inside:avoid}
}
"""


def page(title: str, parts: Iterable[str]) -> str:
    """Make a page of its parts; it prints well and loads nothing."""
    head = [
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(title)}</title>",
        f"<style>{_variables()}{_STYLE}{picture_style()}</style></head>\n<body><main>",
    ]
    return "\n".join([*head, *parts, "</main></body></html>"]) + "\n"


def section(title: str, body: str) -> str:
    """Make a panel with a heading."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def fact(value: str, meaning: str) -> str:
    """Show a figure and what it is."""
    return f"<div><b>{escape(value)}</b><span>{escape(meaning)}</span></div>"


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Make a table of a fact in each row: what it is, and its value."""
    cells = "".join(
        f"<tr><td>{escape(key)}</td><td>{escape(value)}</td></tr>" for key, value in rows
    )
    return f'<table class="settings">{cells}</table>'


def chip(colour: int) -> str:
    """Draw a small square in a device's colour."""
    return (
        f'<svg class="chip" viewBox="0 0 10 10"><rect class="{device_class(colour)}" '
        f'width="10" height="10" rx="2"/></svg>'
    )


def _variables() -> str:
    light, dark = (
        "".join(f"--{name}:{colour};" for name, colour in tokens.items())
        for tokens in (LIGHT, DARK)
    )
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
