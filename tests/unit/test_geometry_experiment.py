"""The token-geometry tables: settings, batching, shared weights, theory and simulation."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sigprop.artifacts.errors import UserError
from sigprop.experiments.context import Context, chosen
from sigprop.experiments.frames import schema
from sigprop.experiments.geometry import simulation as geometry
from sigprop.experiments.geometry import theory as geometry_theory
from sigprop.experiments.geometry.design import start_variances
from sigprop.experiments.geometry.settings import GeometrySettings
from sigprop.experiments.settings import parse
from sigprop.theory.cowsik2024 import Architecture
from sigprop.theory.cowsik2024_phases import collapsed_norm

CONTEXT = Context("geometry", 11)
GRID = {"n_tokens": 4, "d_model": 24, "depth": 3, "alpha_attn": 0.5, "sigma_w1": 1.5}
GRID |= {"n_networks": 6}
GRADIENT = {"readout": "independent", "quantities": ["q", "p", "q_minus_p", "g", "h"]}


def settings(**change: object) -> GeometrySettings:
    return parse(GeometrySettings, {"grids": {"some": GRID | change}})


def simulated(chosen_settings: GeometrySettings) -> pd.DataFrame:
    context = replace(CONTEXT, design=chosen(chosen_settings))
    return schema(GeometrySettings).validate(geometry.run(chosen_settings, context))


def run(**change: object) -> pd.DataFrame:
    return simulated(settings(**change))


def values(table: pd.DataFrame, **where: object) -> np.ndarray:
    for name, wanted in where.items():
        table = table[table[name] == wanted]
    return table["value"].to_numpy()


# -------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "cnv"}, "'conv', 'renorm' or 'unit'"),
        ({"alpha_attn": 1.2}, "1.2 is not allowed; input should be less than or equal to 1"),
        ({"rho": -0.5}, "rho=-0.5 is below"),
        ({"n_tokens": 25}, "n_tokens=25 is above d_model=24"),
        ({"mode": "unit", "q": "stationary"}, "q=stationary does not exist in mode=unit"),
        ({"layers": [0, 4]}, "must lie in 0 to depth=3"),
        ({"quantities": "g"}, "quantities=g needs a gradient"),
        (GRADIENT | {"quantities": "token_norm"}, "quantities=token_norm is measured forward"),
        ({"shared_weights": True, "sampler": "law"}, "sampler=law draws no weights to share"),
        ({"alpha": 0.5}, "unknown key"),
    ],
)
def test_settings_that_do_not_fit(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings(**change)


def test_points_cross_and_ties_follow() -> None:
    (batch,) = settings(
        alpha_attn=[0.2, 0.4], sigma_w1=[1.0, 2.0, 3.0], depth=4, depth_power=0.5
    ).batches()
    assert [(p.alpha_attn, p.sigma_w1) for p in batch.points] == [
        (a / 2, w) for a in (0.2, 0.4) for w in (1.0, 2.0, 3.0)
    ]
    assert all(p.alpha_ff == p.alpha_attn and p.sigma_w2 == p.sigma_w1 for p in batch.points)
    (batch,) = settings(alpha_ff=0.0, sigma_w2=[1.0, 2.0]).batches()
    assert [(p.alpha_attn, p.alpha_ff, p.sigma_w2) for p in batch.points] == [
        (0.5, 0.0, 1.0),
        (0.5, 0.0, 2.0),
    ]


@pytest.mark.parametrize(
    ("layers", "kept"), [("all", (0, 1, 2, 3)), ("last", (3,)), ([3, 1, 1], (1, 3))]
)
def test_kept_layers(layers: object, kept: tuple[int, ...]) -> None:
    (batch,) = settings(layers=layers).batches()
    assert batch.layers == kept


# -------------------------------------------------------------------- simulation


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("more", [{}, GRADIENT])
def test_one_row_for_each_network_layer_and_quantity(shared: bool, more: dict) -> None:
    table = run(alpha_attn=[0.2, 0.6], sigma_w1=[1.0, 2.0], shared_weights=shared, **more)
    key = ["alpha_attn", "sigma_w1", "layer", "seed", "quantity"]
    assert not table.duplicated(key).any()
    assert len(table) == 2 * 2 * 4 * 6 * len(table["quantity"].unique())
    assert set(table["sampler"]) == {"explicit" if shared else "law"}
    start = table[table["layer"] == 0]
    np.testing.assert_allclose(values(start, quantity="q"), 1.0, rtol=1e-5)
    np.testing.assert_allclose(values(start, quantity="p"), 0.0, atol=1e-6)
    last = table[table["layer"] == 3]
    if more:  # the readout itself, |R_i|^2 of 24 unit normals and 4 tokens
        assert np.abs(values(last, quantity="g") - 24).max() < 24 * 6 * np.sqrt(2 / 96)


def test_same_seed_same_table() -> None:
    pd.testing.assert_frame_equal(run(), run())
    assert not np.array_equal(
        run()["value"], geometry.run(settings(), Context("geometry", 12))["value"]
    )


def test_points_of_a_batch_are_independent_networks() -> None:
    table = run(sigma_w1=[1.5, 1.5000001], layers="last")
    a, b = (values(table, quantity="q", sigma_w1=w) for w in (1.5, 1.5000001))
    assert np.abs(a - b).min() > 1e-6


def test_shared_weights_are_the_same_at_every_setting() -> None:
    """Network k of a setting does not depend on which other settings run, nor on the split."""
    options = {"shared_weights": True, "dtype": "float64"} | GRADIENT
    many = run(sigma_w1=[1.0, 1.5, 2.0], **options)
    alone = run(sigma_w1=1.5, **options)
    mine = many[many["sigma_w1"] == 1.5]
    np.testing.assert_allclose(mine["value"], alone["value"], rtol=1e-9, atol=1e-12)
    assert list(mine["seed"]) == list(alone["seed"])


def test_splitting_keeps_shared_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"shared_weights": True, "dtype": "float64", "alpha_attn": [0.2, 0.5, 0.8]}
    whole = run(**options)
    monkeypatch.setattr(geometry, "_FORWARD_NUMBERS", 2 * 4 * 24)
    np.testing.assert_allclose(run(**options)["value"], whole["value"], rtol=1e-9, atol=1e-12)


def test_split_networks_keep_their_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strength 0 is the identity; batches of 5 cut through the 6 networks of a point."""
    monkeypatch.setattr(geometry, "_FORWARD_NUMBERS", 5 * 4 * 24)
    table = run(alpha_attn=[0.0, 0.5], q=2.0, rho=0.3)
    off = table[table["alpha_attn"] == 0.0]
    np.testing.assert_allclose(values(off, quantity="q"), 2.0, rtol=1e-5)
    np.testing.assert_allclose(values(off, quantity="p"), 0.6, rtol=1e-5)
    moved = values(table, alpha_attn=0.5, quantity="q", layer=3)
    assert np.abs(moved - 2.0).min() > 1e-3


