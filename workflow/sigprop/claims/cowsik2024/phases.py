"""Claims of Cowsik et al. 2024 (arXiv 2403.02579) on phases and exponents in closed form.

That there is an order-chaos transition where the angle exponent vanishes is the paper's. The
formulas are re-derived, so most of these are exact statements about them that have no interval.
Unless said otherwise: mode conv, tanh, sigma_w1 = sigma_w2, sigma_V = 1; lambda_g is the coherent
mode at the collapsed fixed point.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from sigprop.analysis.data import choose, groups
from sigprop.analysis.stats import Array
from sigprop.claims.claim import Tables, claim
from sigprop.claims.rules import Part, Verdict, above, at_most, below, within, z_test

_POINTS = 61 * 61  # of a plane, at least
_DEPTHS = (64, 512)
_TOKENS, _SIGMA_A = 32, 1.0

# A number that is shown and decides nothing: the neutral element of `rules.together`.
_REPORTED: Verdict = "reproduced"


def _values(table: pd.DataFrame, what: str, **wanted: object) -> Array:
    """Values of the chosen rows; ValueError when there are none."""
    found = choose(table, **wanted)["value"].to_numpy(dtype=np.float64)
    if not found.size:
        raise ValueError(f"{what}: no rows with {wanted}")
    return found


@claim(
    "C08",
    place="Section 3.3; map re-derived here",
    statement="""The transition from collapse to a simplex is continuous and starts where
    lambda_a = 0.""",
    rule="""Infinitely many tokens, alpha in {0.3, 0.5, 0.7}: at the sigma_w where lambda_a = 0.01
    the stable rho* >= 0.9, and where lambda_a = -0.01 rho* = 1; both for the fixed point reached
    from the collapsed side and for the least rho of all stable fixed points.""",
    statistic="largest value, exact: no interval",
    why="""A continuous transition has its fixed point near 1 just beyond the edge and at 1 just
    before it; the least stable point is asked as well, to exclude a jump.""",
    tables=("phases",),
)
def _c08(tables: Tables) -> list[Part]:
    rows = choose(tables["phases"], grid="edge", mode="conv", n_tokens=np.inf)
    wide = rows.pivot(index=["alpha_attn", "sigma_w1"], columns="quantity", values="value")
    chaotic = wide[np.isclose(wide["lambda_a"], 0.01)]
    ordered = wide[np.isclose(wide["lambda_a"], -0.01)]
    if chaotic.empty or len(chaotic) != len(ordered):
        raise ValueError("edge: no fixed points at lambda_a = 0.01 and -0.01 for every alpha")
    both = ["rho_star", "rho_stable_least"]
    return [
        at_most("1 - rho* at lambda_a = 0.01", 1 - chaotic[both], 0.1),
        at_most("1 - rho* at lambda_a = -0.01", 1 - ordered[both], 0.0),
    ]


def _plane(tables: Tables, grid: str, quantities: tuple[str, ...]) -> pd.DataFrame:
    """One row per point of modes conv and renorm, at least 61 x 61 points each."""
    rows = choose(tables["phases"], grid=grid)
    rows = rows[rows["quantity"].isin(quantities)]
    wide = rows.pivot(
        index=["mode", "alpha_attn", "sigma_w1"], columns="quantity", values="value"
    ).reset_index()
    for mode in ("conv", "renorm"):
        found = int((wide["mode"] == mode).sum())
        if found < _POINTS:
            raise ValueError(f"{grid}, {mode}: {found} points, at least {_POINTS}")
    return wide


@claim(
    "C11",
    place="derived here",
    statement="""lambda_g exceeds lambda_a by log(1 + alpha_A^2 sigma_V^2 / (c_A q*)); lambda_g >= 0
    for tanh and lambda_g = 0 for relu.""",
    rule="""Modes conv and renorm, alpha_A = alpha_M in [0, 0.98], sigma_w in [1, 4], at least 61 x
    61 points each: lambda_g - lambda_a >= -1e-12; the identity holds to 1e-10, both for the
    formulas and for the linearized maps, forward and backward; tanh: lambda_g >= -1e-12; relu:
    |lambda_g| <= 1e-10.""",
    statistic="largest value, exact: no interval",
    why="""Identities between closed forms: 1e-10 and 1e-12 are rounding. Formulas and linearized
    maps were derived apart, so their agreement is a check.""",
    tables=("phases",),
)
def _c11(tables: Tables) -> Iterator[Part]:
    names = ("lambda_a", "lambda_g", "log_angle_factor", "log_backward_radius", "q_collapsed")
    for activation, grid in (("tanh", "diagonal"), ("relu", "diagonal_relu")):
        points = _plane(tables, grid, names)
        s = points["alpha_attn"] ** 2
        kept = np.where(points["mode"] == "conv", 1 - s, 1.0)  # c_A
        gap = np.log1p(s / (kept * points["q_collapsed"]))
        maps = points["log_backward_radius"] - points["log_angle_factor"]
        residuals = [maps - gap, points["lambda_g"] - points["lambda_a"] - gap]
        a, g = points["lambda_a"], points["lambda_g"]
        yield at_most(f"{activation}: lambda_a - lambda_g", a - g, 1e-12)
        yield at_most(f"{activation}: |lambda_g - lambda_a - gap|", np.abs(residuals), 1e-10)
        if activation == "tanh":
            yield at_most("tanh: -lambda_g", -g, 1e-12)
        else:
            yield at_most("relu: |lambda_g|", np.abs(g), 1e-10)


@claim(
    "C12",
    place="derived here",
    statement="With relu there is no chaotic phase.",
    rule="""Modes conv and renorm, sigma_w in [1, 4], at least 61 x 61 points each: the largest
    lambda_a at alpha >= 0.05 is below 0.""",
    statistic="largest value, exact: no interval",
    why="""A statement about a maximum over a plane, evaluated on a fine grid; at alpha = 0 the
    exponent is 0 in every phase, hence the lower end of alpha.""",
    tables=("phases",),
)
def _c12(tables: Tables) -> Iterator[Part]:
    points = _plane(tables, "diagonal_relu", ("lambda_a",))
    points = points[points["alpha_attn"] >= 0.05]
    for (mode,), rows in groups(points, "mode"):
        worst = float(rows["lambda_a"].max())
        what = f"{mode}: largest lambda_a, alpha >= 0.05"
        yield below(what, worst, worst, worst, 0.0, len(rows))


@claim(
    "C13",
    place="derived here",
    statement="For small alpha the edge of chaos is alpha_M^2 (G - B) = alpha_A^2 sigma_V^2.",
    rule="""Mode conv, alpha_A = alpha_M <= 0.1: at the exact critical sigma_w both sides agree
    within 2 %. Mode renorm is reported, not required.""",
    statistic="largest value, exact: no interval",
    why="""An expansion in alpha^2: at alpha = 0.1 the next term is of order 1 %, so 2 % tests the
    leading one.""",
    tables=("phases",),
)
def _c13(tables: Tables) -> Iterator[Part]:
    rows = choose(tables["phases"], quantity="balance", read_out="tied", activation="tanh")
    rows = rows[rows["alpha_attn"] <= 0.1 + 1e-9]
    for mode in ("conv", "renorm"):
        balance = _values(rows, "balance at alpha <= 0.1", mode=mode)
        what = f"{mode}: |alpha_M^2 (G - B) / (alpha_A^2 sigma_V^2) - 1|, alpha <= 0.1"
        part = at_most(what, np.abs(balance - 1), 0.02)
        if mode == "renorm":
            asked = "reported, not required"
            part = Part(what, part.value, part.low, part.high, asked, _REPORTED, part.n)
        yield part


@claim(
    "C14",
    place="derived here",
    statement="The largest alpha at which both exponents stay below 1/L falls as 1/sqrt(L).",
    rule="""Largest alpha with L max(|lambda_a|, |lambda_g|) <= 1: slope of ln alpha in ln L over
    L = 64 to 512 within -0.5 +- 0.02 at sigma_w = 1.2 and at 3.0.""",
    statistic="slope on logarithms, no interval",
    why="""A power of the depth is the slope; 0.02 tells -1/2 from any simple other power, and small
    depths, where the strength is near 1, are left out.""",
    tables=("phases",),
)
def _c14(tables: Tables) -> Iterator[Part]:
    rows = choose(tables["phases"], quantity="alpha_max", mode="conv")
    for sigma_w in (1.2, 3.0):
        here = choose(rows, sigma_w1=sigma_w).sort_values("depth")
        here = here[here["depth"].between(*_DEPTHS)]
        if len(here) < 3 or (here["depth"].min(), here["depth"].max()) != _DEPTHS:
            raise ValueError(f"alpha_max, sigma_w={sigma_w}: depths {list(here['depth'])}")
        slope = float(np.polyfit(np.log(here["depth"]), np.log(here["value"]), 1)[0])
        what = f"slope of ln alpha_max in ln L, sigma_w = {sigma_w:g}"
        yield within(what, slope, slope, slope, -0.5, 0.02, len(here))


@claim(
    "C15",
    place="derived here",
    statement="At finite n the softmax moments need the exact integral; e^v / n is not enough.",
    rule="""Gaussian logits, n = 32, every sigma_A and rho of the table: Monte Carlo means of S = E
    sum A^2, R = E sum A_i A_k and E sum A^3 within 4 standard errors of the integrals, standard
    errors at most 2 %; and e^v / n exceeds S by more than 10 % at v = 1, with the Monte Carlo
    interval.""",
    statistic="mean over networks against an exact expectation, in standard errors (z-test)",
    why="""The integrals are exact, so only sampling noise is allowed; 4 standard errors because
    dozens of means are compared. 10 % is an error that no one would call leading order.""",
    tables=("softmax_rows",),
)
def _c15(tables: Tables) -> Iterator[Part]:
    table = choose(tables["softmax_rows"], grid="gaussian", d_k=0, n_tokens=_TOKENS)
    for (sigma_a, rho), rows in groups(table, "sigma_a", "rho"):
        for quantity in ("s", "r", "a3"):
            drawn = _values(rows, quantity, quantity=quantity, source="simulation")
            exact = _values(rows, quantity, quantity=quantity, source="theory")
            what = f"{quantity.upper()}, sigma_A = {sigma_a:g}, rho = {rho:g}: drawn / integral"
            yield z_test(what, drawn, float(exact[0]), limit=4.0, precision=0.02)
    rows = choose(table, sigma_a=_SIGMA_A, rho=0.0)
    drawn = _values(rows, "s at v = 1", quantity="s", source="simulation")
    leading = _values(rows, "e^v / n", quantity="s_leading", source="theory")[0]
    mean, half = drawn.mean(), 1.96 * drawn.std(ddof=1) / np.sqrt(len(drawn))
    error, low, high = (float(leading / s - 1) for s in (mean, mean + half, mean - half))
    what = f"relative error of e^v / n for S at n = {_TOKENS}, v = 1"
    yield above(what, error, low, high, 0.10, len(drawn))
