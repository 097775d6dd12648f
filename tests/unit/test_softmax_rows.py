"""Random softmax rows: the law of the logits, the statistics of a row, and their theory."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from sigprop.analysis import phases
from sigprop.analysis.data import choose
from sigprop.artifacts.errors import UserError
from sigprop.experiments.context import Context
from sigprop.experiments.frames import schema
from sigprop.experiments.settings import parse
from sigprop.experiments.softmax_rows import theory as softmax_rows_theory
from sigprop.experiments.softmax_rows.settings import SoftmaxRowsSettings
from sigprop.experiments.softmax_rows.simulation import (
    attention_logits,
    row_statistics,
    run,
)

GRID = {"n_tokens": [6, 8], "sigma_a": [1.0, 2.0], "rho": [-0.1, 0.0, 0.5]}
GRID |= {"n_rows": 4, "n_batches": 40, "batch_size": 60}
SETTINGS: dict[str, Any] = {
    "grids": {
        "gaussian": GRID,
        "layer": GRID | {"n_tokens": 8, "d_k": [16, 512], "rho": 0.5},
        "random_energy": {"n_tokens": [16, 256], "beta": [1.0, 2.0], "n_rows": 2}
        | {"n_batches": 40, "batch_size": 10},
    }
}


@pytest.fixture(scope="module")
def tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    settings = parse(SoftmaxRowsSettings, SETTINGS)
    context = Context(table="softmax_rows", seed=1)
    return (
        schema(SoftmaxRowsSettings).validate(run(settings, context)),
        schema(SoftmaxRowsSettings).validate(softmax_rows_theory.run(settings, context)),
    )


def test_logits_have_the_covariance_of_the_tokens() -> None:
    n, sigma_a, rho, draws = 4, 1.5, 0.3, 200_000
    rng = np.random.default_rng(0)
    a = attention_logits(rng.standard_normal((draws, 2, n)), sigma_a, rho).reshape(draws, -1)
    rows = np.where(np.eye(2) > 0, 1, rho)
    columns = np.where(np.eye(n) > 0, 1, rho)
    expected = sigma_a**2 * np.kron(rows, columns)
    # standard error of a covariance: at most sqrt(2 / draws) of the variance; 5 of them
    np.testing.assert_allclose(np.cov(a.T), expected, atol=5 * sigma_a**2 * (2 / draws) ** 0.5)


def test_row_statistics_against_jacobians_row_by_row() -> None:
    logits = np.random.default_rng(1).normal(size=(2, 3, 5)) * 2
    for matrix, found in zip(logits, row_statistics(logits), strict=True):
        a = np.exp(matrix) / np.exp(matrix).sum(1, keepdims=True)
        jacobians = [np.diag(row) - np.outer(row, row) for row in a]
        pairs = [(0, 1), (0, 2), (1, 2)]
        expected = [
            np.mean([row @ row for row in a]),
            np.mean([a[i] @ a[k] for i, k in pairs]),
            np.mean([(row**3).sum() for row in a]),
            np.mean([(j**2).sum() for j in jacobians]),
            np.mean([np.trace(jacobians[i] @ jacobians[k]) for i, k in pairs]),
            np.mean([-(row @ np.log(row)) for row in a]),
        ]
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_row_statistics_do_not_overflow() -> None:
    found = row_statistics(np.array([[[1000.0, 0.0], [-1000.0, 0.0]]]))
    np.testing.assert_allclose(found, [[1, 0, 1, 0, 0, 0]], atol=1e-12)


@pytest.mark.parametrize("quantity", ["s", "r", "a3", "tq", "tr", "entropy"])
def test_gaussian_rows_agree_with_the_integrals(
    tables: tuple[pd.DataFrame, pd.DataFrame], quantity: str
) -> None:
    drawn, expected = (choose(t, quantity=quantity) for t in tables)
    keys = ["grid", "n_tokens", "sigma_a", "rho"]
    drawn, expected = drawn[drawn["d_k"] == 0], expected[expected["d_k"] == 0]
    found = drawn.groupby(keys)["value"].agg(["mean", "sem"])
    z = (found["mean"] - expected.set_index(keys)["value"]) / found["sem"]
    assert len(z) == 16 and z.abs().max() < 4.5  # 40 batches: chance below 1 % for 16 values


def _layer(n: int, d: int, d_k: int, sigma_a: float, rho: float, draws: int) -> np.ndarray:
    """S of query-key layers with explicit tokens and weights, (draws,)."""
    rng = np.random.default_rng(2)
    gram = np.full((n, n), rho) + (1 - rho) * np.eye(n)
    values, vectors = np.linalg.eigh(gram)
    frame = np.linalg.qr(rng.standard_normal((d, n)))[0].T  # (n, d), orthonormal rows
    x = np.sqrt(d) * vectors @ np.diag(np.sqrt(values)) @ vectors.T @ frame
    np.testing.assert_allclose(x @ x.T, d * gram, atol=1e-9)
    found = []
    for _ in range(draws):
        q, k = rng.standard_normal((2, d, d_k)) * np.sqrt(sigma_a / np.sqrt(d * d_k))
        a = np.exp(x @ q @ (x @ k).T / np.sqrt(d))
        a /= a.sum(1, keepdims=True)
        found.append((a**2).sum(1).mean())
    return np.array(found)


def test_layer_rows_have_the_law_of_a_real_layer(
    tables: tuple[pd.DataFrame, pd.DataFrame],
) -> None:
    rows = choose(tables[0], grid="layer", d_k=16, sigma_a=2.0, quantity="s")["value"]
    real = _layer(8, 24, 16, 2.0, 0.5, 1500)
    error = np.hypot(rows.sem(), real.std() / len(real) ** 0.5)
    assert abs(rows.mean() - real.mean()) < 4 * error and error < 0.01 * real.mean()


def test_random_energy_scale_and_limit(tables: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    rows = choose(tables[1], grid="random_energy", beta=2.0)
    np.testing.assert_allclose(rows["sigma_a"] ** 2, 4 * np.log(rows["n_tokens"]))
    limits = choose(rows, quantity="s_limit")["value"]
    np.testing.assert_allclose(limits, 1 - np.sqrt(0.5))
    exact = choose(rows, quantity="s").sort_values("n_tokens")["value"]
    np.testing.assert_allclose(exact, [0.5180, 0.4362], atol=1e-4)


def test_settings_share_random_numbers_and_batches_do_not(
    tables: tuple[pd.DataFrame, pd.DataFrame],
) -> None:
    rows = choose(tables[0], grid="gaussian", n_tokens=8, rho=0.0, quantity="s")
    wide = rows.pivot(index="seed", columns="sigma_a", values="value")
    assert wide.corr().loc[1.0, 2.0] > 0.5
    assert wide[1.0].nunique() == 40


def test_means_are_by_sigma_a_or_beta(tables: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    simulated = tables[0]
    rows = choose(simulated, grid="gaussian", n_tokens=8, rho=0.0)
    x, mean, half = phases.means(rows, "s")
    np.testing.assert_allclose(x, [1, 2])
    values = choose(rows, quantity="s", sigma_a=2.0)["value"]
    assert mean[1] == pytest.approx(values.mean())
    assert half[1] == pytest.approx(1.96 * values.std(ddof=1) / 40**0.5)
    x, *_ = phases.means(choose(simulated, grid="random_energy", n_tokens=16), "s")
    np.testing.assert_allclose(x, [1, 2])
    with pytest.raises(ValueError, match="no simulated rows"):
        phases.means(rows, "nothing")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beta": 1.0}, "sigma_a or beta must be given, and not both"),
        ({"sigma_a": None}, "sigma_a or beta must be given, and not both"),
        ({"rho": -0.5}, "is below -1/"),
        ({"n_tokens": 2, "rho": -0.9, "sigma_a": 9.0}, r"logits of variance 153\.9, for which"),
        ({"sigma_a": None, "beta": 3.6, "n_tokens": 1_000_000, "rho": 0.0}, "above 12"),
    ],
)
def test_settings_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(SoftmaxRowsSettings, {"grids": {"one": GRID | change}})