def test_distributions_average_to_the_moments() -> None:
    table = run(
        quantities=["q", "token_norm", "pair_cosine"], mode=["conv", "renorm"], layers=[0, 2]
    )
    key = ["mode", "layer", "seed"]
    norms = table[table["quantity"] == "token_norm"]
    assert set(norms["item"]) == {0, 1, 2, 3}
    q = table[table["quantity"] == "q"].set_index(key)["value"]
    np.testing.assert_allclose(norms.groupby(key)["value"].mean(), q.sort_index(), rtol=1e-6)
    cosines = table[table["quantity"] == "pair_cosine"]
    assert set(cosines["item"]) == set(range(6))
    assert cosines["value"].abs().max() <= 1 + 1e-12
    np.testing.assert_allclose(values(cosines, layer=0), 0.0, atol=1e-6)


@pytest.mark.parametrize("mode", ["conv", "renorm"])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_stationary_variance_is_the_theorys(mode: str, activation: str) -> None:
    (batch,) = settings(
        mode=mode,
        activation=activation,
        q="stationary",
        alpha_attn=[0.2, 0.7],
        alpha_ff=[0.0, 0.5],
        sigma_v=1.3,
        sigma_w2=0.7,
    ).batches()
    p = batch.columns()
    sigmas = (p["sigma_w1"], p["sigma_w2"], p["sigma_a"], p["sigma_v"])
    model = Architecture(p["alpha_attn"], p["alpha_ff"], *sigmas, activation=activation, mode=mode)
    np.testing.assert_allclose(start_variances(batch), collapsed_norm(model), rtol=1e-12)


