"""Made-up tables for the claims on simulated token geometry: where each holds, where not."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from sigprop.analysis.geometry import TANH
from sigprop.claims.cowsik2024 import geometry as claims

Tables = dict[str, pd.DataFrame]
NETWORKS = 40
D_MODEL = 1024
RATES = dict(zip(TANH, (-0.13, -0.29, -0.8, 0.08, 0.17, 0.3, -0.17, 0.11), strict=True))


def _rows(quantity: str, layers: list[int], values: np.ndarray, **factors: object) -> pd.DataFrame:
    """Simulation, values (networks, layers)."""
    seed, layer = (index.reshape(-1) for index in np.indices(values.shape))
    frame = pd.DataFrame({"seed": seed, "layer": np.array(layers)[layer]})
    frame = frame.assign(value=values.reshape(-1), quantity=quantity, source="simulation", item=0)
    return frame.assign(**{"d_model": D_MODEL} | factors)


def _theory(quantity: str, layers: list[int], values: object, **factors: object) -> pd.DataFrame:
    frame = pd.DataFrame({"layer": layers, "value": np.broadcast_to(values, len(layers))})
    frame = frame.assign(seed=np.nan, quantity=quantity, source="theory", item=0)
    return frame.assign(**{"d_model": D_MODEL} | factors)


def _noise(shape: tuple[int, ...], size: float, seed: int = 0) -> np.ndarray:
    """Noise of mean zero over networks, the first axis."""
    noise = size * np.random.default_rng(seed).standard_normal(shape)
    return noise - noise.mean(0)


def paths(*, cosine: float = 0.0, norm: Mapping[str, float] | None = None) -> Tables:
    """Theory plus deviations; `norm` by grid name, relative."""
    layers = [0, 1, 2, 3]
    expected_q, expected_c = np.array([1, 1.2, 1.3, 1.4]), np.array([0, 0.2, 0.4, 0.5])
    parts = []
    for grid in claims._CONV:
        q = expected_q * (1 + (norm or {}).get(grid, 0.0) * np.array([0, 1, 1, 1]))
        p = q * (expected_c + cosine * np.array([0, 0, 1, 1]))
        for name, mean, exact in (("q", q, expected_q), ("p", p, expected_q * expected_c)):
            values = mean + _noise((NETWORKS, 4), 0.01)
            parts += [
                _rows(name, layers, values, grid=grid),
                _theory(name, layers, exact, grid=grid),
            ]
    return {"geometry": pd.concat(parts, ignore_index=True)}


def _growth(
    rate: float, exact: float, quantity: str, name: str, layers: list[int], **factors: object
) -> pd.DataFrame:
    """Networks whose mean of `quantity` grows at `rate` per block, over q = 1."""
    span = layers[-1] - layers[0]
    spread = np.exp(_noise((NETWORKS, 1), 0.02, seed=len(factors)))
    spread /= spread.mean()
    values = np.concatenate([np.ones_like(spread), np.exp(rate * span) * spread], 1)
    return pd.concat(
        [
            _rows(quantity, layers, values, **factors),
            _rows("q", layers, np.ones((NETWORKS, 2)), **factors),
            _theory(name, layers[-1:], exact, **factors),
        ],
        ignore_index=True,
    )


def exponents(
    *,
    angle: float = 0.0,
    gradient: float = 0.0,
    attention: float = 0.0,
    by_tokens: float = 0.0,
) -> Tables:
    """Exponents off by these amounts; `by_tokens` makes lambda_a depend on n."""
    layers = [3, 11]
    parts = []
    for grid, rate in RATES.items():
        factors = {"grid": grid}
        parts.append(_growth(rate + angle, rate, "q_minus_p", "lambda_a", layers, **factors))
        grown = _growth(-0.1 - gradient, 0.1, "g", "lambda_g", layers, **factors)
        parts.append(grown[grown["quantity"] != "q"])
    for alpha in (0.3, 0.5, 0.7):
        exact = float(np.log(1 - alpha**2))
        factors = {"grid": "attention_only", "alpha_attn": alpha}
        rate = exact + attention
        parts.append(_growth(rate, exact, "q_minus_p", "lambda_a", layers, **factors))
    for i, sigma_a in enumerate((0.5, 1.0, 4.0)):
        factors = {"grid": "logit_scale", "sigma_a": sigma_a}
        parts.append(_growth(0.169, 0.169, "q_minus_p", "lambda_a", layers, **factors))
        factors = {"grid": "tokens", "n_tokens": 8 * 2**i}
        rate = 0.169 + by_tokens * i
        parts.append(_growth(rate, 0.169, "q_minus_p", "lambda_a", layers, **factors))
    return {"geometry_exponents": pd.concat(parts, ignore_index=True)}


def phases(*, wrong: int = 0) -> Tables:
    """Twenty settings of both signs, of which `wrong` behave as if they had the other one."""
    parts = []
    for i in range(20):
        exact = 0.2 if i % 2 else -0.2
        factors = {"grid": "conv", "alpha_attn": 0.04 * i, "sigma_w1": 1.0}
        rate = -exact if i < wrong else exact
        parts.append(_growth(rate, exact, "q_minus_p", "lambda_a", [4, 12], **factors))
    return {"geometry_phases": pd.concat(parts, ignore_index=True)}


def ends(*, ordered: float = 0.99, off: float = 0.0, spread: float = 0.02) -> Tables:
    """Cosines after 60 blocks, ordered and chaotic, and the spread of single pairs."""
    parts = []
    for sigma, exact, mean, exponent in (
        (1.2, 0.995, ordered, -0.3),
        (2.5, 0.35, 0.35 + off, 0.17),
    ):
        for start in (0.05, 0.95):
            factors = {"grid": "transition", "sigma_w1": sigma, "rho0": start}
            values = mean + _noise((NETWORKS, 1), 0.002)
            parts += [
                _rows("p", [60], values, **factors),
                _rows("q", [60], np.ones((NETWORKS, 1)), **factors),
                _theory("p", [60], exact, **factors),
                _theory("q", [60], 1.0, **factors),
                _theory("lambda_a", [60], exponent, **factors),
            ]
    cosines = 0.3 + spread * np.random.default_rng(1).standard_normal((NETWORKS, 60))
    single = _rows("pair_cosine", [48] * 60, cosines, grid="chaotic")
    return {
        "geometry_fixed_points": pd.concat(parts, ignore_index=True),
        "geometry_distributions": single,
    }


def gradients(*, off: float = 0.0) -> Tables:
    """Gradients over 24 blocks that grow `off` faster than theory."""
    parts = []
    for grid in (*claims._CONV, "unit"):
        grown = _growth(-0.3 - off, 0.3, "g", "lambda_g_traj", [0, 24], grid=grid)
        parts.append(grown[grown["quantity"] != "q"])
    return {"geometry_gradients": pd.concat(parts, ignore_index=True)}


HOLDS = {
    "C01": lambda _: paths(cosine=0.005),
    "C02": lambda _: paths(norm={"chaotic": 0.01, "ordered": 0.06}),
    "C03": lambda _: exponents(attention=0.003),
    "C04": lambda _: exponents(),
    "C05": lambda _: phases(wrong=1),
    "C06": lambda _: exponents(by_tokens=0.002),
    "C07": lambda _: ends(off=0.02),
    "C09": lambda _: gradients(off=0.005),
    "C10": lambda _: exponents(),
}
FAILS = {
    "C01": lambda _: paths(cosine=0.05),
    "C02 chaotic": lambda _: paths(norm={"chaotic": 0.06}),
    "C02 ordered": lambda _: paths(norm={"attention_only": -0.2}),
    "C03": lambda _: exponents(attention=0.03),
    "C04": lambda _: exponents(angle=0.06),
    "C04 small but certain": lambda _: exponents(angle=0.01),
    "C05": lambda _: phases(wrong=4),
    "C06": lambda _: exponents(by_tokens=0.03),
    "C07 no line": lambda _: ends(ordered=0.9),
    "C07 other simplex": lambda _: ends(off=0.1),
    "C07 no simplex": lambda _: ends(spread=0.2),
    "C09": lambda _: gradients(off=0.05),
    "C10": lambda _: exponents(gradient=0.08),
}
