"""The pages in a real browser: nothing broken, nothing cut off, sorted, filtered, readable by all.

Needs Chromium (Debian: `apt-get install chromium`) and `pip install playwright`; the accessibility
checks also need axe-core (`npm pack axe-core`, unpacked, SIGPROP_AXE=.../package/axe.min.js).
SIGPROP_SITE=results/laptop tests pages that are already there instead of building the smoke preset.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sigprop.experiments.index import figures
from sigprop.pages.results import VERDICTS

playwright = pytest.importorskip(
    "playwright.sync_api", reason="no playwright; `pip install playwright` brings it"
)
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
AXE = os.environ.get("SIGPROP_AXE", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium; `apt-get install chromium` brings it"
    ),
]

PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}
IDS = [figure.id for figure in figures()]
PAGES = ["index.html", *(f"pages/{name}.html" for name in ("claims", "rules", "cost", *IDS))]


@pytest.fixture(scope="module")
def root(request: pytest.FixtureRequest) -> Path:
    given = os.environ.get("SIGPROP_SITE")
    folder = Path(given) if given else request.getfixturevalue("built").root / "results/smoke"
    assert (folder / "index.html").is_file()
    return folder.resolve()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        # Chromium refuses its sandbox to root, which CI is.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


class Tab:
    """A tab that remembers what went wrong in it, and where it looked."""

    def __init__(self, browser: Any, root: Path, **options: Any) -> None:
        self.root = root
        self.context = browser.new_context(**({"viewport": DESKTOP} | options))
        self.page = self.context.new_page()
        self.troubles: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.troubles.append(message.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("requestfailed", lambda request: self.troubles.append(request.url))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, name: str) -> Any:
        self.page.goto(f"{self.root.as_uri()}/{name}")
        return self.page


@pytest.fixture
def tab(chromium: Any, root: Path) -> Iterator[Any]:
    """Makes tabs; closes them afterwards."""
    tabs: list[Tab] = []

    def make(**options: Any) -> Tab:
        tabs.append(Tab(chromium, root, **options))
        return tabs[-1]

    yield make
    for one in tabs:
        one.context.close()


def test_every_page_loads_with_all_pictures_and_without_a_complaint(tab) -> None:
    it = tab()
    for name in PAGES:
        page = it.open(name)
        broken = page.evaluate(
            """async () => {
                const pictures = [...document.images];
                pictures.forEach((picture) => (picture.loading = "eager"));
                await Promise.allSettled(pictures.map((picture) => picture.decode()));
                return pictures.filter((p) => !p.naturalWidth).map((p) => p.src);
            }"""
        )
        assert broken == [], name
        assert it.troubles == [], name
    assert all(url.startswith(("file://", "data:")) for url in it.requests)


def test_the_gallery_shows_every_figure_and_leads_to_its_page(tab) -> None:
    page = tab().open("index.html")
    cards = page.locator(".card")
    assert cards.evaluate_all("cards => cards.map((card) => card.id)") == IDS
    for figure, card in zip(figures(), cards.all(), strict=True):
        assert figure.title in card.inner_text() and card.locator("img").count() == 1
    cards.nth(1).locator("a").click()
    assert page.locator("h1").inner_text().endswith(figures()[1].title)
    assert page.locator("figure img").is_visible()


@pytest.mark.parametrize("width", [390, 320])
def test_a_phone_need_not_scroll_sideways(tab, width: int) -> None:
    it = tab(viewport=PHONE | {"width": width})
    for name in PAGES:
        page = it.open(name)
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name


def test_claims_sort(tab) -> None:
    page = tab().open("pages/claims.html")
    rows = page.locator("#ledger > tbody > tr")

    def names() -> list[str]:
        return list(rows.evaluate_all("rows => rows.map((row) => row.id)"))

    at_first = names()
    assert at_first == sorted(at_first) and len(at_first) > 20
    button = page.get_by_role("button", name="Claim")
    button.click()
    button.click()
    assert names() == sorted(at_first, reverse=True)
    assert page.get_by_role("columnheader", name="Claim").get_attribute("aria-sort") == "descending"
    page.get_by_role("button", name="Verdict").press("Enter")
    verdicts = rows.evaluate_all("rows => rows.map((row) => row.dataset.verdict)")
    assert verdicts == sorted(verdicts, key=VERDICTS.index)
    assert page.locator("th[aria-sort]").count() == 1


def test_claims_filter(tab) -> None:
    page = tab().open("pages/claims.html")
    total = page.locator("#ledger > tbody > tr").count()
    visible = page.locator("#ledger > tbody > tr:visible")

    def shown(what: str) -> list[str]:
        return list(visible.evaluate_all(f"rows => rows.map((row) => row.{what})"))

    verdict, chapter = shown("dataset.verdict")[-1], shown("dataset.chapter")[0]
    for box, what, value in (
        ("Verdict", "dataset.verdict", verdict),
        ("Chapter", "dataset.chapter", chapter),
    ):
        kept = shown(what).count(value)
        page.get_by_role("combobox", name=box).select_option(value)
        assert shown(what) == [value] * kept
        assert page.locator("[data-shown]").inner_text() == f"{kept} of {total} claims"
        page.get_by_role("combobox", name=box).select_option("")
    for words, names in (("n04", ["N04"]), ("no such words at all", [])):
        page.get_by_role("searchbox", name="Words").fill(words)
        assert shown("id") == names


def test_a_count_of_the_gallery_leads_to_its_claims(tab) -> None:
    page = tab().open("index.html")
    page.locator(".chips a").last.click()
    assert page.get_by_role("combobox", name="Verdict").input_value() == VERDICTS[-1]
    assert page.locator('#ledger > tbody > tr:visible:not([data-verdict="not run"])').count() == 0


def test_without_scripts_everything_is_there(tab) -> None:
    it = tab(java_script_enabled=False)
    page = it.open("pages/claims.html")
    assert page.locator("#ledger > tbody > tr").last.is_visible()
    assert not page.locator("form.filters").is_visible()
    page = it.open(f"pages/{IDS[0]}.html")
    assert page.locator("figure img").is_visible() and not page.locator("[data-zoom]").is_visible()


def test_the_keyboard_reaches_everything(tab) -> None:
    page = tab().open("index.html")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.getAttribute('href')"))
    assert {f"pages/{name}.html" for name in IDS} <= reached


def test_a_picture_grows_to_its_full_size_by_keyboard(tab) -> None:
    page = tab(viewport=PHONE).open(f"pages/{IDS[1]}.html")
    picture, button = page.locator("figure img"), page.get_by_role("button", name="Full size")
    small = picture.bounding_box()["width"]
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    natural = picture.evaluate("(picture) => picture.naturalWidth")
    assert small <= PHONE["width"] and picture.bounding_box()["width"] >= natural > 390
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    button.press("Enter")
    assert picture.bounding_box()["width"] == small


def test_formulas_are_set(tab) -> None:
    """A browser without MathML would set the root's operand on the line, as wide as its letter."""
    page = tab().open("pages/fig04.html")
    root = page.locator("figcaption msqrt").first
    operand = root.locator("mi").first
    assert root.bounding_box()["width"] > 1.5 * operand.bounding_box()["width"]


