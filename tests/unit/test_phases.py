"""The table of closed-form phase diagrams against independent computation, and its access."""

from typing import Any

import made_up_phases
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq

from sigprop.analysis import phases
from sigprop.analysis.data import choose
from sigprop.artifacts.errors import UserError
from sigprop.claims.claim import claims_of
from sigprop.claims.cowsik2024 import phases as chapter
from sigprop.claims.rules import together
from sigprop.experiments.context import Context
from sigprop.experiments.frames import schema
from sigprop.experiments.phases.settings import PhasesSettings
from sigprop.experiments.phases.theory import orthogonal_multiplier, run
from sigprop.experiments.settings import parse
from sigprop.theory import cowsik2024 as theory
from sigprop.theory import mlp_moments

PLANE = {
    "mode": ["conv", "renorm"],
    "alpha_attn": {"low": 0.0, "high": 0.98, "count": 5},
    "sigma_w": {"low": 1.0, "high": 4.0, "count": 4},
    "quantities": ["lambda_a", "lambda_g", "lambda_g_traj", "log_angle_factor"],
}
SETTINGS: dict[str, Any] = {
    "planes": {
        "diagonal": PLANE,
        "relu": PLANE | {"activation": "relu", "quantities": ["lambda_a", "log_backward_radius"]},
        "unit": PLANE | {"mode": "unit", "quantities": ["power_a"]},
        "variants": PLANE
        | {
            "mode": "conv",
            "variant": ["shaped", "centered", "deepscale", "sigma_reparam"],
            "quantities": ["lambda_a", "lambda_g"],
        },
        "strengths": {
            "alpha_attn": [0.0, 0.3],
            "alpha_ff": [0.2, 0.4, 0.9],
            "sigma_w": [1.3, 2.5],
            "quantities": "lambda_a",
        },
    },
    "lines": {
        "sigma_c": {"mode": ["conv", "renorm"], "read_out": ["tied", "unit"], "alpha": [0.1, 0.5]},
        "alpha_ff_c": {"sigma_w": [1.3, 2.5], "alpha": [0.0, 0.1, 0.9]},
    },
    "trainable": {"alpha_max": {"sigma_w": [1.2, 3.0], "depth": [64, 512]}},
    "fixed_points": {
        "simplex": {"alpha": [0.3, 0.5], "sigma_w": [1.5, 2.5], "n_tokens": ["inf", 64]}
    },
    "edges": {"edge": {"alpha": 0.5, "lambda_a": [0.01, -0.01]}},
    "maps": {"update": {"alpha": 0.5, "sigma_w": [1.2, 2.5], "n_tokens": ["inf"], "n_points": 21}},
    "scaling": {"deepscale": {"k": 1.0, "depth": [64, 512], "sigma_w": 3.0}},
}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    made = run(parse(PhasesSettings, SETTINGS), Context(table="phases", seed=1))
    return schema(PhasesSettings).validate(made)


def _moments(sigma: float) -> tuple[float, float]:
    """(E tanh^2, E tanh'^2) of sigma u by a plain Riemann sum."""
    u = np.linspace(-12, 12, 20001)
    weight = np.exp(-(u**2) / 2) / np.sqrt(2 * np.pi) * (u[1] - u[0])
    phi = np.tanh(sigma * u)
    return float(weight @ phi**2), float(weight @ (1 - phi**2) ** 2)


def _exponents(alpha_attn: float, alpha_ff: float, sigma: float, mode: str) -> tuple[float, float]:
    """(lambda_a, lambda_g) from the block's update of q and q - p near rho = 1, step by step."""
    keep_a, keep_m = (1 - alpha_attn**2, 1 - alpha_ff**2) if mode == "conv" else (1.0, 1.0)
    v2, d2 = _moments(sigma)
    q = 1.0
    for _ in range(20000 if mode == "conv" else 1):
        q1 = keep_a * q + alpha_attn**2
        out = keep_m * q1 + alpha_ff**2 * sigma**2 * v2
        q = out if mode == "conv" else 1.0
    slope = keep_m + alpha_ff**2 * sigma**4 * d2 / q1
    scale = out if mode == "renorm" else 1.0
    angle = np.log(keep_a * slope * q / out)
    gradient = np.log((keep_a + alpha_attn**2 / q) * slope / scale)
    return float(angle), float(gradient)


