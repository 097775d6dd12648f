"""Explicit weights and draws in law: same distribution, exact given X, accurate near collapse."""

import math
from collections.abc import Callable, Iterable
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from sigprop.instruments.propagation import measure
from sigprop.models import samplers
from sigprop.models.encoder import EncoderConfig, make_sampler, stream
from sigprop.models.samplers import (
    ExplicitSampler,
    LawSampler,
    Sampler,
    bartlett,
    choose_sampler,
    row_factor,
)
from sigprop.models.schemes import SCHEMES, Scheme


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def both(seed: int) -> tuple[Sampler, Sampler]:
    return ExplicitSampler(seeded(seed)), LawSampler(seeded(seed + 1))


def covariance_z(y: Tensor, expected: Tensor) -> Tensor:
    """Deviations, in standard errors, of the sample moments of rows y (m, r) of mean zero."""
    m = y.shape[0]
    products = y[:, :, None] * y[:, None, :]
    return (products.mean(0) - expected) / (products.std(0) / math.sqrt(m))


# ------------------------------------------------------------------ exactness conditional on X


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sampler", [*both(10), ExplicitSampler(seeded(12), "uniform")])
def test_products_have_covariance_xx_t_times_variance(sampler: Sampler, dtype: torch.dtype) -> None:
    """Columns of X W are iid with covariance s^2 X X^T: 80,000 columns, 3 shapes of x."""
    for shape in ((5, 12), (2, 3, 12), (1, 12)):
        x = torch.randn(1, *shape, generator=seeded(3)).to(dtype)
        x[..., -1, :] += 2 * x[..., 0, :]  # far from isotropic
        rows = x.flatten(0, -2).double()
        a, b = sampler.project(x, {"ff1": (80_000, 0.7), "ff2": (80_000, 2.5)})
        assert a.shape == b.shape == (1, *shape[:-1], 80_000)
        assert a.dtype == dtype
        for y, variance in ((a, 0.7), (b, 2.5)):
            columns = y.flatten(0, -2).double().T
            assert covariance_z(columns, variance * rows @ rows.T).abs().max() < 4.5
            means = columns.mean(0) / columns.std(0) * math.sqrt(80_000)
            assert means.abs().max() < 4.5
        # families and columns are independent of each other
        cross = (a * b).flatten(0, -2).double().mean(-1) * math.sqrt(80_000)
        scale = rows.square().sum(-1) * math.sqrt(0.7 * 2.5)
        assert (cross / scale).abs().max() < 4.5


def test_networks_are_independent_and_sequences_share_weights() -> None:
    for sampler in both(20):
        x = torch.randn(1, 1, 4, 16, generator=seeded(4)).expand(3, 2, 4, 16)
        (y,) = sampler.project(x, {"v": (10, 1.0)})
        torch.testing.assert_close(y[:, 0], y[:, 1], rtol=1e-4, atol=1e-5)
        assert (y[0] - y[1]).abs().max() > 0.1


