"""Forward measurements against naive loops, and their invariances."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sigprop.instruments.propagation import attention_entropy, measure, rho_ratio


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def naive(x: np.ndarray) -> dict[str, float]:
    n = len(x)
    cosines, inner = [], 0.0
    for i in range(n):
        for j in range(n):
            inner += float(x[i] @ x[j])
            if i != j:
                cosines.append(x[i] @ x[j] / (np.linalg.norm(x[i]) * np.linalg.norm(x[j])))
    total = sum(float(token @ token) for token in x)
    mean = sum(x) / n
    residual = sum(float((token - mean) @ (token - mean)) for token in x)
    return {
        "cos_mean": float(np.mean(cosines)),
        "one_minus_cos": 1 - float(np.mean(cosines)),
        "sum_sq_norm": total,
        "sum_inner": inner,
        "rank_residual": math.sqrt(residual / total),
    }


@pytest.mark.parametrize("shape", [(3, 2, 5), (2, 7, 4), (2, 3, 4, 6)])
def test_measure_equals_naive_loops(shape: tuple[int, ...]) -> None:
    x = draw(*shape) + 0.5
    measured = measure(x)
    assert set(measured) == set(naive(x[(0,) * (x.ndim - 2)].numpy()))
    for index in np.ndindex(*shape[:-2]):
        for quantity, expected in naive(x[index].numpy()).items():
            assert measured[quantity].shape == shape[:-2]
            assert measured[quantity].dtype == torch.float64
            assert float(measured[quantity][index]) == pytest.approx(expected, rel=1e-11)


def test_entropy_equals_naive_loops() -> None:
    a = draw(2, 3, 4, 4).softmax(-1)
    a[0, 0, 0] = torch.tensor([0.0, 1.0, 0.0, 0.0])  # 0 ln 0 = 0
    expected = [
        np.mean(
            [-sum(p * math.log(p) for p in row if p > 0) for row in a[i].flatten(0, 1).tolist()]
        )
        for i in range(2)
    ]
    np.testing.assert_allclose(attention_entropy(a).numpy(), expected, rtol=1e-13)
    measured = measure(draw(2, 4, 5), a.float())["attention_entropy"]
    np.testing.assert_allclose(measured.numpy(), expected, rtol=1e-6)
    assert "attention_entropy" not in measure(draw(2, 4, 5))


def test_entropy_bounds() -> None:
    uniform = torch.full((1, 2, 6, 6), 1 / 6, dtype=torch.float64)
    assert float(attention_entropy(uniform)) == pytest.approx(math.log(6), rel=1e-13)
    assert float(attention_entropy(torch.eye(6)[None, None])) == 0.0


def test_one_minus_cos_keeps_its_precision_near_collapse() -> None:
    """Tokens e_1 + eps e_k: 1 - cos = eps^2 / (1 + eps^2) for every pair k != k'."""
    for eps in (1e-3, 1e-6, 1e-7):
        x = eps * torch.eye(6, dtype=torch.float64)[None]
        x = torch.cat([torch.ones(1, 6, 1, dtype=torch.float64), x], dim=-1)
        value = float(measure(x)["one_minus_cos"])
        assert value == pytest.approx(eps**2 / (1 + eps**2), rel=1e-6)


def test_float32_input_is_measured_in_float64() -> None:
    x = draw(2, 5, 8).float()
    for quantity, value in measure(x).items():
        assert torch.equal(value, measure(x.double())[quantity])


def test_rho_ratio() -> None:
    x = draw(50, 4, 6) + 0.4
    measured = measure(x)
    gram = (x @ x.mT).numpy()
    off = sum(float(g.sum() - np.trace(g)) for g in gram)
    expected = off / (3 * sum(float(np.trace(g)) for g in gram))
    value = rho_ratio(measured["sum_sq_norm"], measured["sum_inner"], 4)
    assert float(value) == pytest.approx(expected, rel=1e-12)
    # for tokens of one norm and a single network, the ratio is the mean cosine
    unit = x[:1] / x[:1].norm(dim=-1, keepdim=True)
    one = measure(unit)
    ratio = rho_ratio(one["sum_sq_norm"], one["sum_inner"], 4)
    assert float(ratio) == pytest.approx(float(one["cos_mean"]), rel=1e-12)


@settings(max_examples=60)
@given(
    n=st.integers(2, 7),
    d=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    shift=st.sampled_from([0.0, 0.3, 100.0]),
    scale=st.floats(1e-6, 1e6),
)
def test_ranges_and_invariances(n: int, d: int, seed: int, shift: float, scale: float) -> None:
    x = draw(2, n, d, seed=seed) + shift
    a = measure(x)
    tiny = 1e-12
    assert ((a["cos_mean"] >= -1 / (n - 1) - tiny) & (a["cos_mean"] <= 1 + tiny)).all()
    assert ((a["rank_residual"] >= 0) & (a["rank_residual"] <= 1 + tiny)).all()
    assert (a["sum_inner"] <= n * a["sum_sq_norm"] * (1 + tiny)).all()
    # rank_residual^2 = 1 - C / (n T)
    residual = 1 - a["sum_inner"] / (n * a["sum_sq_norm"])
    torch.testing.assert_close(a["rank_residual"].square(), residual, rtol=1e-9, atol=1e-11)

    rotation = torch.linalg.qr(draw(d, d, seed=seed + 1)).Q
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    b = measure(scale * (x @ rotation)[:, order])
    for quantity in ("cos_mean", "one_minus_cos", "rank_residual"):
        torch.testing.assert_close(b[quantity], a[quantity], rtol=1e-8, atol=1e-11)
    for quantity in ("sum_sq_norm", "sum_inner"):
        torch.testing.assert_close(b[quantity] / scale**2, a[quantity], rtol=1e-8, atol=1e-9)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 6))
def test_cosine_ignores_token_norms_and_extremes_are_reached(seed: int, n: int) -> None:
    x = draw(1, n, 4, seed=seed)
    factors = draw(1, n, 1, seed=seed + 1).exp()
    torch.testing.assert_close(measure(factors * x)["cos_mean"], measure(x)["cos_mean"])
    equal = measure(factors * x[:, :1].expand(1, n, 4))
    assert float(equal["cos_mean"]) == pytest.approx(1.0, abs=1e-13)
    simplex = torch.eye(n, dtype=torch.float64)[None] - 1 / n
    assert float(measure(simplex)["cos_mean"]) == pytest.approx(-1 / (n - 1), abs=1e-13)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"x must have at least two tokens, got shape \(3, 1, 4\)"):
        measure(draw(3, 1, 4))
    with pytest.raises(ValueError, match="n_tokens must be at least 2, got 1"):
        rho_ratio(torch.ones(3), torch.ones(3), 1)
