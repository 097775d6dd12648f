"""Tables of the forward-propagation experiment: shape, repeatability, agreement with theory."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sigprop.analysis.data import choose, networks, theory_at
from sigprop.artifacts.errors import UserError
from sigprop.experiments import schemes
from sigprop.experiments.context import Context
from sigprop.experiments.frames import schema
from sigprop.experiments.propagation import simulation as propagation
from sigprop.experiments.propagation import theory as propagation_theory
from sigprop.experiments.propagation.settings import PropagationSettings
from sigprop.models.schemes import SCHEMES, Family, Scheme

SCHEMA = schema(PropagationSettings)

BASE = {
    "scheme": ["no_ln", "post_ln"],
    "activation": "relu",
    "attention": ["softmax", "uniform"],
    "n_tokens": 3,
    "d_model": 12,
    "depth": [2, 4],
    "sigma_x": 1.0,
    "rho": 0.2,
    "n_networks": 5,
    "quantities": ["cos_mean", "sum_sq_norm", "sum_inner", "rank_residual", "attention_entropy"],
}


def settings(**changes: Any) -> PropagationSettings:
    return PropagationSettings.model_validate(BASE | changes)


def simulate(seed: int = 1, table: str = "t", **changes: Any) -> pd.DataFrame:
    return propagation.run(settings(**changes), Context(table, seed))


def theory(**changes: Any) -> pd.DataFrame:
    return propagation_theory.run(settings(**changes), Context("t", 1))


def values_of(table: pd.DataFrame, **wanted: Any) -> np.ndarray:
    return choose(table, **wanted)["value"].to_numpy()


# ---------------------------------------------------------------- shape


def test_a_simulated_table_has_one_row_per_case_quantity_layer_and_network() -> None:
    table = SCHEMA.validate(simulate())
    expected = 0
    for depth in (2, 4):
        layers = depth + 1
        plain = 4 * layers * 5  # cos_mean, sum_sq_norm, sum_inner, rank_residual
        entropy = depth * 5  # softmax only; the input has no attention
        expected += 2 * (2 * (plain + layers) + entropy)  # + rho_ratio, one row per layer
    assert len(table) == expected
    entropy = choose(table, quantity="attention_entropy")
    assert set(entropy["attention"]) == {"softmax"} and entropy["layer"].min() == 1
    assert set(table["source"]) == {"simulation"}


def test_ratio_rows_are_ratios_of_the_sums_of_the_table() -> None:
    table = choose(simulate(), scheme="post_ln", attention="softmax", depth=4)
    t, c = (networks(table, quantity)[1].sum(0) for quantity in ("sum_sq_norm", "sum_inner"))
    ratio = choose(table, quantity="rho_ratio")
    assert ratio["seed"].isna().all()
    np.testing.assert_allclose(ratio["value"], (c - t) / ((3 - 1) * t), rtol=1e-12)


def test_values_lie_where_they_must() -> None:
    table = simulate()
    assert values_of(table, quantity="cos_mean").min() >= -0.5 - 1e-6  # -1 / (n - 1)
    assert values_of(table, quantity="cos_mean").max() <= 1 + 1e-6
    assert values_of(table, quantity="attention_entropy").max() <= np.log(3) + 1e-6
    post = choose(table, scheme="post_ln", quantity="sum_sq_norm")
    np.testing.assert_allclose(post[post["layer"] > 0]["value"], 3 * 12, rtol=1e-4)  # n d


@pytest.mark.parametrize(("record", "layers"), [("last", {4}), (2, {0, 4}), ("all", set(range(5)))])
def test_only_the_recorded_layers_are_kept(record: Any, layers: set[int]) -> None:
    for table in (simulate(record=record, depth=4), theory(record=record, depth=4)):
        assert set(table["layer"]) == layers


def test_only_the_quantities_asked_for_are_kept() -> None:
    table = simulate(quantities=["cos_mean"])
    assert set(table["quantity"]) == {"cos_mean", "rho_ratio"}


def test_the_sampler_that_was_used_is_named() -> None:
    table = simulate(sampler=["explicit", "law"], depth=2)
    assert set(table["sampler"]) == {"explicit", "law"}
    assert "auto" not in set(simulate(depth=2)["sampler"])


# ---------------------------------------------------------------- repeatability


def test_the_same_seed_gives_the_same_table() -> None:
    pd.testing.assert_frame_equal(simulate(seed=3), simulate(seed=3))


def test_another_seed_or_table_gives_other_networks() -> None:
    one = values_of(simulate(seed=3), quantity="cos_mean")
    for other in (simulate(seed=4), simulate(seed=3, table="u")):
        assert not np.isin(values_of(other, quantity="cos_mean"), one).any()


@pytest.mark.parametrize(
    "more",
    [
        {"scheme": ["pre_ln", "no_ln", "post_ln"]},
        {"depth": [1, 2, 3, 4]},
        {"d_model": [8, 12]},
        {"sigma_x": [0.5, 1.0]},
        {"activation": ["linear", "relu"]},
    ],
    ids=lambda more: next(iter(more)),
)
def test_a_case_added_to_the_sweep_leaves_the_others_as_they_were(more: dict[str, Any]) -> None:
    few, many = simulate(), simulate(**more)
    columns = [name for name in few.columns if name != "value"]
    both = few.merge(many, on=columns, suffixes=("_few", "_many"))
    assert len(both) == len(few) < len(many)
    assert (both["value_few"] == both["value_many"]).all()


def test_a_quantity_added_leaves_the_others_as_they_were() -> None:
    few, many = simulate(quantities=["cos_mean"]), simulate()
    for quantity in ("cos_mean", "rho_ratio"):
        one, other = values_of(few, quantity=quantity), values_of(many, quantity=quantity)
        np.testing.assert_array_equal(one, other)


def test_no_two_networks_are_the_same() -> None:
    """Also across batches, which a width this large makes small."""
    one = {"scheme": "no_ln", "attention": "softmax", "depth": 1, "record": "last"}
    table = simulate(**one, d_model=1_000_000, n_networks=5)
    assert len(set(values_of(table, quantity="sum_sq_norm"))) == 5


# ---------------------------------------------------------------- the input


def test_a_fixed_input_is_the_same_for_all_networks_and_cases() -> None:
    table = simulate(fixed_input=True, sigma_x=[0.5, 1.0])
    start = choose(table, layer=0, quantity="sum_sq_norm")
    scaled = start["value"] / start["sigma_x"] ** 2
    np.testing.assert_allclose(scaled, scaled.iloc[0], rtol=1e-6)
    last = choose(table, layer=4, depth=4, scheme="no_ln", quantity="sum_sq_norm")
    assert last["value"].nunique() == len(last)


def test_a_fixed_input_differs_by_seed() -> None:
    first, second = (
        values_of(simulate(seed=s, fixed_input=True), layer=0, quantity="cos_mean") for s in (1, 2)
    )
    assert first[0] != second[0]


def test_inputs_of_their_own_differ_and_have_the_correlation_asked_for() -> None:
    one = {"scheme": "no_ln", "attention": "softmax", "depth": 1}
    table = simulate(**one, d_model=50, n_networks=2000)
    start = choose(table, layer=0)
    t, c = values_of(start, quantity="sum_sq_norm"), values_of(start, quantity="sum_inner")
    assert len(set(t)) == 2000
    for sample, mean in ((t, 3 * 50.0), (c, 3 * 50 * (1 + 2 * 0.2))):
        assert abs(sample.mean() - mean) < 3.5 * sample.std(ddof=1) / 2000**0.5


# ---------------------------------------------------------------- against theory


EXACT = {
    "scheme": ["no_ln", "no_ln_scaled"],
    "activation": "linear",
    "attention": "uniform",
    "n_tokens": 4,
    "d_model": 16,
    "depth": [1, 3],
    "rho": -0.2,
    "n_networks": 4000,
    "sampler": ["explicit", "law"],
    "dtype": "float64",
    "quantities": ["sum_sq_norm", "sum_inner"],
}


def test_uniform_linear_networks_have_the_expected_sums() -> None:
    """E T and E C are exact at any width: within 3.5 standard errors, each below 2.5 %."""
    simulated, exact = simulate(**EXACT), theory(**EXACT)
    for scheme in EXACT["scheme"]:
        for depth in EXACT["depth"]:
            for quantity in EXACT["quantities"]:
                expected = choose(exact, scheme=scheme, depth=depth)
                for sampler in EXACT["sampler"]:
                    rows = choose(simulated, scheme=scheme, depth=depth, sampler=sampler)
                    layers, sample = networks(rows, quantity)
                    for layer, column in zip(layers, sample.T, strict=True):
                        mean = theory_at(expected, quantity, int(layer))
                        error = column.std(ddof=1) / len(column) ** 0.5
                        where = f"{scheme}, {sampler}, {quantity}, l={layer:g} of {depth}"
                        assert error < 0.025 * mean, where
                        assert abs(column.mean() - mean) <= 3.5 * error, where


def test_theory_holds_the_exact_sums_only_where_they_are_exact() -> None:
    for changes in ({"activation": "relu"}, {"attention": "softmax"}, {"scheme": "post_ln"}):
        table = theory(**EXACT | changes)
        assert "sum_inner" not in set(table["quantity"])
    table = theory(**EXACT)
    assert {"sum_inner", "rho_ratio", "rho_ratio_limit"} <= set(table["quantity"])


def test_a_theory_table_fits_the_schema_and_repeats_no_row() -> None:
    table = SCHEMA.validate(theory(sampler=["explicit", "law"], scheme=["pre_ln", "no_ln_scaled"]))
    assert set(table["source"]) == {"theory"} and set(table["sampler"]) == {""}
    assert table["seed"].isna().all()
    assert not table.drop(columns="value").duplicated().any()


def test_limits_and_exponents_are_given_where_they_exist() -> None:
    table = theory(scheme=["pre_ln", "post_ln_scaled"], depth=4)
    limit = choose(table, quantity="cos_mean_limit")
    exponent = choose(table, quantity="collapse_exponent")
    assert set(limit["scheme"]) == {"post_ln_scaled"} and set(limit["layer"]) == {4}
    assert set(exponent["scheme"]) == {"pre_ln"} and set(exponent["layer"]) == {20000}
    assert np.allclose(exponent["value"], -0.5, atol=0.05)


def test_theory_follows_a_residual_of_the_users_own() -> None:
    own = {**EXACT, "scheme": "no_ln", "residual": [{"coefficient": 1.0, "depth_power": 0.5}]}
    named = theory(**EXACT | {"scheme": "no_ln_scaled"})
    for quantity in ("sum_sq_norm", "sum_inner", "rho_ratio_limit"):
        one, other = (
            values_of(theory(**own), quantity=quantity),
            values_of(named, quantity=quantity),
        )
        np.testing.assert_array_equal(one, other)


def only(monkeypatch: pytest.MonkeyPatch, scheme: Scheme) -> None:
    """Let settings know this record and no other."""
    monkeypatch.setattr(schemes, "SCHEMES", {scheme.name: scheme})


@pytest.mark.parametrize("gains", [{"v": 0.3, "ff2": 0.5}, {"v": 0.4, "o": 0.7, "ff1": 0.8}])
def test_theory_has_the_gains_of_the_scheme(
    monkeypatch: pytest.MonkeyPatch, gains: dict[Family, float]
) -> None:
    """cos_mean after six blocks, against wide networks drawn in law."""
    own = replace(SCHEMES["post_ln"], name="own", gains=tuple(gains.items()))
    only(monkeypatch, own)
    wide = {"scheme": "own", "attention": "uniform", "d_model": 256, "depth": 6, "n_networks": 40}
    wide |= {"n_heads": 2 if "o" in gains else 1, "quantities": ["cos_mean"], "record": "last"}
    drawn = values_of(simulate(**wide), quantity="cos_mean")
    (expected,) = values_of(theory(**wide), quantity="cos_mean")
    error = drawn.std(ddof=1) / len(drawn) ** 0.5
    assert abs(drawn.mean() - expected) < 3.5 * error + 1 / 256
    only(monkeypatch, replace(own, gains=()))
    assert abs(values_of(theory(**wide), quantity="cos_mean")[0] - expected) > 0.02  # they matter


@pytest.mark.parametrize("activation", ["relu", "linear"])
@pytest.mark.parametrize(
    "name", ["deepnorm", "t_fixup", "post_ln_xavier", "residual_scaling", "post_ln_qk_norm"]
)
def test_a_record_has_the_theory_of_its_own_weights(name: str, activation: str) -> None:
    """cos_mean after six blocks against wide networks; d_ff = 2 d_model tells the fans apart."""
    wide = {"scheme": name, "activation": activation, "attention": "uniform", "d_model": 256}
    wide |= {"d_ff": 512, "depth": 6, "n_networks": 40, "quantities": ["cos_mean"]}
    drawn = values_of(simulate(**wide, record="last"), quantity="cos_mean")
    (expected,) = values_of(theory(**wide, record="last"), quantity="cos_mean")
    error = drawn.std(ddof=1) / len(drawn) ** 0.5
    assert abs(drawn.mean() - expected) < 3.5 * error + 1 / 256


def test_limits_are_those_of_weights_that_do_not_depend_on_depth() -> None:
    own = theory(scheme=["deepnorm", "residual_scaling"], depth=4)
    assert set(choose(own, quantity="cos_mean_limit")["scheme"]) == {"residual_scaling"}


@pytest.mark.parametrize("changes", [{"renorm": True}, {"skip": "variance_preserving"}])
def test_theory_refuses_what_it_does_not_cover(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    own = replace(SCHEMES["pre_ln"], name="own", **changes)
    only(monkeypatch, own)
    with pytest.raises(UserError, match="the theory does not cover the skip or renorm of 'own'"):
        theory(scheme="own")
