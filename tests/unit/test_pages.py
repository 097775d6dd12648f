"""The pages: well-formed, linked, described, whole also where little was built, and escaped."""

import argparse
import json
import re
from html import escape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from bs4 import BeautifulSoup
from docutils.core import publish_parts
from PIL import Image

from sigprop.artifacts.errors import UserError
from sigprop.claims.ledger import all_claims
from sigprop.experiments.config import load, parts
from sigprop.experiments.index import Figure, figures
from sigprop.experiments.settings import PRESETS
from sigprop.pages import cost, graph, readme, site, text
from sigprop.pages.chapters import OTHER, by_chapter, chapters
from sigprop.pages.commands import add_commands
from sigprop.pages.papers import PAPERS, report_caption
from sigprop.pages.results import VERDICTS, Results, table_rules
from sigprop.pages.work import work

TABLES = load("smoke").experiments

ROOT = Path(__file__).resolve().parents[2]
FIGURES = figures()
IDS = [figure.id for figure in FIGURES]
VOID = {"meta", "link", "img", "input", "br", "path", "rect", "mspace"}
STRICT = {"halt_level": 2}
EVIL = '<script>alert("x")</script> & <b>'


class Nesting(HTMLParser):
    """Refuses a page whose tags are not closed in the order in which they were opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(page)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute twice: {attrs}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


class Page:
    """One page, read by BeautifulSoup."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.html = path.read_text(encoding="utf-8")
        self.all = BeautifulSoup(self.html, "html.parser").select
        self.text = " ".join(self.all("html")[0].get_text().split())
        self.ids = [str(tag["id"]) for tag in self.all("[id]")]
        self.links = [str(tag.get("href") or tag["src"]) for tag in self.all("[href], [src]")]


def write(path: Path, record: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record if isinstance(record, str) else json.dumps(record), encoding="utf-8")


def notebook(*cells: dict[str, Any]) -> dict[str, Any]:
    return {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def verdict(name: str, found: str, *numbers: dict[str, Any], **more: Any) -> dict[str, Any]:
    claim = all_claims()[name]
    record = {"id": name, "statement": claim.statement, "place": claim.place, "rule": claim.rule}
    record |= {"tables": list(claim.tables), "figures": list(claim.figures), "reason": ""}
    record |= {"smallest_preset": claim.smallest_preset, "verdict": found, "parts": list(numbers)}
    record |= {"statistic": claim.statistic, "why": claim.why}
    return record | more


def part(what: str, value: float | None, found: str = "reproduced") -> dict[str, Any]:
    low, high = (None, None) if value is None else (value - 0.1, value + 0.1)
    numbers = {"value": value, "low": low, "high": high, "n": 50}
    return {"what": what, "asked": "> 0.7", "verdict": found, **numbers}


def benchmark(folder: Path, rule: str, seconds: float, memory: float | str) -> None:
    write(
        folder / "benchmarks" / f"{rule}.tsv", f"s\th:m:s\tmax_rss\n{seconds}\t0:00:01\t{memory}\n"
    )


def make_results(root: Path, preset: str = "laptop", *, built: int | None = None) -> Results:
    """A made-up results folder in which the first `built` figures (default: all) are built."""
    folder = root / preset
    config = load(preset).experiments
    for figure in FIGURES[:built]:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (600, 400), "navy").save(folder / "figures" / f"{figure.id}.png")
        write(folder / "figures" / f"{figure.id}.pdf", "%PDF")
        for suffix in figure.also:
            write(folder / "figures" / f"{figure.id}.{suffix}", "k,v")
        provenance = {"git_commit": "a" * 40, "git_dirty": True, "versions": {"python": "3.11"}}
        write(folder / "figures" / f"{figure.id}.json", {"provenance": provenance})
        html = f"<table><tbody><tr><th>k</th><td>{figure.id}-printed</td></tr></tbody></table>"
        output = {"output_type": "execute_result", "data": {"text/html": html}}
        cell = {"cell_type": "code", "source": "", "outputs": [output]}
        write(folder / "notebooks" / f"{figure.id}.ipynb", notebook(cell))
        write(folder / "notebooks" / f"{figure.id}.html", "<p>notebook</p>")
        benchmark(folder, figure.id, 9.0, 400.0)
        for name in {p for table in figure.tables for p in parts(table)}:
            block = config[name.removesuffix("_theory")].model_dump(mode="json")
            record = {"settings": block, "rows": 1234567, "seed": 5, "device": "cpu"}
            write(folder / "data" / f"{name}.json", record | {"provenance": {"cpu_s": 20.0}})
        for rule in table_rules(figure.tables):
            benchmark(folder, rule, 30.0, 700.0)
    folder.mkdir(parents=True, exist_ok=True)
    return Results(folder, preset)


