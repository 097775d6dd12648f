"""Config, presets and index: what they accept, and the one line for what they do not."""

import itertools
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sigprop.artifacts.errors import UserError
from sigprop.claims.ledger import all_claims
from sigprop.experiments import config as config_module
from sigprop.experiments import index
from sigprop.experiments.config import load, merge, read_yaml, scaled_down, schema_yaml
from sigprop.experiments.propagation.settings import PropagationSettings, Residual
from sigprop.experiments.settings import PRESETS, parse

BLOCK = {
    "scheme": "no_ln",
    "activation": "relu",
    "attention": "softmax",
    "n_tokens": 4,
    "d_model": 8,
    "depth": 3,
    "sigma_x": 1.0,
    "rho": 0.1,
    "n_networks": 2,
    "quantities": ["cos_mean"],
}


def settings(**changes: object) -> PropagationSettings:
    return parse(PropagationSettings, BLOCK | changes, root="experiments.deep")


def refusal(**changes: object) -> str:
    """The one line with which a block is refused."""
    with pytest.raises(UserError) as error:
        settings(**changes)
    assert "\n" not in str(error.value)
    return str(error.value)


def config_refusal(record: dict) -> str:
    whole = merge(read_yaml(config_module.code_root() / "config" / "config.yaml"), record)
    with pytest.raises(UserError) as error:
        config_module.validate(whole)
    assert "\n" not in str(error.value)
    return str(error.value)


# ---------------------------------------------------------------- presets


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_valid_and_knows_its_name(preset: str) -> None:
    assert load(preset).preset == preset


def test_presets_hold_only_what_differs_from_the_default(checkout: Path) -> None:
    default = read_yaml(checkout / "config" / "config.yaml")["experiments"]
    for preset in PRESETS:
        for table, block in (
            read_yaml(checkout / f"config/presets/{preset}.yaml").get("experiments", {}).items()
        ):
            for key, value in block.items():
                assert default[table].get(key) != value, f"{preset}: {table}.{key} repeats"


def test_presets_grow_in_networks_and_width() -> None:
    blocks = [dict(load(preset).experiments) for preset in PRESETS]
    for table, block in blocks[0].items():
        if isinstance(block, PropagationSettings):
            cases = [list(preset[table].cases()) for preset in blocks]
            work = [sum(c.n_networks * c.d_model * c.depth for c in preset) for preset in cases]
            assert work == sorted(work), f"{table}: {work}"


