"""The site over one results folder: a gallery, a page per figure, claims, rules and cost."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from sigprop.artifacts.errors import UserError
from sigprop.artifacts.files import write_text
from sigprop.artifacts.provenance import code_root
from sigprop.experiments.config import load, scaled_down, validate
from sigprop.experiments.index import Figure, figures
from sigprop.experiments.settings import PRESETS
from sigprop.pages import cost, graph, text
from sigprop.pages.chapters import OTHER, by_chapter, chapters, count
from sigprop.pages.papers import PAPERS
from sigprop.pages.results import VERDICTS, Results, table_of, table_rules

# A checked number may also be reported only: shown beside the others, it decides nothing.
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
    write_text(output / "index.html", site.index())
    return [figure for figure in site.figures if results.missing(figure)]


@contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
    """A new folder that takes the place of `folder` when the block succeeds."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for stale in folder.parent.glob(f".{folder.name}.*"):
            shutil.rmtree(stale, ignore_errors=True)  # of a build that was killed
        new = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise UserError(
            f"{folder}: cannot write there ({error.strerror}); give a folder with write permission"
        ) from error
    try:
        yield new
        new.chmod(0o755)
        old = new.with_suffix(".old")
        if folder.exists():
            folder.replace(old)
        new.replace(folder)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)