def test_a_rule_in_focus_shows_what_it_needs(tab) -> None:
    page = tab().open("pages/rules.html")
    figure = next(f for f in figures() if f.tables)
    page.locator(f'a[data-rule="{figure.id}"]').focus()
    bright = page.locator("a[data-rule]:not(.dim)").evaluate_all(
        "all => all.map((a) => a.dataset.rule)"
    )
    assert {figure.id, *(f"simulate_{table}" for table in figure.tables)} <= set(bright)
    assert page.locator("a[data-rule].dim").count() > 0
    page.locator(f'a[data-rule="{figure.id}"]').blur()
    assert page.locator(".dim").count() == 0


@pytest.mark.skipif(
    not Path(AXE).is_file(),
    reason="no axe-core; `npm pack axe-core` and set SIGPROP_AXE to axe.min.js",
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_accessible_at_level_aa(tab, scheme: str, viewport: dict[str, int]) -> None:
    it = tab(color_scheme=scheme, viewport=viewport)
    rules = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
    for name in PAGES:
        page = it.open(name)
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        page.add_script_tag(path=AXE)
        found = page.evaluate("(rules) => axe.run(document, { runOnly: rules })", rules)
        assert found["passes"], "axe looked at nothing"
        wrong = [
            f"{violation['id']}: {node['html'][:120]} {node['failureSummary'][:200]}"
            for violation in found["violations"]
            for node in violation["nodes"]
        ]
        assert wrong == [], f"{name}: " + "\n".join(wrong[:5])


def test_pages_weigh_little(root: Path) -> None:
    """Under 1.5 MB for the gallery with its thumbnails, under 3 MB for a figure."""
    shared = sum(path.stat().st_size for path in (root / "pages").glob("site.*"))
    thumbs = sum(path.stat().st_size for path in (root / "pages/thumbs").iterdir())
    assert (root / "index.html").stat().st_size + shared + thumbs < 1.5e6
    for name in IDS:
        picture = root / "figures" / f"{name}.png"
        page = root / "pages" / f"{name}.html"
        assert shared + page.stat().st_size + picture.stat().st_size < 3e6, name