def test_a_further_file_wins_over_the_preset(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("seed: 5\nexperiments: {deep: {n_networks: 3}}\n")
    changed, plain = load("smoke", mine), load("smoke")
    assert (changed.seed, changed.experiments["deep"].n_networks) == (5, 3)
    assert changed.experiments["deep"].depth == plain.experiments["deep"].depth
    assert changed.experiments["width"] == plain.experiments["width"]


@given(
    st.recursive(
        st.integers(),
        lambda leaf: st.dictionaries(st.sampled_from("abc"), leaf, max_size=3),
        max_leaves=8,
    ).filter(lambda x: isinstance(x, dict)),
)
def test_merge_with_itself_or_nothing_changes_nothing(record: dict) -> None:
    assert merge(record, record) == merge(record, {}) == merge({}, record) == record


def test_merge_joins_blocks_and_replaces_lists() -> None:
    base = {"a": {"x": 1, "y": [1, 2]}, "b": 1}
    assert merge(base, {"a": {"y": [3]}, "c": 2}) == {"a": {"x": 1, "y": [3]}, "b": 1, "c": 2}
    assert base == {"a": {"x": 1, "y": [1, 2]}, "b": 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seed: [1, 2\n", "mine.yaml, line 2: not valid YAML"),
        ("- 1\n", "mine.yaml: must hold `key: value` lines, not a list"),
        ("\xff", "mine.yaml: cannot be read"),
    ],
)
def test_a_malformed_file_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "mine.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError) as error:
        load("smoke", tmp_path / "mine.yaml")
    assert says in str(error.value) and "\n" not in str(error.value)


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").touch()
    assert load("smoke", tmp_path / "mine.yaml") == load("smoke")


# ---------------------------------------------------------------- schema


def test_the_schema_of_the_repository_is_the_schema_of_the_code(checkout: Path) -> None:
    assert (checkout / "config" / "schema.yaml").read_text(encoding="utf-8") == schema_yaml()


def test_every_setting_of_the_schema_says_what_it_is() -> None:
    schema = yaml.safe_load(schema_yaml())
    blocks = [schema, *schema["$defs"].values()]
    for block in blocks:
        for key, entry in block["properties"].items():
            assert "description" in entry or "$ref" in entry, key


# ---------------------------------------------------------------- error lines


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n_network": 3}, "deep.n_network: unknown key; did you mean 'n_networks'?; allowed: "),
        ({"scheme": "postln"}, "deep.scheme[0]: 'postln' is not allowed; use post_ln, "),
        ({"scheme": "postln"}, "did you mean 'post_ln'?"),
        ({"scheme": []}, "deep.scheme: [] is not allowed; "),
        ({"activation": "gelu"}, "deep.activation[0]: 'gelu' is not allowed; use 'relu' or "),
        ({"attention": ["softmax", "sofmax"]}, "deep.attention[1]: 'sofmax' is not allowed; "),
        ({"d_model": 8.0}, "deep.d_model[0]: 8.0 is not allowed; "),
        ({"d_model": "8"}, "deep.d_model[0]: '8' is not allowed; "),
        ({"d_model": [8, 1]}, "deep.d_model[1]: 1 is not allowed; "),
        ({"depth": 0}, "deep.depth[0]: 0 is not allowed; "),
        ({"depth": True}, "deep.depth[0]: True is not allowed; "),
        ({"depth": None}, "deep.depth[0]: None is not allowed; "),
        ({"n_tokens": 1}, "deep.n_tokens: 1 is not allowed; "),
        ({"n_networks": 1}, "deep.n_networks: 1 is not allowed; "),
        ({"tau": 0}, "deep.tau: 0 is not allowed; "),
        ({"rho": 1.5}, "deep.rho: 1.5 is not allowed; "),
        ({"rho": float("nan")}, "deep.rho: nan is not allowed; "),
        ({"rho": -0.5}, "rho=-0.5 is below -1/(n_tokens-1)=-0.333333"),
        ({"sigma_x": 0}, "deep.sigma_x[0]: 0 is not allowed; "),
        ({"sigma_x": float("inf")}, "deep.sigma_x[0]: inf is not allowed; "),
        ({"sigma_x": "sqrt(d)"}, "deep.sigma_x[0]: 'sqrt(d)' is not allowed; "),
        ({"sigma_x": "sqrt(d)"}, "'1/sqrt(d)'"),
        ({"residual": [{"coefficient": 1.0}]}, "deep.residual[0].depth_power: missing; "),
        ({"residual": {"coefficient": 1.0}}, "deep.residual[0].depth_power: missing; "),
        ({"n_heads": 3}, "n_heads=3 does not divide d_model=8"),
        ({"weights": "uniform", "sampler": "law"}, "sampler=law needs weights=gaussian"),
        ({"record": 1}, "record=1 is too few"),
        ({"record": "first"}, "deep.record: 'first' is not allowed; "),
        ({"quantities": ["entropy"]}, "did you mean 'attention_entropy'?"),
        (
            {"quantities": ["attention_entropy"], "attention": "uniform"},
            "quantities=attention_entropy needs softmax attention",
        ),
        ({"dtype": "float16"}, "deep.dtype: 'float16' is not allowed; use "),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_key_value_and_fix(changes: dict, says: str) -> None:
    line = refusal(**changes)
    assert line.startswith("experiments.deep") and says in line


@pytest.mark.parametrize("missing", sorted(BLOCK))
def test_a_missing_setting_is_named(missing: str) -> None:
    with pytest.raises(UserError) as error:
        parse(PropagationSettings, {k: v for k, v in BLOCK.items() if k != missing}, root="e.deep")
    assert str(error.value) == f"e.deep.{missing}: missing; it has no default, so give it a value"


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"sede": 1}, "sede: unknown key; did you mean 'seed'?; allowed: preset, seed, "),
        ({"seed": -1}, "seed: -1 is not allowed; "),
        ({"seed": 1.5}, "seed: 1.5 is not allowed; "),
        ({"device": "gpu"}, "device: 'gpu' is not allowed; use 'auto', 'cpu' or 'cuda'"),
        ({"preset": "huge"}, "preset: 'huge' is not allowed; use "),
        ({"strict_claims": "yes"}, "strict_claims: 'yes' is not allowed; "),
        ({"experiments": 3}, "experiments: 3 is not allowed; "),
        ({"experiments": {"deeep": {}}}, "experiments.deeep: unknown table; did you mean 'deep'?"),
        (
            {"experiments": {"deep": {"n_token": 3}}},
            "experiments.deep.n_token: unknown key; did you mean 'n_tokens'?",
        ),
    ],
)
def test_a_wrong_config_is_one_line(record: dict, says: str) -> None:
    assert says in config_refusal(record)


@pytest.mark.parametrize(("name", "near"), [("smok", "smoke"), ("Paper", "paper")])
def test_an_unknown_preset_names_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UserError, match=f"preset: '{name}' is not .*did you mean '{near}'"):
        load(name)
    with pytest.raises(UserError, match="preset: None is not allowed; use smoke, laptop, paper"):
        config_module.check_preset(None)


# ---------------------------------------------------------------- the sweep