class _Site:
    """What all pages share: the index, the verdicts, and where files lie."""

    def __init__(self, results: Results, output: Path) -> None:
        self.results = results
        self.output = output
        self.figures = figures()
        self.configs = {preset: load(preset) for preset in PRESETS}
        self.config = self.configs[results.preset]
        self.claims = results.claims()
        self.chapter = chapters()
        self.predictor = cost.Predictor(self._measured(), self.figures)
        self.thumbnails: dict[str, tuple[int, int]] = {}
        self.environment = Environment(
            loader=PackageLoader("sigprop.pages"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.environment.filters["number"] = number
        self.environment.filters["inline"] = text.inline
        self.environment.globals.update(
            preset=results.preset, marks=_MARKS, command="snakemake pages"
        )

    def _measured(self) -> list[Results]:
        """The presets at hand: this folder, and those beside it."""
        beside = [Results(self.results.root.parent / name, name) for name in PRESETS]
        return [
            self.results,
            *(other for other in beside if other.root.resolve() != self.results.root.resolve()),
        ]

    def known_rules(self) -> dict[str, list[str]]:
        """The rules as the last build knew them; empty when there was none."""
        try:
            text = (self.output / "pages" / "rules.json").read_text(encoding="utf-8")
            return dict(json.loads(text))
        except (OSError, ValueError):
            return {}

    def render(self, name: str, **context: Any) -> str:
        here = context.pop("here", f"pages/{name}.html")
        root = "" if here == "index.html" else "../"
        return self.environment.get_template(f"{name}.html.j2").render(
            here=here, root=root, **context
        )

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
        return os.path.join("..", inside).replace(os.sep, "/")  # noqa: PTH118  # an address

    def write_pages(self, folder: Path, rules: Mapping[str, list[str]]) -> None:
        (folder / "thumbs").mkdir()
        for figure in self.figures:
            picture = self.results.picture(figure, "png")
            if picture.is_file():
                self.thumbnails[figure.id] = thumbnail(
                    picture, folder / "thumbs" / f"{figure.id}.png"
                )
        for index, figure in enumerate(self.figures):
            around = [
                self.figures[i] if 0 <= i < len(self.figures) else None
                for i in (index - 1, index + 1)
            ]
            page = self.figure(figure, *around)
            (folder / f"{figure.id}.html").write_text(page, encoding="utf-8")
        pages = {
            "claims": self.claims_page(),
            "rules": self.rules_page(rules),
            "cost": self.cost_page(),
        }
        for name, page in pages.items():
            (folder / f"{name}.html").write_text(page, encoding="utf-8")
        (folder / "rules.json").write_text(json.dumps(rules, indent=1, sort_keys=True) + "\n")
        for name in ("site.css", "site.js"):
            shutil.copyfile(Path(__file__).parent / "templates" / name, folder / name)

    # ------------------------------------------------------------ gallery

    def index(self) -> str:
        papers = []
        for key, (name, about) in PAPERS.items():
            cards = [self._card(f) for f in self.figures if f.paper == key]
            papers.append({"key": key, "name": name, "about": about, "figures": cards})
        return self.render(
            "index",
            here="index.html",
            papers=papers,
            counts=count(self.claims),
            missing=[f for f in self.figures if self.results.missing(f)],
        )

    def _card(self, figure: Figure) -> dict[str, Any]:
        size = self.thumbnails.get(figure.id)
        counts = count(self._claims_of(figure))
        return {
            "id": figure.id,
            "item": figure.item,
            "title": figure.title,
            "thumbnail": f"thumbs/{figure.id}.png" if size else None,
            "thumbnail_size": size,
            "counts": {verdict: n for verdict, n in counts.items() if n},
        }

    def _claims_of(self, figure: Figure) -> list[dict[str, Any]]:
        """Records of a figure's claims; one the ledger does not have reads `not run`."""
        known = {record["id"]: record for record in self.claims}
        return [known.get(name) or _absent(name) for name in figure.claim_ids]

    # ------------------------------------------------------------ one figure

    def figure(self, figure: Figure, before: Figure | None, after: Figure | None) -> str:
        results = self.results
        picture = results.picture(figure, "png")
        name, about = PAPERS[figure.paper]
        caption = text.caption(code_root() / figure.notebook)
        jobs = [*table_rules(figure.tables), figure.id]
        claims = [claim | {"telling": telling(claim["parts"])} for claim in self._claims_of(figure)]
        scaled = self._scaled(figure)
        return self.render(
            "figure",
            here=f"pages/{figure.id}.html",
            figure=figure,
            paper={"key": figure.paper, "name": name, "about": about},
            picture=self.link(picture),
            picture_size=_size(picture),
            alt=f"{figure.item}: {figure.title}. " + " ".join(map(text.plain, caption[:1])),
            caption=[text.inline(paragraph) for paragraph in caption],
            pdf=self.link(results.picture(figure, "pdf")),
            also={suffix: self.link(results.picture(figure, suffix)) for suffix in figure.also},
            notebook_html=self.link(results.notebook(figure, "html")),
            notebook_ipynb=self.link(results.notebook(figure, "ipynb")),
            missing=results.missing(figure),
            claims=claims,
            no_claims=_no_claims(figure),
            printed=text.printed_tables(results.notebook(figure, "ipynb")),
            too_small=PRESETS.index(results.preset) < PRESETS.index(figure.smallest_preset),
            scaled=scaled,
            sizes_known=all(results.table_sidecar(table) for table in figure.tables),
            rebuild=f"snakemake {figure.id} --cores all -f{_preset_option(results.preset)}",
            parameters=[self._parameters(table) for table in figure.tables],
            jobs=[self._job(rule) for rule in jobs],
            jobs_total=self._total(jobs),
            provenance=self._provenance(figure),
            before=before,
            after=after,
        )

    def _job(self, rule: str) -> dict[str, str]:
        measured = self.results.benchmark(rule)
        if measured is None:
            return {"rule": rule, "seconds": "not measured", "memory": "not measured"}
        return {
            "rule": rule,
            "seconds": cost.seconds(measured.seconds),
            "memory": cost.mebibytes(measured.memory_mib),
        }

    def _total(self, rules: list[str]) -> dict[str, str]:
        seen = [m for m in map(self.results.benchmark, rules) if m is not None]
        if not seen:
            return {"seconds": "not measured", "memory": "not measured"}
        memory = max((m.memory_mib for m in seen if m.memory_mib is not None), default=None)
        missing = "" if len(seen) == len(rules) else f" + {len(rules) - len(seen)} not measured"
        return {
            "seconds": cost.seconds(sum(m.seconds for m in seen)) + missing,
            "memory": cost.mebibytes(memory),
        }

    def _parameters(self, table: str) -> dict[str, Any]:
        """Settings of a table as its record has them, else as the configuration has them."""
        record = self.results.table_sidecar(table)
        block = record.get("settings")
        if block is None:
            block = self.config.experiments[table].model_dump(mode="json")
        return {
            "name": table,
            "rows": f"{record['rows']:,}".replace(",", " ") if "rows" in record else None,
            "seed": record.get("seed"),
            "settings": flat(block),
            "sidecar": self.link(self.results.root / "data" / f"{table}.json"),
        }

    def _scaled(self, figure: Figure) -> list[str]:
        """How the tables that were drawn are smaller than the paper preset's, setting by setting.

        From the settings in the tables' records, so that a user's own values are told as well.
        """
        config = self.config.model_dump(mode="json")
        for table in figure.tables:
            block = self.results.table_sidecar(table).get("settings")
            if block is not None:
                config["experiments"][table] = block
        try:
            told: dict[str, list[str]] = {}  # tables that differ in the same way share a line
            for table in figure.tables:
                told.setdefault(scaled_down(validate(config), [table]), []).append(table)
            return [f"{', '.join(tables)}: {words}" for words, tables in told.items() if words]
        except UserError:  # a record of an older version
            words = self.results.figure_sidecar(figure).get("parameters", {}).get("scaled_down")
            return [words] if words else []

    def _provenance(self, figure: Figure) -> dict[str, Any] | None:
        record = self.results.figure_sidecar(figure)
        made = record.get("provenance")
        if not made:
            return None
        commit = made.get("git_commit")
        code = f"commit {commit[:12]}" if commit else "code outside git"
        if made.get("git_dirty"):
            code += " with changes"
        versions = made.get("versions", {})
        rows = [
            ("code", f"commit {commit}" if commit else code),
            ("changed since the commit", {True: "yes", False: "no"}.get(made.get("git_dirty"), "")),
            ("finished", made.get("finished", "")),
            ("machine", f"{made.get('platform', '')}, {made.get('cores', '?')} cores"),
            ("versions", ", ".join(f"{name} {v}" for name, v in sorted(versions.items()))),
            ("notebook", record.get("notebook", figure.notebook)),
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
        return {
            "summary": f"{code}, {made.get('finished', '')[:10]}, Python {versions.get('python')}",
            "rows": rows,
            "sidecar": self.link(self.results.picture(figure, "json")),
        }

    # ------------------------------------------------------------ claims, rules, cost

    def claims_page(self) -> str:
        order = {verdict: place for place, verdict in enumerate(VERDICTS)}
        known = {record["id"] for record in self.claims}
        absent = {
            name: figure
            for figure in self.figures
            for name in figure.claim_ids
            if name not in known
        }
        records = self.claims + [
            _absent(name) | {"figures": [figure.id]} for name, figure in absent.items()
        ]
        rows = [
            record
            | {
                "order": order[record["verdict"]],
                "chapter": self.chapter.get(record["id"], OTHER),
            }
            for record in records
        ]
        groups = by_chapter(records)
        return self.render(
            "claims",
            claims=rows,
            counts=count(records),
            chapters=[{"name": name, "counts": counts} for name, counts in groups.items()],
            pages={figure.id for figure in self.figures},
        )

    def rules_page(self, rules: Mapping[str, list[str]]) -> str:
        pages = {figure.id for figure in self.figures}
        needs = graph.reduced(rules)
        by = {name: [other for other in needs if name in needs[other]] for name in needs}
        return self.render(
            "rules",
            drawing=graph.draw(rules) if rules else None,
            rules=[{"name": n, "needs": needs[n], "needed_by": by[n]} for n in needs],
            kinds={name: _kind(name, pages) for name in needs},
            node_width=graph.NODE_WIDTH,
            node_height=graph.NODE_HEIGHT,
            pages=pages,
        )

    def cost_page(self) -> str:
        names = [*(f.id for f in self.figures), "claims", "all"]
        targets = []
        for name in names:
            jobs = cost.jobs_of(name, self.figures)
            cells = []
            for config in self.configs.values():
                whole = cost.total([self.predictor.estimate(rule, config) for rule in jobs])
                nothing = len(whole.unknown) == len(jobs)
                cells.append(
                    {
                        "time": "unknown" if nothing else cost.span(whole.low, whole.high),
                        "memory": cost.mebibytes(whole.memory_mib),
                        "unknown": 0 if nothing else len(whole.unknown),
                    }
                )
            targets.append({"name": name, "cells": cells})
        measured = [
            self._job(rule) | {"name": rule, "wall": seen.seconds, "mib": seen.memory_mib or 0.0}
            for rule, seen in self.results.benchmarks().items()
        ]
        with_tables = [figure.id for figure in self.figures if figure.tables]
        return self.render(
            "cost",
            targets=targets,
            presets=PRESETS,
            measured=measured,
            method=cost.METHOD,
            reliability=cost.reliability(self.predictor.check),
            example=with_tables[-1] if with_tables else "all",
        )


def _absent(name: str) -> dict[str, Any]:
    """The record of a claim that the index names and the ledger lacks."""
    return {
        "id": name,
        "statement": "This claim is named by the index of figures only.",
        "place": "",
        "statistic": "",
        "rule": "none yet",
        "why": "",
        "explanation": "",
        "seeds": [],
        "tables": [],
        "figures": [],
        "smallest_preset": "laptop",
        "verdict": "not run",
        "reason": "its chapter is not part of this version",
        "parts": [],
    }


def _no_claims(figure: Figure) -> str:
    if isinstance(figure.claims, str):
        return f"No claim is decided on this figure: {figure.claims.removeprefix('none: ')}."
    return "No claim is decided on this figure."


def _preset_option(preset: str) -> str:
    return "" if preset == "laptop" else f" --config preset={preset}"


def _kind(rule: str, pages: set[str]) -> str:
    if table_of(rule):
        return "simulation" if rule.startswith("simulate_") else "theory"
    return "figure" if rule in pages else "other"


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


def thumbnail(picture: Path, to: Path) -> tuple[int, int]:
    """A small PNG of `picture` with few colours; returns its size in pixels."""
    from PIL import Image, ImageChops

    with Image.open(picture) as image:
        white = Image.new("RGB", image.size, "white")
        shown = image.convert("RGBA")
        white.paste(shown, mask=shown.getchannel("A"))
    # Without the empty margin, which a small picture cannot spare.
    inked = ImageChops.invert(white).getbbox()
    white = white.crop(inked) if inked else white
    size = (_THUMBNAIL_WIDTH, max(1, round(white.height * _THUMBNAIL_WIDTH / white.width)))
    white.resize(size, Image.Resampling.LANCZOS).quantize(96).save(to, optimize=True)
    return size


def _size(picture: Path) -> tuple[int, int] | None:
    from PIL import Image

    if not picture.is_file():
        return None
    with Image.open(picture) as image:
        return image.size
