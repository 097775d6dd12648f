"""Words for a page: Markdown with mathematics as HTML or reStructuredText, and printed tables."""

import json
from pathlib import Path
from typing import Any

import mistune
from markupsafe import Markup
from mistune.renderers.rst import RSTRenderer


class _Html(mistune.HTMLRenderer):
    def inline_math(self, tex: str) -> str:
        from latex2mathml.converter import convert

        return convert(tex)


class _Rst(RSTRenderer):
    def inline_math(self, token: dict[str, Any], state: Any) -> str:
        return f":math:`{token['raw']}`"


_RENDERER = _Html()
_HTML = mistune.create_markdown(renderer=_RENDERER, plugins=["math"])
_RST = mistune.create_markdown(renderer=_Rst(), plugins=["math"])


def inline(markdown: str) -> Markup:
    """One paragraph of Markdown as HTML, its mathematics as MathML; HTML inside it is escaped."""
    tokens = _HTML.inline(markdown, {})
    return Markup(_RENDERER.render_tokens(tokens, _HTML.block.state_cls()))


def rst(markdown: str) -> str:
    """Markdown as reStructuredText, for the captions of Snakemake's report."""
    return str(_RST(markdown)).strip()


def _cells(notebook: str | Path) -> list[dict[str, Any]]:
    try:
        cells: list[dict[str, Any]] = json.loads(Path(notebook).read_text("utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        return []
    return cells


def caption(notebook: str | Path) -> list[str]:
    """Paragraphs of a notebook's first Markdown cell below its heading; empty if absent."""
    markdown = (c["source"] for c in _cells(notebook) if c["cell_type"] == "markdown")
    blocks = "".join(next(markdown, "")).split("\n\n")
    return [" ".join(block.split()) for block in blocks if block.strip() and block[0] != "#"]


def printed_tables(executed: str | Path) -> list[tuple[list[Any], list[Any]]]:
    """Heading rows and body rows of the tables in an executed notebook, parsed by BeautifulSoup.

    A first column that only counts the rows, 0, 1, 2, ..., is left out.
    """
    from bs4 import BeautifulSoup

    outputs = [output for cell in _cells(executed) for output in cell.get("outputs", [])]
    html = "".join("".join(output.get("data", {}).get("text/html", "")) for output in outputs)
    tables: list[tuple[list[Any], list[Any]]] = []
    for table in BeautifulSoup(html, "html.parser").find_all("table"):
        head = table.select("thead tr:has(th, td)")
        body = table.select("tr:has(th, td):not(thead tr)")
        first: list[Any] = [row.find(["th", "td"]) for row in head + body]
        words = [cell.get_text(strip=True) for cell in first]
        single = all(cell.name == "th" and cell.get("colspan", "1") == "1" for cell in first)
        if single and words == [""] * len(head) + [str(i) for i in range(len(body))]:
            for cell in first:
                cell.decompose()
        if body:
            tables.append((head, body))
    return tables
