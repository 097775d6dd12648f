"""Regressions on final losses against independent computations, and the claims made of them."""

import made_up_trainability
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from sigprop.analysis import trainability as fit
from sigprop.claims.claim import claims_of
from sigprop.claims.cowsik2024 import trainability
from sigprop.claims.ledger import evaluate

BY_ID = {claim.id: claim for claim in claims_of(trainability)}


@pytest.mark.parametrize("name", made_up_trainability.HOLDS)
def test_a_claim_that_holds_is_reproduced(name: str) -> None:
    record = evaluate(BY_ID[name], made_up_trainability.HOLDS[name](None), "laptop")
    assert record.verdict == "reproduced", record
    for part in record.parts:
        assert part.low <= part.high and part.n >= 1


@pytest.mark.parametrize("name", made_up_trainability.FAILS)
def test_a_claim_that_fails_is_not_reproduced(name: str) -> None:
    tables = made_up_trainability.FAILS[name](None)
    record = evaluate(BY_ID[name.split()[0]], tables, "laptop")
    assert record.verdict == "not reproduced", record


def test_every_claim_has_both() -> None:
    failing = {name.split()[0] for name in made_up_trainability.FAILS}
    assert set(BY_ID) == set(made_up_trainability.HOLDS) == failing


@pytest.mark.parametrize("name", ["C16", "C17", "C18"])
def test_too_few_configurations_are_not_run(name: str) -> None:
    record = evaluate(BY_ID[name], made_up_trainability.trainability(n=39), "laptop")
    assert record.verdict == "not run"
    assert "39 configurations, at least 40" in record.reason


def test_c19_without_points_at_the_edge_is_not_run() -> None:
    tables = made_up_trainability.trainability()
    edge = tables["train_edge"]
    growing = edge["quantity"] == "lambda_g"
    tables["train_edge"] = edge.assign(value=edge["value"].where(~growing, 0.01))
    record = evaluate(BY_ID["C19"], tables, "laptop")
    assert record.verdict == "not run" and "0 configurations, at least 3" in record.reason


def test_c19_reads_the_edge_alone() -> None:
    """Whatever the hypercube says; the ratio is that of the two medians."""
    tables = {"train_edge": made_up_trainability.trainability()["train_edge"]}
    part = evaluate(BY_ID["C19"], tables, "laptop").parts[0]
    points = fit.configurations(tables["train_edge"], mode="conv", depth=16)
    loss = points.groupby(points["l_g"] >= 7)["test_loss"].median()
    assert part.value == pytest.approx(loss[True] / loss[False]) and part.n == 16


def test_c20_without_a_failure_is_inconclusive() -> None:
    tables = made_up_trainability.trainability(depth_loss=lambda points: 0.1 + 0 * points["l_a"])
    assert evaluate(BY_ID["C20"], tables, "laptop").verdict == "inconclusive"


def sample(n: int = 40, k: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n, k)) * ([3.0, 0.5, 7.0][:k])
    return z, np.sin(z[:, 0]) + z[:, -1] + 0.1 * rng.normal(size=n)


def test_neighbours_by_hand() -> None:
    z, y = sample()
    expected = []
    for i in range(len(y)):
        others = np.delete(np.arange(len(y)), i)
        scale = z[others].std(0)
        order = sorted(others, key=lambda j: np.linalg.norm((z[j] - z[i]) / scale))
        expected.append(np.mean(y[order[:3]]))
    np.testing.assert_allclose(fit.predict_neighbours(z, y), expected)
    with pytest.raises(ValueError, match="4 configurations, at least 5"):
        fit.predict_neighbours(z[:4], y[:4])


def test_linear_leave_one_out_by_refitting() -> None:
    z, y = sample()
    for x in (fit.hinge(z), fit.quadratic(z)):
        expected = []
        for i in range(len(y)):
            a = np.column_stack([np.ones(len(y) - 1), np.delete(x, i, 0)])
            coefficients = np.linalg.lstsq(a, np.delete(y, i), rcond=None)[0]
            expected.append(np.append(1, x[i]) @ coefficients)
        np.testing.assert_allclose(fit.predict_linear(x, y), expected, rtol=1e-8)
    with pytest.raises(ValueError, match="do not determine 3 coefficients"):
        fit.predict_linear(np.column_stack([z[:, 0], z[:, 0]]), y)


