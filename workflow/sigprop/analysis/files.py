"""Tables next to a figure, as files."""

from pathlib import Path

import pandas as pd

from sigprop.artifacts.files import write_text


def write(table: pd.DataFrame, output: str | Path) -> None:
    """`output`.csv, .md and .tex, each written atomically; the last needs booktabs."""
    write_text(f"{output}.csv", table.to_csv(index=False, lineterminator="\n"))
    write_text(f"{output}.md", markdown(table) + "\n")
    write_text(f"{output}.tex", table.astype(str).to_latex(index=False, escape=True))


def markdown(table: pd.DataFrame) -> str:
    """`table` in Markdown, its numbers as `str` writes them."""
    escaped = table.astype(str).map(lambda cell: cell.replace("|", r"\|"))
    return str(escaped.to_markdown(index=False, disable_numparse=True))
