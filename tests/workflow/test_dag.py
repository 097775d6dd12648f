"""What `snakemake` offers: targets by name, presets, and one line for what does not exist."""

from pathlib import Path

import pandas as pd
import pytest

from sigprop.claims.ledger import all_claims
from sigprop.experiments.config import load, parts, shards
from sigprop.experiments.index import figures
from sigprop.experiments.settings import PRESETS

TABLES = load("smoke").experiments

pytestmark = pytest.mark.slow

FIGURES = {figure.id: figure for figure in figures()}
SIMULATIONS = {f"simulate_{table}" for table in TABLES}
THEORIES = {f"theory_{table}" for table in TABLES if len(parts(table)) == 2}
GROUPS = {"all", "figures", "noci2022", "cowsik2024", "extensions"}


def makers(*tables: str) -> set[str]:
    """Rules that make these tables."""
    return {r for t in tables for r in (f"simulate_{t}", f"theory_{t}")} & (SIMULATIONS | THEORIES)


def test_rules_are_the_index_the_tables_and_a_few_groups(clean) -> None:
    listed = clean.snakemake("--list-rules").stdout
    rules = {line.split()[0] for line in listed.splitlines() if not line.startswith("Using ")}
    named = {*FIGURES} | SIMULATIONS | THEORIES | GROUPS
    assert rules == named | {"claims", "pages", "schemes", "translate", "unknown_target"}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_named_target_of_every_preset_can_be_planned(clean, preset: str) -> None:
    """In one dry run: each target is looked up on its own, and each job is planned once."""
    targets = [*FIGURES, *SIMULATIONS, *THEORIES, *GROUPS, "claims", "pages", "schemes"]
    jobs = clean.jobs(*targets, "--config", f"preset={preset}")
    split = {f"part_{table}" for table in TABLES if shards(load(preset), table) > 1}
    assert bool(split) == (preset == "paper")
    assert jobs == ({*targets} | split) - {"all"}


def test_a_figure_brings_its_own_tables_and_no_others(clean) -> None:
    assert clean.jobs("fig09") == {"fig09"} | makers(*FIGURES["fig09"].tables)


def test_claims_need_no_figure_and_no_table_that_they_do_not_read(clean) -> None:
    read = {table for claim in all_claims().values() for table in claim.tables}
    jobs = clean.jobs("claims")
    assert makers(*read) <= jobs and not jobs & {*FIGURES}
    ours = {t for f in FIGURES.values() if f.paper == "extensions" for t in f.tables}
    assert not jobs & makers(*ours - read)


@pytest.mark.parametrize("arguments", [("-f", "fig09"), ("fig09", "--force")])
def test_a_figure_again_is_that_figure_only(built, arguments: tuple[str, str]) -> None:
    assert built.jobs(*arguments) == {"fig09"}


def test_a_table_in_parts_is_the_table(tree) -> None:
    """Trained in three jobs and put together, alongside what one job made."""
    name = "results/smoke/data/train_lhs"

    def table() -> pd.DataFrame:
        """Rows lie by ensemble."""
        rows = pd.read_parquet(tree.root / f"{name}.parquet")
        return rows.sort_values(["quantity", "config"], ignore_index=True)

    whole = table()
    (tree.root / "mine.yaml").write_text("experiments: {train_lhs: {ensemble: 3}}\n")
    three = ("--configfile", "mine.yaml", "--config", "preset=smoke", "shards=3")
    target = ("simulate_train_lhs", *three)
    assert tree.jobs(*target) == {"simulate_train_lhs", "part_train_lhs"}
    done = tree.snakemake(*target)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len([*(tree.root / "results/smoke/data/parts/train_lhs").glob("*-of-3.parquet")]) == 3
    pd.testing.assert_frame_equal(whole, table(), rtol=1e-3)  # other ensembles, other rounding
    assert tree.jobs(*target) == set()


def test_a_second_run_has_nothing_to_do(built) -> None:
    assert built.jobs("all", "claims", "pages", "schemes", *FIGURES) == set()


# ---------------------------------------------------------------- what does not exist


def refusal(tree, *arguments: str) -> str:
    """The one line of ours, after Snakemake's own banner; exit code 1."""
    done = tree.snakemake("-n", *arguments)
    said = (done.stdout + done.stderr).splitlines()
    (line,) = [line for line in said if line.startswith("sigprop: ")]
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    assert line == said[-1] or not said[-1]
    return line


@pytest.mark.parametrize("name", ["figg09", "fig9"])
def test_a_misspelt_target_names_the_nearest(clean, name: str) -> None:
    line = refusal(clean, name)
    assert line.startswith(f"sigprop: {name!r} is not a target; did you mean 'fig09'?")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["preset=smok"], "preset: 'smok' is not allowed; use smoke, laptop, paper; did you mean"),
        (["preset=smoke", "sede=1"], "sede: unknown key; did you mean 'seed'?"),
    ],
)
def test_a_wrong_config_is_one_line(clean, arguments: list[str], says: str) -> None:
    assert refusal(clean, "--config", *arguments).startswith(f"sigprop: {says}")


def test_a_wrong_key_in_a_file_of_the_users_own_is_one_line(clean, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("experiments: {deep: {n_network: 3}}\n")
    line = refusal(clean, "--configfile", str(mine))
    assert "experiments.deep.n_network: unknown key; did you mean 'n_networks'?" in line