@pytest.mark.parametrize("n_heads", [1, 2])
def test_queries_and_keys_have_the_right_joint_gram_law(n_heads: int) -> None:
    """Given X, explicit against law: 4,000 networks, KS on entries of q k^T, q q^T and k k^T."""
    n, d = 3, 32
    x = torch.randn(n, d, generator=seeded(5), dtype=torch.float64).expand(4000, n, d)
    grams = []
    for sampler in both(30):
        q, k, v = sampler.project(x, {"q": (d, 0.5), "k": (d, 2.0), "v": (d, 1.0)}, n_heads=n_heads)
        assert v.shape == x.shape
        q, k = (y.unflatten(-1, (n_heads, -1)).transpose(1, 2) for y in (q, k))
        assert q.shape[-1] == (2 * n if sampler.name == "law" else d // n_heads)
        gram = torch.cat([q, k], dim=-2)
        gram = gram @ gram.mT  # (B, h, 2n, 2n)
        grams.append(gram)
    explicit, law = grams
    statistics: dict[str, Callable[[Tensor], Tensor]] = {
        "q k^T entry": lambda g: g[:, 0, 0, n + 1],
        "q q^T entry": lambda g: g[:, -1, 0, 1],
        "k k^T entry": lambda g: g[:, 0, n, n],
        "joint": lambda g: (g[:, 0, :n, n:].square().sum((1, 2)) * g[:, 0, 1, 1]).log(),
        "log det": lambda g: torch.logdet(g[:, -1]),
        "between heads": lambda g: g[:, 0, 0, 0] * g[:, -1, 0, 0],
    }
    a, b = ({key: f(g).numpy() for key, f in statistics.items()} for g in (explicit, law))
    assert holm_smallest(a, b) > 0.01


def test_bartlett_is_a_wishart_factor() -> None:
    size, degrees = 4, 7
    like = torch.empty(0, dtype=torch.float64)
    t = bartlett(20_000, size, degrees, seeded(6), like)
    assert torch.equal(t, t.tril())
    assert (t.diagonal(dim1=-2, dim2=-1) > 0).all()
    wishart = t @ t.mT
    eye = torch.eye(size, dtype=torch.float64)
    z = (wishart.mean(0) - degrees * eye) / (wishart.std(0) / math.sqrt(20_000))
    assert z.abs().max() < 4.5
    log_det = torch.logdet(wishart).numpy()
    expected = sum(
        np.log(stats.chi2.rvs(degrees - i, size=20_000, random_state=i)) for i in range(size)
    )
    assert stats.ks_2samp(log_det, expected).pvalue > 0.01
    # the test sees one degree of freedom
    wrong = torch.logdet((w := bartlett(20_000, size, degrees + 1, seeded(7), like)) @ w.mT)
    assert stats.ks_2samp(wrong, expected).pvalue < 1e-10


# ------------------------------------------------------------------ factorization, collapse


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
@pytest.mark.parametrize("shape", [(3, 1, 4), (2, 4, 4), (5, 8, 300), (2, 4, 2049), (1, 8, 4500)])
def test_row_factor(dtype: torch.dtype, tolerance: float, shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape, generator=seeded(8), dtype=torch.float64).to(dtype)
    f = row_factor(x)
    assert f.dtype == dtype
    assert f.shape == (shape[0], shape[1], shape[1])
    f, x = f.double(), x.double()
    gram = x @ x.mT
    assert (f @ f.mT - gram).abs().max() < tolerance * gram.abs().max()


def spread_error(f: Tensor, x: Tensor) -> float:
    """Error of P F F^T P relative to P X X^T P, with P the centring matrix, in float64."""
    f, x = (y.double() - y.double().mean(-2, keepdim=True) for y in (f, x))
    gram = x @ x.mT
    return float(torch.linalg.norm(f @ f.mT - gram) / torch.linalg.norm(gram))


def test_row_factor_keeps_the_spread_of_nearly_equal_tokens() -> None:
    """Spread 1e-6 in float32: errors stay relative to the spread, not to the norm."""
    base = torch.randn(1, 1, 256, generator=seeded(9))
    x = base + 1e-6 * torch.randn(1, 16, 256, generator=seeded(10))
    plain = torch.linalg.qr(x.mT, mode="r").R.mT
    exact = row_factor(x.double())
    assert spread_error(exact, x) < 1e-9
    # One column holds |X_0| + ... and is rounded in float32 like the tokens themselves; a QR
    # without the reference to row 0 errs in every column.
    assert spread_error(row_factor(x), x) < 0.012
    assert spread_error(plain, x) > 0.03


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_tokens_stay_equal(dtype: torch.dtype) -> None:
    x = torch.randn(4, 1, 40, generator=seeded(11), dtype=dtype).expand(4, 6, 40)
    q, k, v = LawSampler(seeded(12)).project(
        x, {"q": (40, 1 / 40), "k": (40, 1 / 40), "v": (4000, 1 / 40)}
    )
    for y in (q, k, v):
        assert (y - y[:, :1]).abs().max() <= 32 * torch.finfo(dtype).eps * y.abs().max()
    power = v[:, 0].double().square().mean(-1) / (x[:, 0].double().square().mean(-1))
    assert (power - 1).abs().max() < 5 * math.sqrt(2 / 4000)


@pytest.mark.parametrize("spread", [1e-6, 1e-3, 1.0])
def test_nearly_equal_tokens_have_the_right_spread(spread: float) -> None:
    """float32, E||P X W||^2 = s^2 m ||P X||^2 with the right side in float64; SE 0.15 %.

    Explicit float32 products round each of d terms and inflate a spread of 1e-6 by several per
    cent; draws in law do not.
    """
    n, d, m, n_networks = 16, 256, 256, 200
    noise = torch.randn(1, n, d, generator=seeded(13))
    x = (torch.randn(1, 1, d, generator=seeded(14)) + spread * noise).expand(n_networks, n, d)
    centred = x.double() - x.double().mean(-2, keepdim=True)
    expected = m / d * centred.square().sum((-2, -1))
    for sampler in both(40):
        (y,) = sampler.project(x, {"v": (m, 1 / d)})
        y = y.double() - y.double().mean(-2, keepdim=True)
        ratio = y.square().sum((-2, -1)) / expected
        error = float(ratio.std()) / math.sqrt(n_networks)
        assert error < 0.002
        # at 1e-6 the sums round in an order that is the kernel's own
        rounding = {"explicit": 0.15, "law": 0.02}[sampler.name] if spread == 1e-6 else 0.001
        assert abs(float(ratio.mean()) - 1) < 4 * error + rounding


@pytest.mark.parametrize("fill", [0.0, 1e-30])
def test_rank_deficient_and_tiny_rows(fill: float) -> None:
    x = torch.full((2, 3, 10), fill)
    x[:, 2] = torch.arange(10.0)
    (y,) = LawSampler(seeded(15)).project(x, {"v": (50, 1.0)})
    assert torch.isfinite(y).all()
    assert y[:, :2].abs().max() <= 1e-3 * max(fill, 1e-3)
    assert y[:, 2].std() > 5


# ------------------------------------------------------------------ equality in law


CASES = {
    "no_ln, one head": (SCHEMES["no_ln"], EncoderConfig(8, 24, 6)),
    "post_ln, three heads": (SCHEMES["post_ln"], EncoderConfig(3, 24, 6, n_heads=3, d_ff=40)),
    "pre_ln_scaled, linear": (
        SCHEMES["pre_ln_scaled"],
        EncoderConfig(8, 24, 6, n_heads=2, activation="linear"),
    ),
    "no_ln_scaled, uniform attention": (
        SCHEMES["no_ln_scaled"],
        EncoderConfig(8, 24, 6, attention="uniform"),
    ),
}


def observe(
    sampler: Sampler,
    scheme: Scheme,
    config: EncoderConfig,
    layers: Iterable[int] = (1, 3, 6),
    n_networks: int = 3000,
) -> dict[str, np.ndarray]:
    """cos_mean, ln ||X||^2 and attention entropy of networks that share one float64 input."""
    x = torch.randn(
        1, config.n_tokens, config.d_model, generator=seeded(16), dtype=torch.float64
    ).expand(n_networks, -1, -1)
    observed = {}
    for state in stream(x, config, scheme, sampler, keep_attention=True):
        if state.layer in layers:
            values = measure(state.x, state.attention)
            observed[f"cos {state.layer}"] = values["cos_mean"].numpy()
            if scheme.norm != "post":  # there the norm is n d, up to rounding
                observed[f"norm {state.layer}"] = values["sum_sq_norm"].log().numpy()
            if config.attention == "softmax":
                observed[f"entropy {state.layer}"] = values["attention_entropy"].numpy()
    return observed


def holm_smallest(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """Smallest Holm-corrected p of the two-sample KS tests of every observable.

    Holm's adjusted p-value of the smallest p among m is m p.
    """
    p = [stats.ks_2samp(a[key], b[key]).pvalue for key in a]
    return min(1.0, len(p) * min(p))


@pytest.mark.parametrize("case", CASES)
def test_explicit_and_law_agree_in_distribution(case: str) -> None:
    """3,000 networks each, n 3 or 8, d 24, at layers 1, 3 and 6."""
    scheme, config = CASES[case]
    explicit, law = (observe(sampler, scheme, config) for sampler in both(50))
    assert holm_smallest(explicit, law) > 0.01


def test_the_comparison_rejects_a_wrong_variance() -> None:
    """The same test, two layers deep, with the weights of one or two families too strong."""
    scheme, config = SCHEMES["no_ln"], EncoderConfig(8, 24, 2)

    class Wrong(LawSampler):
        factor: ClassVar[dict[str, float]] = {}

        def project(
            self, x: Tensor, families: samplers.Families, n_heads: int = 1
        ) -> tuple[Tensor, ...]:
            wrong = {f: (w, self.factor.get(f, 1.0) * s) for f, (w, s) in families.items()}
            return super().project(x, wrong, n_heads)

    explicit = observe(ExplicitSampler(seeded(60)), scheme, config, layers=(1, 2))
    for Wrong.factor in ({"v": 1.1, "ff2": 1.1}, {"q": 1.2}, {"k": 1.2}):
        wrong = observe(Wrong(seeded(61)), scheme, config, layers=(1, 2))
        assert holm_smallest(explicit, wrong) < 1e-3
    Wrong.factor = {}
    assert holm_smallest(explicit, observe(Wrong(seeded(61)), scheme, config, (1, 2))) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_explicit_and_law_agree_in_distribution_at_length(case: str) -> None:
    """12,000 networks each: sees distances half as large."""
    scheme, config = CASES[case]
    explicit, law = (observe(sampler, scheme, config, n_networks=12_000) for sampler in both(70))
    assert holm_smallest(explicit, law) > 0.01


# ------------------------------------------------------------------ streams of random numbers


@pytest.mark.parametrize("distribution", ["gaussian", "uniform"])
@pytest.mark.parametrize("width", [7, 16, 33])
def test_explicit_draws_do_not_depend_on_chunking(
    distribution: samplers.Distribution, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole batch, a few networks at a time, and blocks of rows of one network."""
    x = torch.randn(5, 2, 3, 37, generator=seeded(17), dtype=torch.float64)
    results = []
    for chunk_bytes in (2**24, 2 * 37 * width * 8 + 8, 20 * width * 8):
        monkeypatch.setattr(samplers, "CHUNK_BYTES", chunk_bytes)
        sampler = ExplicitSampler(seeded(18), distribution)
        y = sampler.project(x, {"q": (width, 1.0), "k": (width, 0.5)})
        results.append((*y, *sampler.project(x, {"v": (width, 1.0)})))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_explicit_memory_is_bounded_by_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    draw = ExplicitSampler._draw

    def record(self: ExplicitSampler, b: int, d_in: int, width: int, like: Tensor) -> Tensor:
        sizes.append(b * d_in * width * like.element_size())
        return draw(self, b, d_in, width, like)

    monkeypatch.setattr(ExplicitSampler, "_draw", record)
    monkeypatch.setattr(samplers, "CHUNK_BYTES", 2**16)
    for b, d in ((20, 64), (2, 512)):
        x = torch.ones(b, 2, d)
        ExplicitSampler(seeded(19)).project(x, {"v": (d, 1.0)})
    assert max(sizes) <= 2**16
    assert len(sizes) > 10


@pytest.mark.parametrize("build", [ExplicitSampler, LawSampler])
def test_same_seed_same_numbers(build: Callable[[torch.Generator], Sampler]) -> None:
    x = torch.randn(2, 4, 20, generator=seeded(20))
    families = {"q": (20, 1.0), "k": (20, 1.0), "v": (20, 1.0)}
    state = torch.get_rng_state()
    a, b, c = (build(seeded(s)).project(x, families) for s in (1, 1, 2))
    assert all(torch.equal(y, z) for y, z in zip(a, b, strict=True))
    assert not torch.equal(a[2], c[2])
    assert torch.equal(state, torch.get_rng_state())  # the global generator is not touched
    sampler = build(seeded(1))
    first, second = (sampler.project(x, families)[2] for _ in range(2))
    assert not torch.equal(first, second)  # every call has its own weights


def test_law_falls_back_to_explicit_weights_when_rows_fill_the_width() -> None:
    x = torch.randn(2, 3, 4, 12, generator=seeded(21))  # 12 rows, 12 features
    families = {"v": (9, 0.3)}
    (law,) = LawSampler(seeded(22)).project(x, families)
    (explicit,) = ExplicitSampler(seeded(22)).project(x, families)
    assert torch.equal(law, explicit)


def test_explicit_products_are_differentiable() -> None:
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda y: ExplicitSampler(seeded(23)).project(y, {"v": (4, 1.0)}), (x,)
    )


# ------------------------------------------------------------------ choosing, refusing


def test_choose_sampler() -> None:
    assert choose_sampler("auto", 32, 1024) == "law"
    assert choose_sampler("auto", 32, 128) == "law"
    assert choose_sampler("auto", 32, 64) == "explicit"
    assert choose_sampler("auto", 32, 1024, "uniform") == "explicit"
    assert choose_sampler("law", 64, 64) == "law"
    assert choose_sampler("explicit", 32, 1024) == "explicit"
    config = EncoderConfig(32, 256, 2)
    assert make_sampler(config, seeded(0)).name == "law"
    assert make_sampler(config, seeded(0), sequences=8).name == "explicit"
    assert make_sampler(config, seeded(0), "explicit").name == "explicit"


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="'law' needs distribution 'gaussian', got 'uniform'"):
        choose_sampler("law", 8, 64, "uniform")
    with pytest.raises(ValueError, match="sampler 'explict' is unknown: did you mean 'explicit'"):
        choose_sampler("explict", 8, 64)
    with pytest.raises(ValueError, match="distribution 'gausian' is unknown: did you mean 'gauss"):
        ExplicitSampler(seeded(0), "gausian")
    for sampler in both(80):
        with pytest.raises(ValueError, match=r"x must be \(networks, \.\.\., tokens, d\), got"):
            sampler.project(torch.ones(3, 4), {"v": (4, 1.0)})
    x = torch.ones(1, 2, 8, requires_grad=True)
    with pytest.raises(ValueError, match="sampler 'law' has no gradient"):
        LawSampler(seeded(0)).project(x, {"v": (4, 1.0)})
