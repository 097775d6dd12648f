"""The site over one results folder: a gallery, a page per figure, claims, rules and cost."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image, ImageChops

from sigprop.artifacts.errors import UserError
from sigprop.artifacts.files import check_writable, write_text
from sigprop.artifacts.provenance import code_root
from sigprop.experiments.config import load, scaled_down, validate
from sigprop.experiments.index import Figure, figures
from sigprop.experiments.settings import PRESETS
from sigprop.pages import cost, text
from sigprop.pages.chapters import OTHER, by_chapter, chapters, count
from sigprop.pages.graph import layout
from sigprop.pages.papers import PAPERS
from sigprop.pages.results import NOT_RUN, VERDICTS, Results, table_of, table_rules
from sigprop.pages.work import METHOD

# A checked number may also be reported only: shown alongside the others, it decides nothing.
_MARKS = dict(zip((*VERDICTS, "reported"), "✓✗~–·", strict=True))
_THUMBNAIL_WIDTH = 480
_TELLING = 2  # checked numbers shown beside a claim


def build(
    results: Results, output: Path, *, rules: Mapping[str, list[str]] | None = None
) -> list[Figure]:
    """Write `output`/index.html and `output`/pages; returns the figures that are not built.

    The folder appears whole or not at all, the index last. When `output` is another folder than
    the results', what the pages link to is copied there.

    Args:
        rules: rule -> rules it needs; None takes those of the last build, if any.

    Raises:
        UserError: the folder cannot be written, or the index or the claims cannot be read.
    """
    site = _Site(results, output)
    rules = site.known_rules() if rules is None else rules
    with _replaced(output / "pages") as folder:
        site.write_pages(folder, rules)
    write_text(output / "index.html", site.render("index", here="index.html"))
    return [figure for figure in site.figures if results.missing(figure)]


@contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
    """A new folder that takes the place of `folder` when the block succeeds."""
    check_writable(folder)
    new, old = (folder.with_name(f".{folder.name}.{age}") for age in ("new", "old"))
    for stale in (new, old):
        shutil.rmtree(stale, ignore_errors=True)  # of a build that was killed
    new.mkdir()
    try:
        yield new
        if folder.exists():
            folder.replace(old)
        new.replace(folder)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)


class _Site:
    """What all pages share: the index, the verdicts, and where files are."""

    def __init__(self, results: Results, output: Path) -> None:
        self.results = results
        self.output = output
        self.figures = figures()
        self.config = load(results.preset)
        self.claims = results.claims()
        for figure in self.figures:
            for name in figure.claim_ids:
                self.claims.setdefault(name, NOT_RUN | {"id": name, "figures": [figure.id]})
        self.sizes: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {}
        self.environment = Environment(
            loader=PackageLoader("sigprop.pages"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters = (number, telling, flat, text.inline, cost.seconds, cost.mebibytes)
        self.environment.filters |= {function.__name__: function for function in filters}
        self.environment.globals |= {
            "results": results,
            "preset": results.preset,
            "presets": PRESETS,
            "figures": {figure.id: figure for figure in self.figures},
            "papers": PAPERS,
            "claims": self.claims,
            "verdicts": VERDICTS,
            "marks": _MARKS,
            "sizes": self.sizes,  # of pictures and of their thumbnails
            "link": self.link,
            "count": count,
            "claims_of": self.claims_of,
        }

    def known_rules(self) -> dict[str, list[str]]:
        """The rules as the last build knew them; empty when there was none."""
        try:
            return dict(json.loads((self.output / "pages/rules.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def render(self, name: str, here: str, **context: Any) -> str:
        root = "" if here == "index.html" else "../"
        template = self.environment.get_template(f"{name}.html.j2")
        return template.render(here=here, root=root, **context)

    def claims_of(self, figure: Figure) -> list[dict[str, Any]]:
        return [self.claims[name] for name in figure.claim_ids]

    def link(self, path: Path) -> str | None:
        """Address of a results file from a page; None when the file is not there.

        Outside the results folder the file is copied.
        """
        if not path.is_file():
            return None
        inside = path.relative_to(self.results.root)
        target = self.output / inside
        if target.resolve() != path.resolve():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        return f"../{inside.as_posix()}"

    def write_pages(self, folder: Path, rules: Mapping[str, list[str]]) -> None:
        (folder / "thumbs").mkdir()
        for figure in self.figures:
            picture = self.results.picture(figure, "png")
            if picture.is_file():
                thumb = folder / "thumbs" / f"{figure.id}.png"
                self.sizes[figure.id] = thumbnail(picture, thumb)
        pages = [("figure", figure.id, self.figure_context(figure)) for figure in self.figures]
        pages += [
            ("claims", "claims", self.claims_context()),
            ("rules", "rules", self.rules_context(rules)),
            ("cost", "cost", self.cost_context()),
        ]
        for template, name, context in pages:
            page = self.render(template, f"pages/{name}.html", **context)
            (folder / f"{name}.html").write_text(page, encoding="utf-8")
        (folder / "rules.json").write_text(json.dumps(rules, indent=1, sort_keys=True) + "\n")
        for name in ("site.css", "site.js"):
            shutil.copyfile(Path(__file__).parent / "templates" / name, folder / name)

    def figure_context(self, figure: Figure) -> dict[str, Any]:
        results = self.results
        rules = [*table_rules(figure.tables), figure.id]
        return {
            "figure": figure,
            "caption": text.caption(code_root() / figure.notebook),
            "printed": text.printed_tables(results.notebook(figure, "ipynb")),
            "scaled": self._scaled(figure),
            "records": {table: results.table_sidecar(table) for table in figure.tables},
            "settings": {table: self._settings(table) for table in figure.tables},
            "jobs": {rule: results.benchmark(rule) for rule in rules},
            "provenance": _provenance(results.figure_sidecar(figure)),
        }

    def _settings(self, table: str) -> dict[str, Any]:
        """Settings of a table as its record has them, else as the configuration has them."""
        block: dict[str, Any] | None = self.results.table_sidecar(table).get("settings")
        return self.config.experiments[table].model_dump(mode="json") if block is None else block

    def _scaled(self, figure: Figure) -> list[str]:
        """How the tables that were drawn are smaller than the paper preset's, setting by setting.

        From the settings in the tables' records, so that a user's own values are told as well.
        """
        config = self.config.model_dump(mode="json")
        config["experiments"] |= {table: self._settings(table) for table in figure.tables}
        try:
            told: dict[str, list[str]] = {}  # tables that differ in the same way share a line
            for table in figure.tables:
                told.setdefault(scaled_down(validate(config), [table]), []).append(table)
            return [f"{', '.join(tables)}: {words}" for words, tables in told.items() if words]
        except UserError:  # a record of an older version
            words = self.results.figure_sidecar(figure).get("parameters", {}).get("scaled_down")
            return [words] if words else []

    def claims_context(self) -> dict[str, Any]:
        named = chapters()
        chapter_of = {name: named.get(name, OTHER) for name in self.claims}
        return {"chapter_of": chapter_of, "chapters": by_chapter(self.claims.values())}

    def rules_context(self, rules: Mapping[str, list[str]]) -> dict[str, Any]:
        graph, places = layout(rules)
        kinds = {rule: rule.partition("_")[0] if table_of(rule) else "other" for rule in graph}
        kinds |= {figure.id: "figure" for figure in self.figures}
        return {"graph": graph, "places": places, "kinds": kinds}

    def cost_context(self) -> dict[str, Any]:
        """The presets at hand: this folder, and those next to it."""
        beside = [Results(self.results.root.parent / name, name) for name in PRESETS]
        others = [r for r in beside if r.root.resolve() != self.results.root.resolve()]
        predictor = cost.Predictor([self.results, *others], self.figures)
        configs = [load(preset) for preset in PRESETS]
        targets = {}
        for target in (*(figure.id for figure in self.figures), "claims", "all"):
            jobs = cost.jobs_of(target, self.figures)
            targets[target] = [
                cost.total(predictor.estimate(rule, config) for rule in jobs) for config in configs
            ]
        return {
            "targets": targets,
            "span": cost.span,
            "method": METHOD,
            "reliability": predictor.reliability(),
            "example": next(f.id for f in reversed(self.figures) if f.tables),
        }


def _provenance(record: dict[str, Any]) -> dict[str, Any] | None:
    """What made a figure, as (name, value) rows and in a few words; None without a record."""
    made = record.get("provenance")
    if not made:
        return None
    commit, changed = made.get("git_commit"), made.get("git_dirty")
    code = f"commit {commit}" if commit else "code outside git"
    versions = made.get("versions", {})
    rows = [
        ("code", code),
        ("changed since the commit", {True: "yes", False: "no"}.get(changed, "")),
        ("finished", made.get("finished", "")),
        ("machine", f"{made.get('platform', '')}, {made.get('cores', '?')} cores"),
        ("versions", ", ".join(f"{name} {v}" for name, v in sorted(versions.items()))),
        ("notebook", record.get("notebook", "")),
    ]
    rows += [
        (f"sha256 of {Path(path).name}", digest)
        for path, digest in sorted(record.get("figures", {}).items())
    ]
    for path, table in sorted(record.get("tables", {}).items()):
        words = [f"sha256 {table.get('sha256', '?')}"]
        if "seed" in table:
            words.append(f"seed {table['seed']}, {table.get('device', '?')}")
        words.append(f"made {table.get('provenance', {}).get('finished', '?')}")
        rows.append((Path(path).name, "; ".join(words)))
    # The first letters of a commit tell which it is.
    summary = f"{code[:19] if commit else code}{' with changes' if changed else ''}"
    summary += f", {made.get('finished', '')[:10]}, Python {versions.get('python')}"
    return {"summary": summary, "rows": rows}


def number(value: float | None) -> str:
    """Four significant digits; a dash where there is no number."""
    return "–" if value is None else f"{value:.4g}".replace("-", "−")


def telling(checked: list[dict[str, Any]]) -> str:
    """The numbers that tell most about a verdict: those that did not pass, then the first."""
    worst = ("not reproduced", "inconclusive", "not run", "reproduced")
    order = [part for part in checked if part["verdict"] != "reported"]
    order.sort(key=lambda part: worst.index(part["verdict"]))
    words = []
    for part in order[:_TELLING]:
        shown = number(part["value"])
        if part["low"] is not None and part["low"] != part["high"]:
            shown += f" ({number(part['low'])} to {number(part['high'])})"
        words.append(f"{part['what']}: {shown}, asked {part['asked']}")
    rest = len(order) - len(words)
    if rest:
        words.append(f"{rest} more below")
    return "; ".join(words)


def flat(block: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Settings as (name, value) pairs; blocks inside blocks become one line each."""
    rows = []
    for key, value in block.items():
        if value is None:
            continue
        if isinstance(value, Mapping) and any(isinstance(v, Mapping) for v in value.values()):
            rows += flat(value, f"{prefix}{key} ")
        else:
            rows.append((f"{prefix}{key}", _shown(value)))
    return rows


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{k} {_shown(v)}" for k, v in value.items() if v is not None)
    if isinstance(value, list):
        return ", ".join(
            f"({_shown(item)})" if isinstance(item, Mapping) else _shown(item) for item in value
        )
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def thumbnail(picture: Path, to: Path) -> tuple[tuple[int, int], tuple[int, int]]:
    """A small PNG of `picture` with few colours; returns the sizes of both in pixels."""
    with Image.open(picture) as image:
        white = Image.new("RGB", image.size, "white")
        shown = image.convert("RGBA")
        white.paste(shown, mask=shown.getchannel("A"))
    # Without the empty margin, which a small picture cannot spare.
    inked = ImageChops.invert(white).getbbox()
    white = white.crop(inked) if inked else white
    size = (_THUMBNAIL_WIDTH, max(1, round(white.height * _THUMBNAIL_WIDTH / white.width)))
    white.resize(size, Image.Resampling.LANCZOS).quantize(96).save(to, optimize=True)
    return image.size, size