def test_transfer_by_hand() -> None:
    z, y = sample()
    new = sample(7)[0] * 0.9
    expected = []
    for point in new:
        squares = (((z - point) / z.std(0)) ** 2).sum(1)
        weights = np.exp(-squares / (2 * 0.15**2))
        expected.append((weights * y).sum() / weights.sum())
    np.testing.assert_allclose(fit.predict_transfer(z, y, new), expected, rtol=1e-8)
    nearest = y[np.linalg.norm((z - 1e4) / z.std(0), axis=1).argmin()]
    assert fit.predict_transfer(z, y, np.full((1, 2), 1e4)) == pytest.approx(nearest)


def test_r_squared_and_its_interval() -> None:
    """Against the textbook; the interval covers about as often as it says."""
    _, y = sample()
    f = y + 0.3 * np.cos(10 * y)
    found = fit.r_squared(y, f)
    assert found.value == pytest.approx(1 - ((y - f) ** 2).mean() / y.var())
    assert found.low < found.value < found.high
    gain = fit.r_squared(y, f, np.full_like(y, y.mean()))
    assert gain.value == pytest.approx(found.value)
    rng, covered = np.random.default_rng(5), 0
    for _ in range(100):
        truth = rng.normal(size=60)
        interval = fit.r_squared(truth, truth + 0.5 * rng.normal(size=60))  # R^2 = 0.75
        covered += interval.low <= 0.75 <= interval.high
    assert covered >= 85


def test_permutation_null() -> None:
    z, y = sample()
    p, null = fit.permutation_null(z, y)
    assert p == pytest.approx(1 / (1 + fit.PERMUTATIONS)) and null < 0.2
    rng = np.random.default_rng(2)
    p_values = [fit.permutation_null(z, rng.normal(size=len(y)))[0] for _ in range(20)]
    assert stats.kstest(p_values, "uniform").pvalue > 0.001


def test_auc_and_rank_correlation() -> None:
    score = np.array([1.0, 4.0, 2.0, 3.0])
    points = pd.DataFrame({"test_loss": [0.1, 1.0, 0.8, 0.2]})
    assert fit.failure_auc(points, score).value == pytest.approx(3 / 4)
    rng = np.random.default_rng(4)
    many = pd.DataFrame({"test_loss": rng.random(50).round(1) * 1.5})
    ties = (many["test_loss"].to_numpy() + rng.normal(size=50)).round(1)
    failed = many["test_loss"].to_numpy() > fit.FAILED
    auc, rank = fit.failure_auc(many, ties), fit.rank_correlation(many, ties)
    u = stats.mannwhitneyu(ties[failed], ties[~failed]).statistic
    assert auc.value == pytest.approx(u / failed.sum() / (~failed).sum())
    assert rank.value == pytest.approx(stats.spearmanr(many["test_loss"], ties).statistic)
    for found in (auc, rank):
        assert found.low < found.value < found.high
    with pytest.raises(ValueError, match="0 of 4 configurations failed"):
        fit.failure_auc(points * 0, score)


def test_crossing() -> None:
    points = pd.DataFrame(
        {
            "alpha_attn": [0.1, 0.3, 0.2, 0.4],
            "depth": 8,
            "l_a": [-1.0, -3.0, -2.0, -4.0],
            "test_loss": [0.05, 1.25, 0.25, 0.1],
        }
    )
    found = fit.crossing(points)
    assert (found.depth, found.alpha, found.l_a) == (8, pytest.approx(0.25), pytest.approx(-2.5))
    assert np.isnan(fit.crossing(points[points["alpha_attn"] < 0.25]).alpha)


def test_configurations_have_features() -> None:
    table = made_up_trainability.trainability()["train_lhs"]
    points = fit.configurations(table, mode="conv", depth=16)
    lambda_a, lambda_g = made_up_trainability.exponents(
        points["alpha_attn"], points["alpha_ff"], points["sigma_w"]
    )
    np.testing.assert_allclose(points["l_a"], np.clip(16 * lambda_a, -30, 30))
    np.testing.assert_allclose(points["l_g"], 16 * lambda_g)
    assert fit.features(points, "raw").shape == (96, 3)  # sigma_v, sigma_a do not vary
    with pytest.raises(ValueError, match="depth 12, seed 0: no configurations"):
        fit.configurations(table, mode="conv", depth=12)