@pytest.mark.parametrize("mode", ["conv", "renorm"])
def test_plane_agrees_with_iterating_the_block(table: pd.DataFrame, mode: str) -> None:
    x, y, angle = phases.plane(table, "diagonal", "lambda_a", mode=mode)
    *_, gradient = phases.plane(table, "diagonal", "lambda_g", mode=mode)
    *_, mapped = phases.plane(table, "diagonal", "log_angle_factor", mode=mode)
    np.testing.assert_allclose(x, [1, 2, 3, 4])
    np.testing.assert_allclose(y, np.linspace(0, 0.98, 5))
    np.testing.assert_allclose(angle[0], 0, atol=1e-14)
    for i, j in ((1, 0), (2, 3), (4, 1)):
        expected = _exponents(y[i], y[i], x[j], mode)
        np.testing.assert_allclose((angle[i, j], gradient[i, j]), expected, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(mapped, angle, atol=1e-13)


def test_plane_of_unequal_strengths_has_them_as_axes(table: pd.DataFrame) -> None:
    x, y, angle = phases.plane(table, "strengths", "lambda_a", sigma_w1=2.5)
    np.testing.assert_allclose(x, [0, 0.3])
    np.testing.assert_allclose(y, [0.2, 0.4, 0.9])
    assert angle[2, 1] == pytest.approx(_exponents(0.3, 0.9, 2.5, "conv")[0], abs=1e-8)
    with pytest.raises(ValueError, match="not one value per point"):
        phases.plane(table, "strengths", "lambda_a")


def test_relu_is_never_chaotic_and_its_backward_radius_is_one(table: pd.DataFrame) -> None:
    rows = choose(table, grid="relu", quantity="lambda_a")
    assert rows.loc[rows["alpha_attn"] > 0, "value"].max() < 0
    radius = choose(table, grid="relu", quantity="log_backward_radius")["value"]
    np.testing.assert_allclose(radius, 0, atol=1e-12)


def test_unit_mode_has_the_power_of_the_balance(table: pd.DataFrame) -> None:
    x, y, power = phases.plane(table, "unit", "power_a")
    assert y.min() > 0  # no power where nothing moves
    for j, sigma in enumerate(x):
        v2, d2 = _moments(sigma)
        b, g = sigma**2 * v2, sigma**4 * d2
        np.testing.assert_allclose(power[:, j], (g - b - 1) / (1 + b), rtol=1e-8)


def test_variants(table: pd.DataFrame) -> None:
    for variant in ("shaped", "centered"):  # attention is neutral for the angle
        x, _, angle = phases.plane(table, "variants", "lambda_a", variant=variant)
        *_, gradient = phases.plane(table, "variants", "lambda_g", variant=variant)
        np.testing.assert_allclose(angle, gradient, atol=1e-13)
    rows = choose(table, grid="variants", variant="deepscale", quantity="lambda_a")
    v2 = np.array([_moments(sigma)[0] for sigma in rows["sigma_w1"]])
    np.testing.assert_allclose(rows["sigma_w2"] ** 2 * v2, 1, rtol=1e-8)
    # unit branches in mode conv: q* = q1 = 1 and lambda_a = log c_A (c_M + m G)
    at = (rows["alpha_attn"] == 0.49) & (rows["sigma_w1"] == 3)
    m, (b, d2) = 0.49**2, _moments(3.0)
    expected = np.log((1 - m) * (1 - m + m * 9 * d2 / b))
    assert rows.loc[at, "value"].item() == pytest.approx(expected, rel=1e-8)
    half = choose(table, grid="variants", variant="sigma_reparam")
    assert (half["sigma_v"] == 0.5).all() and (half["sigma_a"] == 0.25).all()
    np.testing.assert_allclose(sorted(set(half["sigma_w1"])), x)


def test_critical_lines(table: pd.DataFrame) -> None:
    for mode in ("conv", "renorm"):
        rows = choose(table, grid="sigma_c", mode=mode, read_out="tied")
        alpha, sigma_c = phases.line(rows, "sigma_c", "alpha_attn")
        for a, found in zip(alpha, sigma_c, strict=True):
            expected = brentq(lambda s, a=a, m=mode: _exponents(a, a, s, m)[0], 1.2, 4)
            assert found == pytest.approx(expected, abs=1e-6)
        _, balance = phases.line(rows, "balance", "alpha_attn")
        v2, d2 = _moments(sigma_c[1])
        assert balance[1] == pytest.approx(sigma_c[1] ** 2 * (sigma_c[1] ** 2 * d2 - v2), rel=1e-7)
        _, leading = phases.line(rows, "sigma_c_leading", "alpha_attn")
        np.testing.assert_allclose(leading, 1.7958, atol=1e-4)
    unit = choose(table, grid="sigma_c", mode="conv", read_out="unit")
    np.testing.assert_allclose(phases.line(unit, "sigma_c", "alpha_attn")[1][1], 4.0653, atol=1e-4)
    # alpha_ff at the edge: none above 1, and no row at alpha_attn = 0, where every one would do
    edge = choose(table, quantity="alpha_ff_c", sigma_w1=2.5)
    assert list(edge["alpha_attn"]) == [0.1]
    assert _exponents(0.1, edge["value"].item(), 2.5, "conv")[0] == pytest.approx(0, abs=1e-9)


def test_trainable_alpha_meets_its_budget_and_scaling_is_bounded(table: pd.DataFrame) -> None:
    for row in choose(table, quantity="alpha_max").itertuples():
        found = _exponents(row.value, row.value, row.sigma_w1, "conv")
        assert row.depth * max(np.abs(found)) == pytest.approx(1, abs=1e-6)
    rows = choose(table, grid="deepscale", quantity="lambda_a").sort_values("depth")
    scaled = (rows["depth"] * rows["value"]).to_numpy()
    b, d2 = _moments(3.0)
    np.testing.assert_allclose(scaled, 9 * d2 / b - 2, atol=0.1)  # k [(G - B) - 1] as L -> infinity


def test_fixed_points_are_those_of_the_map(table: pd.DataFrame) -> None:
    rows = choose(table, grid="simplex", quantity="rho_star", alpha_attn=0.5, sigma_w1=2.5)
    found = dict(zip(rows["n_tokens"], rows["value"], strict=True))
    assert found[np.inf] == pytest.approx(0.347, abs=1e-3)
    assert found[64.0] == pytest.approx(0.368, abs=1e-3)
    sigma = choose(table, quantity="sigma_orthogonal")
    np.testing.assert_allclose(sigma["value"], [2.698, 2.823], atol=1e-3)  # alpha 0.3, 0.5
    rho, block = phases.line(choose(table, grid="update", sigma_w1=2.5), "rho_block", "rho")
    marked = phases.fixed_points(rho, block)
    assert [stable for _, stable in marked] == [False, True, False]
    assert marked[1][0] == pytest.approx(found[np.inf], abs=5e-3)
    collapse = phases.line(choose(table, grid="update", sigma_w1=1.2), "rho_block", "rho")
    assert phases.fixed_points(*collapse) == [(0.0, False), (1.0, True)]


def test_orthogonal_multiplier_is_the_slope_of_the_block_at_zero() -> None:
    for mode in ("conv", "renorm"):
        architecture = theory.tied(0.5, 0.7, 2.5, n_tokens=np.inf, mode=mode)
        q = np.asarray(1.0)
        if mode == "conv":
            for _ in range(100):
                q, _ = theory.block_map(architecture, q, 0.0)
        # one-sided, as rho < 0 does not exist at n = inf; extrapolated in the step
        ratios = []
        for h in (1e-4, 2e-4):
            after = theory.block_map(architecture, q, h * q)
            ratios.append(float(after[1] / after[0]) / h)
        slope = 2 * ratios[0] - ratios[1]
        assert float(orthogonal_multiplier(architecture)) == pytest.approx(slope, rel=1e-6)


def test_edges(table: pd.DataFrame) -> None:
    rows = choose(table, grid="edge")
    wide = rows.pivot(index="sigma_w1", columns="quantity", values="value").sort_index()
    np.testing.assert_allclose(wide["lambda_a"], [-0.01, 0.01], atol=1e-10)
    np.testing.assert_allclose(wide["rho_star"], [1, 0.9707], atol=1e-4)
    np.testing.assert_allclose(wide["rho_stable_least"], wide["rho_star"], atol=1e-8)


@pytest.mark.parametrize(
    ("group", "change", "message"),
    [
        ("diagonal", {"quantities": ["power_a"]}, "does not exist in mode"),
        ("unit", {"quantities": ["lambda_a"]}, "does not exist in mode"),
        ("variants", {"mode": "renorm"}, "sets the second MLP matrix itself"),
        ("diagonal", {"alpha_attn": 1.0}, "less than or equal to 0.999"),
        ("diagonal", {"sigma_w": {"low": 3.0, "high": 1.0, "count": 3}}, "must lie below high"),
    ],
)
def test_settings_that_do_not_fit(group: str, change: dict[str, Any], message: str) -> None:
    plane = SETTINGS["planes"][group] | change
    with pytest.raises(UserError, match=message):
        parse(PhasesSettings, {"planes": {"one": plane}})


@pytest.mark.parametrize(
    ("group", "grid"),
    [
        ("lines", {"alpha": 0.0}),
        ("lines", {"alpha": [0.8, 0.9], "sigma_w": 1.2}),
        ("lines", {"alpha": 0.99, "read_out": "unit"}),
    ],
)
def test_a_grid_that_straddles_no_critical_line_is_one_line(
    group: str, grid: dict[str, Any]
) -> None:
    settings = parse(PhasesSettings, {group: {"mine": grid}})
    says = rf"^experiments\.phases\.{group}\.mine: its settings straddle no critical line, .* use"
    with pytest.raises(UserError, match=says) as error:
        run(settings, Context(table="phases", seed=1))
    assert "\n" not in str(error.value)


def test_what_the_theory_refuses_is_named_to_its_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quadrature that does not converge, here at too wide a step."""
    monkeypatch.setattr(
        "sigprop.theory.cowsik2024.moments_at_one",
        lambda sigma, activation: mlp_moments.moments_at_one(sigma, activation, spacing=1.5),
    )
    plane = {"alpha_attn": 0.5, "sigma_w": 3.0, "quantities": "lambda_a"}
    with pytest.raises(
        UserError, match=r"^experiments\.phases\.planes\.mine: spacing = 1\.5 leaves"
    ):
        run(parse(PhasesSettings, {"planes": {"mine": plane}}), Context(table="phases", seed=1))


def test_grids_need_distinct_names() -> None:
    with pytest.raises(UserError, match="names two grids"):
        parse(PhasesSettings, SETTINGS | {"planes": {"edge": PLANE}})
    with pytest.raises(UserError, match="no grid"):
        parse(PhasesSettings, {})
    with pytest.raises(UserError, match="use k below depth"):
        scaling = {"one": {"k": 8.0, "depth": [8], "sigma_w": 1.0}}
        parse(PhasesSettings, {"scaling": scaling})


@pytest.mark.parametrize("claim", claims_of(chapter), ids=lambda claim: claim.id)
def test_claims_hold_and_fail_on_made_up_tables(claim: Any) -> None:
    assert together(claim.check(made_up_phases.HOLDS[claim.id](None))) == "reproduced"
    failing = {k: v for k, v in made_up_phases.FAILS.items() if k.startswith(claim.id)}
    assert failing
    for name, make in failing.items():
        assert together(claim.check(make(None))) == "not reproduced", name


def test_claims_on_planes_need_the_whole_plane() -> None:
    check = {claim.id: claim.check for claim in claims_of(chapter)}
    with pytest.raises(ValueError, match="points, at least"):
        list(check["C11"](made_up_phases.planes(count=9)))
