"""The pages: links resolve, python blocks run, commands parse, the figure index is the index."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import pytest
import yaml
from snakemake.cli import get_argument_parser

import sigprop
from sigprop.claims.ledger import all_claims
from sigprop.cli import main as cli
from sigprop.experiments.config import load, merge, parts, read_yaml, validate
from sigprop.experiments.index import Figure, figures
from sigprop.experiments.settings import PRESETS, parse

TABLES = load("smoke").experiments

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *("README.md", "config/README.md", "envs/README.md", "results/README.md"),
    *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")),
]
SLOW = {"docs/claims.md", "docs/experiments.md", "docs/figures.md"}  # they simulate

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text: str, *languages: str) -> list[str]:
    """Fenced blocks in one of the languages, without their indentation."""
    return [
        "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True))
        for indent, language, body in _FENCE.findall(text)
        if language in languages
    ]


def prose(text: str) -> str:
    return _FENCE.sub("", text)


def established(text: str) -> str:
    """The page up to its sections on adding something, whose names are made up."""
    return re.split(r"^## Add ", text, maxsplit=1, flags=re.MULTILINE)[0]


def commands(text: str, program: str) -> Iterator[list[str]]:
    """Words after `program` in every command line that the text shows.

    Inline code counts when it has more than one word after the program: a command's bare name
    is no command line.
    """
    lines = [line for block in blocks(text, "sh", "bash") for line in block.splitlines()]
    inline = [code for code in re.findall(r"`([^`\n]+)`", prose(text)) if code.count(" ") > 1]
    for line in lines + inline:
        if line.startswith(f"{program} ") or line == program:
            words = shlex.split(line, comments=True)
            yield words[1 : words.index(">") if ">" in words else None]


def slugs(text: str) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page: str) -> None:
    inline_code = re.compile(r"`[^`\n]*`")
    for link in re.findall(r"\]\(([^)\s]+)\)", inline_code.sub("", prose(text_of(page)))):
        if re.match(r"\w+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), f"{page}: {link}"
        if anchor:
            assert anchor in slugs(target.read_text(encoding="utf-8")), f"{page}: {link}"


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else [])
        for page in PAGES
        if blocks(text_of(page), "python")
    ],
)
def test_python_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page}
    with matplotlib.rc_context():
        for number, block in enumerate(blocks(text_of(page), "python"), start=1):
            exec(compile(block, f"{page}, block {number}", "exec"), namespace)


def rule_names() -> set[str]:
    files = [ROOT / "Snakefile", *(ROOT / "workflow" / "rules").glob("*.smk")]
    named = {
        name
        for file in files
        for name in re.findall(r"^rule (\w+):", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    ids = {figure.id for figure in figures()}
    tables = {f"simulate_{name}" for name in TABLES}
    return named | ids | tables | {f"theory_{name}" for name in TABLES if TABLES[name].THEORY}


def is_target(name: str) -> bool:
    if name in rule_names():
        return True
    if re.fullmatch(rf"results/({'|'.join(PRESETS)})/index\.html", name):
        return True
    path = re.fullmatch(rf"results/({'|'.join(PRESETS)})/(\w+)/(\w+)\.(\w+)", name)
    ids = {figure.id for figure in figures()}
    known = {
        "figures": ids,
        "notebooks": ids,
        "data": {part for table in TABLES for part in parts(table)},
        "claims": {"claims"},
    }
    return path is not None and path[3] in known.get(path[2], ())


@pytest.mark.parametrize("page", PAGES)
def test_snakemake_commands_parse_and_name_targets(page: str) -> None:
    parser = get_argument_parser()
    for words in commands(established(text_of(page)), "snakemake"):
        arguments = parser.parse_args(words)
        assert arguments.cores is None or str(arguments.cores) == "all" or arguments.cores > 0
        for target in arguments.targets:
            assert is_target(target), f"{page}: snakemake {shlex.join(words)}"
        for setting in arguments.config or []:
            key, _, value = setting.partition("=")
            validate(load("laptop").model_dump(mode="json") | {key: yaml.safe_load(value)})


def test_a_misspelt_target_would_be_noticed() -> None:
    assert is_target("fig09") and is_target("results/smoke/data/deep_theory.parquet")
    assert is_target("results/smoke/index.html") and not is_target("results/smok/index.html")
    assert not is_target("fig90") and not is_target("results/smoke/data/depe.parquet")


@pytest.mark.parametrize("page", PAGES)
def test_sigprop_commands_parse(page: str) -> None:
    text = text_of(page)
    names = [*commands(established(text), "sigprop")]
    for words in commands(text, "sigprop"):
        if "--help" in words:
            continue  # prints and exits
        arguments = cli._parser().parse_args(words)
        if words in names:
            assert getattr(arguments, "table", "moments") in TABLES, words
            assert set(getattr(arguments, "claim", [])) <= set(all_claims()), words
        if getattr(arguments, "settings", None):
            block = load("laptop").experiments[arguments.table]
            parse(type(block), json.loads(arguments.settings))


def test_commands_are_found_in_blocks_and_in_running_text() -> None:
    text = "Run `sigprop list schemes`, or `sigprop`:\n\n```sh\nsigprop schema > a  # why\n```\n"
    assert list(commands(text, "sigprop")) == [["schema"], ["list", "schemes"]]
    assert ["fig09", "--cores", "2"] in list(commands(text_of("README.md"), "snakemake"))


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    makefile = text_of("Makefile")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    variables = set(re.findall(r"^(\w+) \?=", makefile, re.MULTILINE))
    shown = re.findall(r"`(make(?: [^`\n]*)?)`", prose(text_of(page)))
    shown += [
        line
        for block in blocks(text_of(page), "sh", "bash")
        for line in block.splitlines()
        if line.split()[:1] == ["make"]
    ]
    for line in shown:
        for word in shlex.split(line, comments=True)[1:]:
            name, assigned, _ = word.partition("=")
            assert name in (variables if assigned else targets), f"{page}: {line}"


@pytest.mark.parametrize("page", PAGES)
def test_yaml_blocks_are_valid(page: str) -> None:
    for block in blocks(text_of(page), "yaml"):
        record = yaml.safe_load(block)
        if block.startswith("# mine.yaml"):
            validate(merge(read_yaml(ROOT / "config" / "config.yaml"), record))
        else:
            assert block.startswith("# config/figures.yaml"), f"{page}: what is this file?"
            for name, entry in record.items():
                parse(Figure, {"id": name} | entry)


def test_the_front_page_lists_the_figures_of_the_index() -> None:
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", text_of("README.md"), re.MULTILINE)
    listed = {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}
    index = {figure.id: figure for figure in figures()}
    assert list(listed) == list(index)
    for name, figure in index.items():
        tables = re.findall(r"`(\w+)`", listed[name][3])
        assert tables == figure.tables, name
        assert listed[name][4] == figure.smallest_preset, name


def test_measured_times_are_filled_in() -> None:
    for page in PAGES:
        assert not re.search(r"\bTIME_[A-Z]+", text_of(page)), page


def test_the_citation_and_the_changelog_agree_with_the_package_and_the_front_page() -> None:
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert citation["version"] == sigprop.__version__
    assert f"## {sigprop.__version__}" in text_of("CHANGELOG.md")
    cited = [f"arXiv:{number}" for number in ("2206.03126", "2403.02579")]
    assert [paper["identifiers"][0]["value"] for paper in citation["references"]] == cited
    for paper, number in zip(citation["references"], cited, strict=True):
        authors = ", ".join(author["family-names"] for author in paper["authors"])
        assert f"- {authors}. *{paper['title']}.*" in text_of("README.md"), number