RULES = {"a": [], "b": ["a"], IDS[0]: ["a", "b"], "pages": [IDS[0]]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages over a folder in which everything was built, with verdicts of every kind."""
    results = make_results(tmp_path_factory.mktemp("whole"))
    names = [*all_claims()]
    records = [
        verdict(
            names[0], "not reproduced", part("first", 0.9), part("bad one", 0.1, "not reproduced")
        ),
        verdict(
            names[1],
            "inconclusive",
            part("a control", 0.3, "reported"),
            part("endless", None, "inconclusive"),
        ),
        *(verdict(name, "reproduced", part("only", 0.81234)) for name in names[2:]),
    ]
    write(results.root / "claims" / "claims.json", records)
    assert site.build(results, results.root, rules=RULES) == []
    return results.root


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages over an empty folder."""
    results = make_results(tmp_path_factory.mktemp("nothing"), built=0)
    assert site.build(results, results.root) == FIGURES
    return results.root


def pages_of(folder: Path) -> dict[str, Page]:
    paths = [folder / "index.html", *sorted((folder / "pages").glob("*.html"))]
    return {str(path.relative_to(folder)): Page(path) for path in paths}


@pytest.fixture(scope="module", params=["whole", "nothing"])
def pages(request: pytest.FixtureRequest) -> dict[str, Page]:
    return pages_of(request.getfixturevalue(request.param))


# ---------------------------------------------------------------- every page


def test_pages_are_there_and_well_formed(pages: dict[str, Page]) -> None:
    topics = ["claims", "cost", "rules"]
    assert set(pages) == {"index.html", *(f"pages/{name}.html" for name in [*IDS, *topics])}
    for name, page in pages.items():
        Nesting(page.html)
        assert page.html.startswith("<!doctype html>") and '<html lang="en">' in page.html
        assert len(set(page.ids)) == len(page.ids), f"{name}: an id twice"
        levels = [int(heading.name[1]) for heading in page.all("h1, h2, h3, h4")]
        assert levels.count(1) == 1 and levels[0] == 1, name
        assert all(b <= a + 1 for a, b in pairwise(levels)), f"{name}: a level left out"
        for picture in page.all("img"):
            assert len(picture["alt"]) > 10, f"{name}: {picture}"
            assert int(picture["width"]) > 0 and int(picture["height"]) > 0


def test_links_are_relative_and_alive(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        for link in page.links:
            if link == "data:,":
                continue
            parts_of = urlsplit(link)
            assert not parts_of.scheme and not parts_of.netloc, f"{name}: {link} leaves the folder"
            target = page.path.parent / unquote(parts_of.path) if parts_of.path else page.path
            assert target.is_file(), f"{name}: {link}"
            if parts_of.fragment.startswith("verdict="):
                assert parse_qs(parts_of.fragment)["verdict"][0] in VERDICTS
            elif parts_of.fragment:
                assert parts_of.fragment in Page(target).ids, f"{name}: {link}"


# ---------------------------------------------------------------- a figure's page


def test_a_figure_page_shows_all_of_it(whole: Path) -> None:
    for figure in FIGURES:
        page = Page(whole / "pages" / f"{figure.id}.html")
        assert f"snakemake {figure.id} --cores all -f" in page.text
        assert (
            f"{figure.id}-printed" in page.text and "commit aaaaaaaaaaaa with changes" in page.text
        )
        for end in ("figures/{}.png", "figures/{}.pdf", "notebooks/{}.html"):
            assert f"../{end.format(figure.id)}" in page.links
        assert all(f"../figures/{figure.id}.{suffix}" in page.links for suffix in figure.also)
        for words in (figure.paper_shows, figure.differs):
            assert words is None or words in page.text
        for name in figure.claim_ids:
            claim = all_claims()[name]
            assert name in page.ids and claim.statement in page.text and claim.rule in page.text
            assert claim.why in page.text and claim.statistic in page.text
        for table in figure.tables:
            assert table in page.text and "1 234 567 rows, seed 5" in page.text
        jobs = [*table_rules(figure.tables), figure.id]
        assert cost.seconds(9 + 30 * (len(jobs) - 1)) in page.text


def test_what_came_out_is_taken_from_the_verdicts_failures_first() -> None:
    checked = [part("a", 1.0), part("b", 2.0), part("c", 0.5, "not reproduced"), part("d", 3.0)]
    words = site.telling(checked)
    assert words.startswith("c: 0.5 (0.4 to 0.6), asked > 0.7; a: 1 ") and "2 more below" in words
    controls = [part("control", 9.0, "reported"), part("own", 1.0), part("other", 2.0, "reported")]
    assert site.telling(controls) == "own: 1 (0.9 to 1.1), asked > 0.7"
    assert site.telling([part("x", None)]) == "x: –, asked > 0.7" and site.telling([]) == ""


def test_sizes_are_told_a_user_s_own_too_and_once_for_tables_that_differ_alike(
    tmp_path: Path,
) -> None:
    results = make_results(tmp_path)
    path = results.root / "data" / "deep.json"
    record = json.loads(path.read_text())
    record["settings"]["n_networks"] = 77
    write(path, record)
    site.build(results, results.root)
    assert re.search(r"deep: .*n_networks 500 → 77", Page(results.root / "pages/fig09.html").text)
    alike = "reversal_depth_unscaled, reversal_depth_scaled: depth 2/10/20 → 2/10"
    assert alike in Page(results.root / "pages/fig05.html").text


def test_every_figure_of_a_paper_says_what_the_paper_shows() -> None:
    for figure in FIGURES:
        assert figure.paper in PAPERS
        assert figure.differs
        assert (figure.paper_shows is None) == (figure.paper == "extensions"), figure.id
    with pytest.raises(ValueError, match="paper_shows: missing"):
        Figure(**FIGURES[0].model_dump() | {"paper_shows": None})


# ---------------------------------------------------------------- what is not there


def test_a_folder_without_results_says_so(nothing: Path) -> None:
    index = Page(nothing / "index.html")
    assert "Not built in this folder" in index.text and not index.all("img")
    for figure in FIGURES:
        page = Page(nothing / "pages" / f"{figure.id}.html")
        assert "This figure is not built" in page.text and "not measured" in page.text
    assert "known to Snakemake only" in Page(nothing / "pages/rules.html").text
    assert "unknown" in Page(nothing / "pages/cost.html").text
    claims = Page(nothing / "pages/claims.html")
    assert claims.html.count('data-verdict="not run"') == len(all_claims())
    assert "snakemake claims makes them" in claims.text


def test_a_partial_folder_names_what_is_missing(tmp_path: Path) -> None:
    results = make_results(tmp_path, built=3)
    (results.root / "figures" / f"{IDS[1]}.pdf").unlink()
    absent = site.build(results, results.root)
    assert [figure.id for figure in absent] == [IDS[1], *IDS[3:]]
    index = Page(results.root / "index.html")
    assert len(index.all("img")) == 3
    page = Page(results.root / "pages" / f"{IDS[1]}.html")
    assert f"Not there: figures/{IDS[1]}.pdf" in page.text
    pages_of(results.root)  # still well-formed


def test_a_damaged_record_breaks_nothing(tmp_path: Path) -> None:
    results = make_results(tmp_path)
    for path in [*results.root.glob("*/*.json"), *results.root.glob("*/*.ipynb")]:
        path.write_text("{")
    for path in results.root.glob("benchmarks/*"):
        path.write_text("")
    assert site.build(results, results.root) == []
    test_links_are_relative_and_alive(pages_of(results.root))


# ---------------------------------------------------------------- escaping


def test_a_verdict_on_a_table_made_again_since_is_refused(tmp_path: Path) -> None:
    results = make_results(tmp_path)
    record = verdict("N12", "reproduced", part("only", 1.0), inputs={"moments": "old"})
    write(results.root / "claims/claims.json", [record])
    sidecar = results.root / "data/moments.json"
    for digest, expected in (("old", "reproduced"), ("new", "not run")):
        write(sidecar, {"sha256": digest})
        found = results.claims()["N12"]
        assert found["verdict"] == expected and bool(found["parts"]) == (digest == "old")
    assert found["reason"] == "out of date: make it again with `snakemake claims`"


def test_text_is_escaped_wherever_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"title": EVIL, "differs": EVIL, "paper_shows": EVIL, "claims": ["N01", "Z99"]}
    changed = FIGURES[0].model_copy(update=words)
    monkeypatch.setattr(site, "figures", lambda: [changed, *FIGURES[1:]])
    results = make_results(tmp_path)
    record = verdict("N01", "reproduced", part(EVIL, 1.0), statement=EVIL, rule=EVIL, place=EVIL)
    write(results.root / "claims/claims.json", [record])
    html = f"<table><tr><td>{escape(EVIL)}</td></tr></table>"
    cell = {"cell_type": "code", "source": "", "outputs": [{"data": {"text/html": html}}]}
    write(results.root / "notebooks" / f"{changed.id}.ipynb", notebook(cell))
    side = {"provenance": {"git_commit": EVIL, "versions": {EVIL: EVIL}}, "notebook": EVIL}
    write(results.root / "figures" / f"{changed.id}.json", side)
    site.build(results, results.root, rules={"a": [], EVIL: ["a"]})
    for where, page in pages_of(results.root).items():
        assert "<script>" not in page.html and "& <b>" not in page.html, where
    shown = [Page(results.root / "pages" / f"{name}.html") for name in (changed.id, "claims")]
    assert shown[0].text.count(EVIL) > 5 and shown[0].all("td")[0].text == EVIL
    for page in shown:  # the ledger lacks one of the claims
        assert "Z99" in page.ids and "its chapter is not part of this version" in page.text


# ---------------------------------------------------------------- how it is written


def test_the_same_results_give_the_same_bytes(whole: Path) -> None:
    def content() -> dict[str, bytes]:
        files = [whole / "index.html", *sorted((whole / "pages").rglob("*.*"))]
        return {str(path): path.read_bytes() for path in files}

    before = content()
    site.build(Results(whole, "laptop"), whole)  # the rules of the last build are kept
    assert content() == before


def test_a_build_that_fails_leaves_the_old_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = make_results(tmp_path, built=1)
    site.build(results, results.root)
    before = {path: path.stat().st_mtime_ns for path in results.root.rglob("*")}
    monkeypatch.setattr(site._Site, "cost_context", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        site.build(results, results.root)
    after = {path: path.stat().st_mtime_ns for path in results.root.rglob("*")}
    assert after.keys() == before.keys()
    assert all(after[path] == before[path] for path in before if path.is_file())


def test_elsewhere_the_pages_bring_what_they_link_to(tmp_path: Path) -> None:
    results = make_results(tmp_path / "results", built=2)
    site.build(results, tmp_path / "public")
    copied = pages_of(tmp_path / "public")
    results.root.rename(tmp_path / "gone")
    test_links_are_relative_and_alive(copied)


# ---------------------------------------------------------------- words


def test_words_between_stars_are_emphasized_and_products_are_not() -> None:
    html = str(text.inline("Marks: *stated* or *not known*; 2 * 3 * 4, `a*b*c`, $x*y*z$."))
    assert html.count("<em>") == 2 and "<em>not known</em>; 2 * 3 * 4, <code>a*b*c</code>" in html
    assert html.count("<math") == 1 and "<mi>x</mi>" in html


@pytest.mark.parametrize(
    ("names", "columns"), [("012", 1), ("02", 2), ("12", 2), ("ab", 2)], ids=str
)
def test_a_column_that_only_numbers_the_rows_is_left_out(
    tmp_path: Path, names: str, columns: int
) -> None:
    rows = "".join(f"<tr><th>{name}</th><td>7</td></tr>" for name in names)
    html = f"<table><thead><tr><th></th><th>k</th></tr></thead><tbody>{rows}</tbody></table>"
    cell = {"cell_type": "code", "source": "", "outputs": [{"data": {"text/html": html}}]}
    write(tmp_path / "n.ipynb", notebook(cell))
    ((head, body),) = text.printed_tables(tmp_path / "n.ipynb")
    assert [row.text for row in body] == [f"{name}7"[-columns:] for name in names]
    assert head[0].text == "k" and {len(row.find_all(True)) for row in head + body} == {columns}


@pytest.mark.parametrize("figure", FIGURES, ids=IDS)
def test_captions_read_well_on_pages_and_in_the_report(figure: Figure) -> None:
    paragraphs = text.caption(ROOT / figure.notebook)
    assert len(paragraphs[0]) > 60
    for paragraph in paragraphs:
        html = text.inline(paragraph)
        # No mark is left over, and no TeX that the renderer did not know.
        assert not re.search(r"[$\\`]", html) and html.count("<math") == paragraph.count("$") / 2
    # Level 2 is a warning: unbalanced markup, unknown references, TeX that docutils does not know.
    told = publish_parts(report_caption(figure), writer="html", settings_overrides=STRICT)["body"]
    assert figure.title in told and "problematic" not in told and "$" not in told


# ---------------------------------------------------------------- rules


def test_rules_go_left_to_right_whatever_their_order() -> None:
    needs = {"d": ["b", "c"], "c": ["a"], "b": ["a"], "a": [], "e": ["d", "a"], "lone": []}
    drawn, places = graph.layout(needs)
    assert all(places[s][0] < places[n][0] for n, sources in needs.items() for s in sources)
    assert places["e"][0] == places["lone"][0] == max(x for x, _ in places.values())
    assert graph.layout(dict(reversed(needs.items())))[1] == places
    assert {*drawn.edges} == {("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "e")}
    assert len({*places.values()}) == len(places) and min(min(places.values())) > 0


def test_needs_are_taken_from_declared_inputs_and_outputs() -> None:
    def rule(name: str, needs: list[str], makes: list[str]) -> Any:
        return SimpleNamespace(name=name, input=needs, output=makes)

    rules = [
        rule("a", ["source.py"], ["a.parquet", "a.json"]),
        rule("b", ["a.parquet", "a.json"], ["b.png"]),
        rule("all", ["b.png"], []),
        rule("unknown_target", [], ["{unknown}"]),
    ]
    assert graph.declared(rules) == {"a": [], "b": ["a"]}


# ---------------------------------------------------------------- cost


def predictor(*results: Results) -> cost.Predictor:
    return cost.Predictor(results, FIGURES)


def took(results: Results, table: str, cpu: float) -> None:
    """Write down that the simulation of a table took `cpu` seconds of processor time."""
    path = results.root / "data" / f"{table}.json"
    write(path, json.loads(path.read_text()) | {"provenance": {"cpu_s": cpu}})


def test_the_work_of_a_block_grows_with_its_preset() -> None:
    blocks = [load(preset).experiments for preset in PRESETS]
    for table in TABLES:
        settings = [block[table] for block in blocks]
        # A method may be left out at a preset; that is not work.
        sizes = [work(one) for one in settings if getattr(one, "n_seeds", 1)]
        for one in sizes:
            assert one is not None and one.operations > 0 and one.rows > 0, table
        for small, large in pairwise(sizes):
            assert small is not None and large is not None
            assert small.operations <= large.operations and small.rows <= large.rows, table


@pytest.mark.parametrize(
    ("table", "key", "power"),
    [
        ("correlation", "n_networks", 1),
        ("correlation", "depth", 1),
        ("translation_ours", "n_seeds", 1),
        ("translation_init", "n_seeds", 1),
        ("train_lhs", "n_seeds", 1),
        ("reversal_scaled", "n_seeds", 1),
        ("train_lhs", "ensemble", 0),
        ("translation_ours", "beam", 0),
    ],
)
def test_work_is_proportional_to_what_is_simulated(table: str, key: str, power: int) -> None:
    block = load("laptop").experiments[table]
    value = getattr(block, key)
    twice = [2 * one for one in value] if isinstance(value, list) else 2 * value
    double = work(block.model_copy(update={key: twice}))
    assert double.operations == pytest.approx(2**power * work(block).operations)


@pytest.mark.parametrize("table", [t for t in TABLES if t.startswith("train_")])
def test_configurations_are_counted_as_the_designs_make_them(table: str) -> None:
    from sigprop.experiments.context import chosen

    block = load("laptop").experiments[table]
    trained = sum(len(group.points) for group in block.groups(chosen(block)))
    assert work(block).rows == 5 * trained


@pytest.mark.parametrize("table", ["geometry", "geometry_phases", "softmax_rows"])
def test_work_of_grids_is_proportional_to_the_networks(table: str) -> None:
    record = load("laptop").experiments[table].model_dump()
    key = "n_batches" if table == "softmax_rows" else "n_networks"
    settings = type(load("laptop").experiments[table])
    size = work(settings.model_validate(record))
    for grid in record["grids"].values():
        grid[key] *= 2
    double = work(settings.model_validate(record))
    assert double.operations == pytest.approx(2 * size.operations) and double.rows == 2 * size.rows


def test_rows_are_counted_as_the_experiments_make_them() -> None:
    from sigprop.experiments.context import Context, chosen
    from sigprop.experiments.geometry import simulation as geometry
    from sigprop.experiments.phases import theory as phases
    from sigprop.experiments.softmax_rows import simulation as softmax_rows

    smoke = load("smoke").experiments
    for module, table in ((geometry, "geometry_exponents"), (softmax_rows, "softmax_rows")):
        block = smoke[table]
        made = module.run(block, Context(table, seed=0, design=chosen(block)))
        measured = made.groupby("quantity").size()
        assert work(block).rows * (1 if module is geometry else len(measured)) == len(made)
    made = phases.run(smoke["phases"], Context("phases", seed=0))
    # Values that do not exist have no row, so the count is an upper bound, and not far off.
    assert len(made) <= work(smoke["phases"]).rows <= 1.5 * len(made)


def test_a_measured_job_keeps_its_measurement(tmp_path: Path) -> None:
    found = predictor(make_results(tmp_path)).estimate("simulate_deep", load("laptop"))
    assert (found.low, found.high, found.memory_mib) == (30.0, 30.0, 700.0)
    assert found.basis == "measured, laptop"


def test_another_preset_is_scaled_above_the_start_up(tmp_path: Path) -> None:
    results = make_results(tmp_path)
    # One job that does next to nothing shows what starting takes: 4 s and 300 MiB.
    benchmark(results.root, "simulate_samplers", 5.0, 300.0)
    took(results, "samplers", 4.0)
    found = predictor(results).estimate("simulate_deep", load("paper"))
    here, there = (work(load(p).experiments["deep"]) for p in ("laptop", "paper"))
    cpu = 4 + (20 - 4) * there.operations / here.operations
    assert found.low == pytest.approx(cpu) and found.high == pytest.approx(cpu * 30 / 20)
    assert found.memory_mib == pytest.approx(300 + 400 * there.rows / here.rows)
    assert found.basis.startswith("scaled from laptop: ")


def test_a_method_that_was_left_out_is_scaled_from_another(tmp_path: Path) -> None:
    """The laptop preset leaves out ReZero and T-Fixup, and the paper preset trains them."""
    results = make_results(tmp_path)
    took(results, "samplers", 4.0)  # what starting takes
    found = predictor(results).estimate("simulate_translation_rezero", load("paper"))
    assert found.low is not None and found.low > 30
    assert re.search("times simulate_translation_[a-z_]+'s operations", found.basis)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_target_is_predicted_at_every_preset(tmp_path: Path, preset: str) -> None:
    measured, config = predictor(make_results(tmp_path)), load(preset)
    # What takes part in no figure's making is not in the made-up folder.
    drawn = {table for figure in FIGURES for table in figure.tables}
    absent = {"claims", "pages", *table_rules(t for t in TABLES if t not in drawn)}
    for name in [*IDS, "claims", "all", "pages", "cowsik2024"]:
        estimates = [measured.estimate(rule, config) for rule in cost.jobs_of(name, FIGURES)]
        known = [e for e in estimates if e.basis != "unknown: no measurement"]
        assert known and all(e.low is not None and 0 < e.low <= e.high for e in known), name
        assert {e.rule for e in estimates} - {e.rule for e in known} <= absent


def test_drawing_is_between_no_growth_and_growth_with_the_rows(tmp_path: Path) -> None:
    results = make_results(tmp_path)
    benchmark(results.root, "fig02", 2.0, 300.0)  # the least: what starting takes
    found = predictor(results).estimate("fig09", load("paper"))
    here, there = (work(load(p).experiments["deep"]) for p in ("laptop", "paper"))
    assert found.low == 9.0 and found.high == pytest.approx(2 + 7 * there.rows / here.rows)


def test_two_measured_presets_check_the_scaling_and_widen_the_range(tmp_path: Path) -> None:
    small, large = make_results(tmp_path, "smoke"), make_results(tmp_path, "laptop")
    took(small, "deep", 9.0)
    took(small, "width", 4.0)
    took(large, "width", 4.0)
    alone, both = predictor(large), predictor(small, large)
    assert "unchecked" in alone.reliability()
    worst = max(both.factors["propagation"])
    assert worst > 1 and "at worst" in both.reliability()
    one, two = (p.estimate("simulate_deep", load("paper")) for p in (alone, both))
    assert two.low == pytest.approx(one.low / worst) and two.high > one.high
    # A table of another experiment, which scaled worse, does not widen this one.
    took(small, "geometry", 1e5)
    worse = predictor(small, large)
    assert f"{max(worse.factors['geometry']):.2g} at worst" in worse.reliability()
    assert worse.estimate("simulate_deep", load("paper")).high == pytest.approx(two.high)


def test_what_was_not_measured_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = predictor(make_results(tmp_path / "a", built=0)).estimate("fig09", load("paper"))
    assert (empty.low, empty.basis) == (None, "unknown: no measurement")
    monkeypatch.setattr(cost, "work", lambda settings: None)
    measured = predictor(make_results(tmp_path / "b"))
    assert measured.estimate("simulate_deep", load("laptop")).low == 30.0
    assert "how its work grows" in measured.estimate("simulate_deep", load("paper")).basis


def test_the_jobs_of_a_target() -> None:
    assert cost.jobs_of("fig09", FIGURES) == ["simulate_deep", "theory_deep", "fig09"]
    assert cost.jobs_of("deep", FIGURES) == ["simulate_deep", "theory_deep"]
    assert cost.jobs_of("simulate_deep", FIGURES) == ["simulate_deep"]
    everything = cost.jobs_of("all", FIGURES)
    assert len(set(everything)) == len(everything) and {"claims", *IDS} <= {*everything}
    with pytest.raises(UserError, match="did you mean 'fig09'"):
        cost.jobs_of("figg09", FIGURES)


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (0.4, 0.4, "0.4 s"),
        (12.3, 12.4, "12 s"),
        (120, 540, "2 to 9 min"),
        (60, 7200 * 3, "60 s to 6 h"),
        (84 * 60, 92 * 60, "1.4 to 1.5 h"),
        (None, 1.0, "unknown"),
        (86400 * 3, 86400 * 30, "3 to 30 d"),
    ],
)
def test_spans_of_time(low: float | None, high: float, shown: str) -> None:
    assert cost.span(low, high) == shown


# ---------------------------------------------------------------- chapters and the front page


def test_every_claim_has_a_chapter_named_by_its_module() -> None:
    assert OTHER not in chapters().values()
    counts = by_chapter([verdict(name, "reproduced") for name in all_claims()])
    assert sum(c["reproduced"] for c in counts.values()) == len(all_claims())
    assert all(re.match(r"(Noci|Cowsik) et al\. 20\d\d: \w", name) for name in counts)


def test_the_front_page_is_not_stale() -> None:
    """Of the ledger's claims, and as the last `sigprop readme` wrote it."""
    shown = readme.read_record(ROOT)
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.insert(page, shown) == page, "run `sigprop readme`"
    assert set(shown["verdicts"]) == set(all_claims()), "run `snakemake claims`, `sigprop readme`"
    records = [{"id": name, "verdict": v} for name, v in shown["verdicts"].items()]
    assert readme.counted(records) == shown["chapters"]
    pictures = {name: readme.sha256(ROOT / f"docs/img/{name}.png") for name in shown["pictures"]}
    assert pictures == shown["pictures"] and len(pictures) >= 3


def test_refreshing_the_front_page(tmp_path: Path) -> None:
    results = make_results(tmp_path / "results")
    page = tmp_path / "README.md"
    write(page, f"![A](docs/img/fig09.png)\n{readme.BEGIN}\nold\n{readme.END}\nafter\n")
    (tmp_path / "docs/img").mkdir(parents=True)
    with pytest.raises(UserError, match="run `snakemake claims`"):
        readme.refresh(results, tmp_path)
    records = [verdict(name, "inconclusive") for name in all_claims()]
    write(results.root / "claims/claims.json", records)
    readme.refresh(results, tmp_path)
    shown = readme.read_record(tmp_path)
    assert set(shown["pictures"]) == {"fig09"} and set(shown["verdicts"]) == set(all_claims())
    new = page.read_text(encoding="utf-8")
    assert "old" not in new and new.startswith("![A]") and new.endswith("\nafter\n")
    assert readme.insert(new, shown) == new
    assert re.search(rf"\| all +\| +0 \| +0 \| +{len(records)} \| +0 \|", new)
    write(page, "![A](docs/img/fig09.png)")
    with pytest.raises(UserError, match="put them back"):
        readme.refresh(results, tmp_path)


@pytest.mark.parametrize(
    "words",
    ["pages --preset smok", "cost figg09", "readme --results nowhere", "pages --results nowhere"],
)
def test_commands_refuse_in_one_line(words: str) -> None:
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    given = parser.parse_args(words.split())
    with pytest.raises(UserError) as caught:
        given.command(given)
    assert "\n" not in str(caught.value)