def test_the_sweep_is_the_product_of_its_lists_in_a_fixed_order() -> None:
    block = settings(scheme=["no_ln", "post_ln"], depth=[1, 2], sigma_x=[1.0, "1/sqrt(d)"])
    cases = [(case.scheme.name, case.depth, case.sigma_x) for case in block.cases()]
    assert cases == [*itertools.product(["no_ln", "post_ln"], [1, 2], [1.0, 8**-0.5])]


def test_keys_of_cases_are_unique_in_every_table() -> None:
    for preset in PRESETS:
        for table, block in load(preset).experiments.items():
            keys = [case.key for case in block.cases()] if hasattr(block, "cases") else []
            assert len(set(keys)) == len(keys), f"{preset}: {table}"


def test_a_key_names_the_physics_not_the_sweep() -> None:
    alone = next(settings(depth=3).cases())
    among = [*settings(depth=[1, 2, 3], n_networks=50).cases()][-1]
    assert alone.key == among.key
    assert alone.key != next(settings(depth=3, tau=2.0).cases()).key


def test_a_residual_replaces_the_strength_of_both_branches() -> None:
    case = next(settings(residual=[{"coefficient": 2.0, "depth_power": 0.5}], depth=16).cases())
    factors = case.factors()
    assert factors["alpha_attn"] == factors["alpha_ff"] == 0.5
    assert Residual(coefficient=2.0, depth_power=0.5).strength() == case.scheme.alpha_attn


def test_the_width_cap_keeps_at_least_eight_networks() -> None:
    block = settings(d_model=[8, 80, 8000], n_networks=50, network_width_cap=800)
    assert [case.n_networks for case in block.cases()] == [50, 10, 8]


@pytest.mark.parametrize(
    ("record", "layers"),
    [
        ("all", [0, 1, 2, 3, 4, 5, 6]),
        ("last", [6]),
        (2, [0, 6]),
        (4, [0, 2, 4, 6]),
        (99, [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_recorded_layers(record: object, layers: list[int]) -> None:
    assert settings(record=record).layers(6) == layers


# ---------------------------------------------------------------- scaled down


def test_scaled_down_names_what_is_smaller() -> None:
    paper = load("paper")
    assert scaled_down(paper, ["deep"]) == ""
    assert re.search(r"n_networks \d+ → 8\b", scaled_down(load("smoke"), ["deep"]))
    assert scaled_down(load("smoke"), []) == ""


def test_the_paper_preset_with_smaller_settings_of_ones_own_is_scaled_down(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("experiments: {deep: {n_networks: 9}}")
    assert "n_networks 500 → 9" in scaled_down(load("paper", mine), ["deep"])


def test_a_switch_may_come_as_a_word_from_the_command_line() -> None:
    record = load("smoke").model_dump(mode="json") | {"strict_claims": "true"}
    assert config_module.validate(record).strict_claims is True


def test_scaled_down_says_a_change_once_however_many_blocks_make_it() -> None:
    words = scaled_down(load("laptop"), ["geometry"])
    assert len(re.findall("d_model 4096 → 1024", words)) == 1
    assert re.search(r"d_model 4096 → 1024 \(\d+ blocks\)", words)
    assert "depth 12/24/48/96 → 12/24/48 (inverse_sqrt_depth)" in words


def test_a_wrong_value_in_a_named_grid_is_named_to_its_key(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("experiments: {geometry: {grids: {ordered: {n_networks: 1}}}}")
    with pytest.raises(UserError, match=r"geometry\.grids\.ordered\.n_networks: 1 is not allowed"):
        load("smoke", mine)


# ---------------------------------------------------------------- index


FIGURES = index.figures()


def test_ids_and_notebooks_of_the_index(checkout: Path) -> None:
    notebooks = {str(path.relative_to(checkout)) for path in checkout.glob("notebooks/*/*.ipynb")}
    assert [figure.notebook for figure in FIGURES] == [
        f"notebooks/{figure.paper}/{figure.id}.ipynb" for figure in FIGURES
    ]
    assert {figure.notebook for figure in FIGURES} == notebooks


def test_every_table_of_the_config_is_drawn_or_decides_a_claim() -> None:
    drawn = {table for figure in FIGURES for table in figure.tables}
    decides = {table for claim in all_claims().values() for table in claim.tables}
    assert drawn | decides == set(load("smoke").experiments)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"tables": ["depp"]}, "'depp' is not a table; use "),
        ({"tables": ["depp"]}, "did you mean 'deep'?"),
        ({"papper": "noci2022"}, "unknown key; did you mean 'paper'?"),
        ({"smallest_preset": "tiny"}, "'tiny' is not allowed"),
        ({"paper": "vaswani"}, "'vaswani' is not allowed; use "),
    ],
)
def test_a_wrong_entry_of_the_index_is_one_line(entry: dict, says: str) -> None:
    good = FIGURES[0].model_dump()
    with pytest.raises(UserError) as error:
        parse(index.Figure, good | entry, root="figures.yaml fig02")
    assert says in str(error.value) and "\n" not in str(error.value)
    assert str(error.value).startswith("figures.yaml fig02")