@pytest.mark.parametrize(
    "both", [{"alpha_attn": [0.0, 0.5]}, {"alpha_attn": [0.0, 0.5], "alpha_ff": [0.3, 0.0]}]
)
def test_no_stationary_variance_without_branches(both: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="q=stationary does not exist with alpha_attn=0") as caught:
        settings(q="stationary", **both)
    assert "\n" not in str(caught.value)
    settings(q="stationary", mode="renorm", **both)  # every variance is 1 there
    settings(q="stationary", alpha_attn=[0.0, 0.5], alpha_ff=0.3)


def test_equal_tokens_do_not_see_the_logit_scale() -> None:
    """Exactly: at rho = 1 every attention matrix gives the same; near it, to 1e-4."""
    table = run(
        sigma_a=[0.5, 4.0], rho=1 - 1e-9, shared_weights=True, dtype="float64", q="stationary"
    )
    for quantity in ("q", "q_minus_p"):
        a, b = (values(table, sigma_a=s, quantity=quantity, layer=3) for s in (0.5, 4.0))
        np.testing.assert_allclose(a, b, rtol=1e-4)


# -------------------------------------------------------------------- theory


@pytest.mark.parametrize("mode", ["conv", "renorm", "unit"])
@pytest.mark.parametrize("readout", ["independent", "common"])
def test_theory_meets_simulation(mode: str, readout: str) -> None:
    """Means over 60 networks of width 256, within 5 standard errors and 2 % for finite width."""
    wide = {"n_tokens": 8, "d_model": 256, "depth": 4, "n_networks": 60, "rho": 0.2, "mode": mode}
    wide |= GRADIENT | {"readout": readout, "sigma_w1": [1.0, 2.5], "sigma_a": 2.0}
    found = run(**wide)
    theory = schema(GeometrySettings).validate(geometry_theory.run(settings(**wide), CONTEXT))
    key = ["sigma_w1", "layer", "quantity"]
    by = found.groupby(key)["value"]
    compared = pd.DataFrame({"mean": by.mean(), "error": by.std() / np.sqrt(60)}).join(
        theory.set_index(key)["value"], how="inner"
    )
    assert len(compared) == 2 * 5 * len(GRADIENT["quantities"])
    scale = compared["value"].abs()
    for small, large in (("p", "q"), ("h", "g"), ("q_minus_p", "q")):  # differences of others
        index = compared.index.get_level_values("quantity") == small
        other = [(*k[:2], large) for k in compared.index[index]]
        scale[index] = compared.loc[other, "value"].abs().to_numpy()
    off = (compared["mean"] - compared["value"]).abs()
    assert (off < 5 * compared["error"] + 0.02 * scale).all(), compared


def test_theory_has_the_factors_of_the_simulation() -> None:
    change = {"alpha_attn": [0.2, 0.5], "depth_power": 0.5, "rho": [0.0, 0.9]} | GRADIENT
    theory = geometry_theory.run(settings(**change), CONTEXT)
    factors = ["grid", "alpha_attn", "alpha_ff", "sigma_w1", "q0", "rho0", "depth_power", "layer"]
    both = [
        table[table["quantity"] == "q"][factors].drop_duplicates().sort_values(factors)
        for table in (run(**change), theory)
    ]
    pd.testing.assert_frame_equal(*(table.reset_index(drop=True) for table in both))
    assert {"lambda_a", "lambda_g", "lambda_g_traj"} < set(theory["quantity"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sigma_w1": 80.0}, "sigma_w1 = 80 is too large for the quadrature of tanh: pass"),
        ({"sigma_a": 30.0}, "sigma_a = 30 is too large for the quadrature: pass sigma_a <="),
    ],
)
def test_what_the_theory_does_not_reach_is_named_to_its_grid(change: dict, says: str) -> None:
    with pytest.raises(UserError, match=rf"^experiments\.geometry\.grids\.some: {says}"):
        geometry_theory.run(settings(**change), CONTEXT)


def test_exponents_of_the_theory_table() -> None:
    """Attention only: lambda_a = log(1 - alpha^2) and lambda_g = 0. Mode unit has no exponents."""
    theory = geometry_theory.run(settings(alpha_attn=0.6, alpha_ff=0.0), CONTEXT)
    assert values(theory, quantity="lambda_a") == pytest.approx([np.log(1 - 0.36)])
    assert values(theory, quantity="lambda_g") == pytest.approx([0.0], abs=1e-12)
    unit = geometry_theory.run(settings(mode="unit"), CONTEXT)
    assert not set(unit["quantity"]) & {"lambda_a", "lambda_g"}
