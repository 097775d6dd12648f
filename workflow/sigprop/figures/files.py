"""Tables beside a figure, as files."""

from pathlib import Path

import pandas as pd

from sigprop.artifacts.files import write_text


def write(table: pd.DataFrame, output: str | Path) -> None:
    """`output`.csv, .md and .tex, each written atomically."""
    head, rows = list(table.columns), table.astype(str).values.tolist()
    write_text(f"{output}.csv", table.to_csv(index=False, lineterminator="\n"))
    lines = [head, ["---"] * len(head), *rows]
    bars = ("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)
    write_text(f"{output}.md", "\n".join(bars) + "\n")
    cells = [" & ".join(map(_tex, line)) + r" \\" for line in (head, *rows)]
    parts = [rf"\begin{{tabular}}{{{'l' * len(head)}}}", r"\hline", cells[0], r"\hline"]
    write_text(f"{output}.tex", "\n".join([*parts, *cells[1:], r"\hline", r"\end{tabular}"]) + "\n")


_TEX = {"\\": r"\textbackslash{}"} | {character: f"\\{character}" for character in "&%#_${}"}


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in text)
