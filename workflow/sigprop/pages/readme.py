"""The front page's summary of verdicts, its pictures, and the committed record of both."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd

from sigprop.artifacts.errors import UserError
from sigprop.artifacts.files import sha256, write_json, write_text
from sigprop.pages.chapters import by_chapter
from sigprop.pages.results import VERDICTS, Results

BEGIN = "<!-- verdicts: written by `sigprop readme`, do not edit -->"
END = "<!-- end of verdicts -->"
RECORD = "docs/verdicts.json"
_PICTURE = re.compile(r"!\[[^\]]*\]\(docs/img/(\w+)\.png\)")


def record(results: Results, root: Path) -> dict[str, Any]:
    """What the front page shows, as plain JSON types: verdict by claim, counts, pictures."""
    claims = list(results.claims().values())
    text = (root / "README.md").read_text(encoding="utf-8")
    return {
        "preset": results.preset,
        "verdicts": {claim["id"]: claim["verdict"] for claim in claims},
        "chapters": counted(claims),
        "pictures": {
            name: sha256(root / "docs" / "img" / f"{name}.png") for name in _PICTURE.findall(text)
        },
    }


def counted(claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Chapters in order, each with its counts by verdict."""
    return [{"chapter": name} | counts for name, counts in by_chapter(claims).items()]


def block(shown: dict[str, Any]) -> str:
    """The Markdown between the markers."""
    table = pd.DataFrame(shown["chapters"]).set_index("chapter")[list(VERDICTS)]
    table.loc["all"] = table.sum()
    table.index.name = f"claims, {shown['preset']} preset"
    return f"{BEGIN}\n\n{table.to_markdown()}\n\n{END}"


def insert(text: str, shown: dict[str, Any]) -> str:
    """`text` with what stands between the markers replaced; UserError when they are not there."""
    before, found, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not found or not end:
        raise UserError(f"README.md: lacks the lines {BEGIN!r} and {END!r}; put them back")
    return before + block(shown) + after


def refresh(results: Results, root: Path) -> None:
    """Copy the pictures that the front page shows, then write the record and the summary.

    Raises:
        UserError: verdicts or a picture of this preset are not built, or markers are missing.
    """
    if not (results.root / "claims" / "claims.json").is_file():
        raise UserError(f"{results.root}/claims/claims.json: not there; run `snakemake claims`")
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    for name in _PICTURE.findall(text):
        picture = results.root / "figures" / f"{name}.png"
        if not picture.is_file():
            raise UserError(f"{picture}: not there; run `snakemake {name}`")
        shutil.copyfile(picture, root / "docs" / "img" / f"{name}.png")
    shown = record(results, root)
    new = insert(text, shown)
    write_json(root / RECORD, shown)
    write_text(readme, new)


def read_record(root: Path) -> dict[str, Any]:
    """The committed record."""
    shown: dict[str, Any] = json.loads((root / RECORD).read_text(encoding="utf-8"))
    return shown
