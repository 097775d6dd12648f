"""Words for a page: captions from notebooks, their little TeX, and the tables that they print."""

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

# fmt: off
_SYMBOLS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "Delta": "Δ", "epsilon": "ε", "eta": "η",
    "theta": "θ", "kappa": "κ", "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "pi": "π",
    "rho": "ρ", "sigma": "σ", "tau": "τ", "phi": "φ", "chi": "χ", "psi": "ψ", "omega": "ω",
    "partial": "∂", "infty": "∞", "to": "→", "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥",
    "approx": "≈", "sim": "∼", "neq": "≠", "pm": "±", "times": "×", "cdot": "·", "propto": "∝",
    "sum": "Σ", "prod": "Π", "langle": "⟨", "rangle": "⟩", "ell": "ℓ", "in": "∈", "mid": "|",
    "ldots": "…", "dots": "…", "left": "", "right": "", "log": "log", "ln": "ln", "exp": "exp",
    "min": "min", "max": "max", "cos": "cos", "arccos": "arccos", "var": "var",
}
# fmt: on
_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[{}^_]|[^\\{}^_]")
_WITH_ARGUMENT = ("sqrt", "frac", "mathrm", "text", "mathbf", "mathbb", "hat", "bar")


def math(tex: str) -> Markup:
    """The TeX that captions use as HTML: Greek, roots, fractions, sub- and superscripts."""
    # These take no space before what they belong to.
    tex = re.sub(r"\\(partial|langle|sum|prod) +", r"\\\1{}", tex)
    return _group(_TOKEN.findall(tex), 0)[0]


def _group(tokens: list[str], at: int) -> tuple[Markup, int]:
    """HTML up to the brace that closes the group at `at`, and where it ends."""
    done = Markup("")
    while at < len(tokens) and tokens[at] != "}":
        piece, at = _one(tokens, at)
        done += piece
    return done, at + 1


def _one(tokens: list[str], at: int) -> tuple[Markup, int]:
    if at >= len(tokens):
        return Markup(""), at
    token = tokens[at]
    if token == "{":
        return _group(tokens, at + 1)
    if token in "^_":
        inner, at = _one(tokens, at + 1)
        return Markup("<{0}>{1}</{0}>").format("sup" if token == "^" else "sub", inner), at
    name = token[1:]
    if token.startswith("\\") and name in _WITH_ARGUMENT:
        inner, at = _argument(tokens, at + 1)
        if name == "sqrt":
            simple = len(inner.striptags()) == 1
            return Markup("√{}" if simple else "√({})").format(inner), at
        if name == "frac":
            below, at = _argument(tokens, at)
            return Markup("{}/{}").format(inner, below), at
        return inner, at
    if token == r"\|":
        return Markup("‖"), at + 1
    if token in (r"\,", r"\;", r"\ ", r"\!"):
        return Markup(" "), at + 1
    if token.startswith("\\"):
        return escape(_SYMBOLS.get(name, token)), at + 1
    return escape({"-": "−", "'": "′"}.get(token, token)), at + 1


def _argument(tokens: list[str], at: int) -> tuple[Markup, int]:
    while at < len(tokens) and tokens[at] == " ":
        at += 1
    return _one(tokens, at)


def inline(text: str) -> Markup:
    """One paragraph of a notebook's Markdown as HTML: `$math$`, `code`, *words*, else escaped."""
    done = Markup("")
    for piece in re.split(r"(\$[^$]+\$|`[^`]+`|(?<!\w)\*\w[^*]*\*(?!\w))", text):
        if piece.startswith("$") and len(piece) > 1:
            done += Markup('<span class="math">{}</span>').format(math(piece[1:-1]))
        elif piece.startswith("`") and len(piece) > 1:
            done += Markup("<code>{}</code>").format(piece[1:-1])
        elif piece.startswith("*") and piece.endswith("*") and len(piece) > 2:
            done += Markup("<em>{}</em>").format(piece[1:-1])
        else:
            done += escape(piece)
    return done


def plain(text: str) -> str:
    """The same without any markup, for alternative texts and the Snakemake report."""
    html = str(inline(text))
    for tag, mark in (("sub", "_"), ("sup", "^")):
        html = re.sub(rf"<{tag}>(.)</{tag}>", rf"{mark}\1", html)
        html = re.sub(rf"<{tag}>(.*?)</{tag}>", rf"{mark}(\1)", html)
    return Markup(html).striptags()


def caption(notebook: str | Path) -> list[str]:
    """Paragraphs of a notebook's first Markdown cell below its heading; empty if absent."""
    try:
        cells = json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        return []
    first: dict[str, Any] = next((c for c in cells if c.get("cell_type") == "markdown"), {})
    blocks = re.split(r"\n\s*\n", "".join(first.get("source", "")))
    return [" ".join(block.split()) for block in blocks if block.strip() and block[0] != "#"]


@dataclass
class Cell:
    """One cell of a printed table."""

    text: str = ""
    header: bool = False
    rowspan: int = 1
    colspan: int = 1

    @property
    def numeric(self) -> bool:
        """Whether it holds a number, to be set flush right."""
        try:
            float(self.text)
        except ValueError:
            return False
        return True


@dataclass
class Printed:
    """A table that a notebook printed: heading rows and body rows."""

    head: list[list[Cell]] = field(default_factory=list)
    body: list[list[Cell]] = field(default_factory=list)


class _TableReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tables: list[Printed] = []
        self._rows: list[list[Cell]] = []
        self._cell: Cell | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "table":
            self.tables.append(Printed())
            self._rows = self.tables[-1].body
        elif not self.tables:
            return
        elif tag in ("thead", "tbody"):
            self._rows = self.tables[-1].head if tag == "thead" else self.tables[-1].body
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th") and self._rows:
            spans = (_span(given.get(name)) for name in ("rowspan", "colspan"))
            self._cell = Cell("", tag == "th", *spans)
            self._rows[-1].append(self._cell)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.text += data.strip()


def _span(value: str | None) -> int:
    return max(1, int(value)) if value and value.isdigit() else 1


def printed_tables(executed: str | Path) -> list[Printed]:
    """Tables among the outputs of an executed notebook, as text; empty when it cannot be read."""
    try:
        cells = json.loads(Path(executed).read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        return []
    reader = _TableReader()
    for cell in cells:
        for output in cell.get("outputs", []):
            reader.feed("".join(output.get("data", {}).get("text/html", "")))
    return [_without_numbering(table) for table in reader.tables if table.body]


def _without_numbering(table: Printed) -> Printed:
    """`table` without a first column that only counts its rows, 0, 1, 2, ..."""
    numbers = [str(i) for i in range(len(table.body))]
    counts = [row[0].text for row in table.body if row and row[0].header] == numbers
    if not counts or any(row[0].text or row[0].colspan > 1 for row in table.head if row):
        return table
    return Printed([row[1:] for row in table.head], [row[1:] for row in table.body])
