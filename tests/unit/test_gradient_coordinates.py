"""Stream and gradients in coordinates: exact identities, the rest equal in law to weights."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional

from sigprop.instruments import end_to_end
from sigprop.instruments.end_to_end import gradient_norms
from sigprop.models.encoder import EncoderConfig
from sigprop.models.gradient_coordinates import (
    CoordinateGradients,
    Frame,
    _gram_factor,
    gradient_coordinates_fit,
)
from sigprop.models.gradients import (
    ExplicitGradients,
    GradientSampler,
    LawGradients,
    make_gradient_sampler,
)
from sigprop.models.samplers import Families
from sigprop.models.schemes import SCHEMES, Scheme, Strength


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def in_coordinates(config: EncoderConfig, seed: int) -> CoordinateGradients:
    c = config
    return CoordinateGradients(
        seeded(seed), c.n_tokens, c.d_model, c.n_heads, c.activation, c.hidden
    )


def tokens(n_networks: int, n: int, d: int, seed: int = 1) -> Tensor:
    """Gaussian tokens with a mean over features, which LN takes away."""
    return normal(n_networks, n, d, seed=seed) + 0.6 * normal(n_networks, n, 1, seed=seed + 1000)


# ------------------------------------------------------------------ exact statements


@pytest.mark.parametrize("n", [1, 2, 5])
def test_change_of_frame_keeps_inner_products(n: int) -> None:
    """Of gradients among each other, with the tokens and with e, from one block to the last."""
    sampler = CoordinateGradients(seeded(0), n, 60)
    p, width = n + 1, sampler.width
    y = tokens(4, n, width, seed=1)
    y[..., 3 * p :] = 0  # the stream does not reach into the columns of gradients
    x, frame = sampler.compress(y)
    torch.testing.assert_close(x @ x.mT, y @ y.mT)
    assert not x[..., p:].any()
    gradient = normal(4, n, width, seed=2)
    back = sampler.back(gradient.clone(), frame)
    torch.testing.assert_close(back @ back.mT, gradient @ gradient.mT)
    torch.testing.assert_close(back @ y.mT, gradient @ x.mT)
    # e is column p - 1 of both frames, up to a sign
    sign = (x[:, :1, p - 1] * y[:, :1, p - 1]).sign()
    torch.testing.assert_close(back[..., p - 1], sign * gradient[..., p - 1])
    assert not back[..., 3 * p + n :].any()


FAMILIES: dict[str, tuple[EncoderConfig, Families]] = {
    "q, k, v": (
        EncoderConfig(4, 60, 1),
        {"q": (60, 0.3), "k": (60, 0.2), "v": (60, 1.5)},
    ),
    "q, k, v, three heads": (
        EncoderConfig(4, 60, 1, n_heads=3),
        {"q": (60, 0.3), "k": (60, 0.2), "v": (60, 1.5)},
    ),
    "q, k, v, ten heads": (
        EncoderConfig(4, 60, 1, n_heads=10),
        {"q": (60, 0.3), "k": (60, 0.2), "v": (60, 1.5)},
    ),
    "ff1": (EncoderConfig(4, 60, 1, d_ff=90), {"ff1": (90, 0.7)}),
    "ff1, narrow": (EncoderConfig(4, 60, 1, d_ff=3), {"ff1": (3, 0.7)}),
    "ff1, linear": (EncoderConfig(4, 60, 1, d_ff=90, activation="linear"), {"ff1": (90, 0.7)}),
}
SECOND: dict[str, Families] = {"ff1": {"ff2": (60, 0.4)}, "v": {"o": (60, 0.4)}}


@pytest.mark.parametrize("case", FAMILIES)
def test_products_and_gradients_satisfy_the_identities_of_a_linear_map(case: str) -> None:
    """dL/dX X^T = sum_f D_f (X W_f)^T and ||dL/dW_f||^2 = <X X^T, D_f D_f^T>, whatever was drawn.

    Then for the product that reads the result: o reads the heads of v, ff2 the hidden layer.
    """
    config, families = FAMILIES[case]
    sampler, n = in_coordinates(config, 5), config.n_tokens
    used = (2 if "ff1" in families else 1) * (n + 1)
    x = tokens(3, n, sampler.width, seed=1)
    x[..., used:] = 0
    last = next(reversed(families))
    for sizes, heads in ((families, config.n_heads), (SECOND[last], config.n_heads)):
        if "o" in sizes and heads == 1:
            continue
        x = x.detach().requires_grad_()
        products = sampler.project(x, sizes, heads)
        cotangents = [normal(*y.shape, seed=10 + i) for i, y in enumerate(products)]
        (dx,) = torch.autograd.grad(products, x, cotangents)
        assert dx.shape == x.shape
        expected = sum(d @ y.mT for d, y in zip(cotangents, products, strict=True))
        torch.testing.assert_close(dx @ x.mT, expected)
        taken = sampler.record.take()
        for family, d in zip(sizes, cotangents, strict=True):
            norm = ((x @ x.mT) * (d @ d.mT)).sum((1, 2)).detach()
            torch.testing.assert_close(taken[family][0], norm)
        x = products[-1]


def test_queries_and_keys_see_the_scale_of_the_stream() -> None:
    """One head: q k^T has mean 0 and variance s_q^2 s_k^2 d |X_i|^2 |X_j|^2; 20,000 networks."""
    config, m = EncoderConfig(3, 40, 1), 20_000
    sampler = in_coordinates(config, 6)
    x = sampler.enter(tokens(1, 3, 40)).expand(m, -1, -1)
    q, k, _ = sampler.project(x, {"q": (40, 0.5), "k": (40, 0.1), "v": (40, 1.0)})
    assert q.shape == k.shape == (m, 3, 8)
    logits = q @ k.mT
    sizes = x[0].square().sum(-1)
    expected = 0.5 * 0.1 * 40 * sizes[:, None] * sizes
    z = (logits.square().mean(0) - expected) / (logits.square().std(0) / math.sqrt(m))
    assert z.abs().max() < 4.5
    assert (logits.mean(0) / (logits.std(0) / math.sqrt(m))).abs().max() < 4.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gram_factor(dtype: torch.dtype) -> None:
    """Cholesky where it can, QR where the Gram matrix is singular, overflows or underflows."""
    d = normal(2, 4, 50, seed=1).to(dtype)
    eps = torch.finfo(dtype).eps
    singular = d.clone()
    singular[:, 1] = 0
    small, large = math.sqrt(torch.finfo(dtype).tiny) / 10, math.sqrt(torch.finfo(dtype).max) * 2
    for matrix, unit in ((d, 1.0), (singular, 1.0), (small * d, small), (large * d, large)):
        t = _gram_factor(matrix) / unit
        expected = (matrix / unit) @ (matrix / unit).mT
        torch.testing.assert_close(t.mT @ t, expected, rtol=100 * eps, atol=500 * eps)


@pytest.mark.parametrize("scheme", ["no_ln", "post_ln", "pre_ln_scaled"])
@pytest.mark.parametrize("tau", [1.0, 8.5])
def test_equal_tokens_have_no_query_and_key_gradients(scheme: str, tau: float) -> None:
    """Theorem 3.1 of Noci et al. 2022, at every layer: equal tokens stay equal."""
    config = EncoderConfig(5, 40, 4, n_heads=2)
    x = tokens(20, 1, 40).expand(20, 5, 40)
    some = replace(SCHEMES[scheme], tau=tau)
    found = gradient_norms(x, config, some, in_coordinates(config, 2), local=True)
    for quantity in ("grad", "jacobian"):
        for family in ("q", "k"):
            assert (found[f"{quantity}_{family}"] <= 1e-20 * found[f"{quantity}_v"]).all()
        assert (found[f"{quantity}_v"] > 0).all()


# ------------------------------------------------------------------ equality in law

SMALL = EncoderConfig(3, 24, 3)
HEADS = EncoderConfig(3, 48, 2, n_heads=2)  # d_h 24: values and queries of 2c = 8 columns per head
LINEAR, UNIFORM = {"activation": "linear"}, {"attention": "uniform"}
CASES: dict[str, tuple[Scheme, EncoderConfig]] = {
    "no_ln": (SCHEMES["no_ln"], SMALL),
    "post_ln": (SCHEMES["post_ln"], replace(SMALL, d_ff=40)),
    "pre_ln": (SCHEMES["pre_ln"], replace(SMALL, n_tokens=4, d_model=27)),
    "pre_ln, linear, two heads": (SCHEMES["pre_ln"], replace(HEADS, **LINEAR)),
    "post_ln, uniform, two heads": (SCHEMES["post_ln"], replace(HEADS, **UNIFORM)),
    "no_ln, uniform, linear": (SCHEMES["no_ln"], replace(SMALL, **UNIFORM, **LINEAR)),
    "pre_ln_scaled, uniform": (SCHEMES["pre_ln_scaled"], replace(SMALL, **UNIFORM)),
    "no_ln_scaled, six heads": (SCHEMES["no_ln_scaled"], replace(SMALL, n_heads=6)),
    "post_ln_scaled, linear, narrow": (
        SCHEMES["post_ln_scaled"],
        replace(SMALL, d_ff=5, **LINEAR),
    ),
    "pre_ln_scaled, xavier, two heads, narrow": (
        replace(SCHEMES["pre_ln_scaled"], init="xavier", tau=2.0),
        replace(HEADS, d_ff=2),
    ),
    "pre_ln, tanh, variance preserving": (
        replace(
            SCHEMES["pre_ln"],
            skip="variance_preserving",
            alpha_attn=Strength(0.8),
            alpha_ff=Strength(0.6),
        ),
        replace(SMALL, activation="tanh"),
    ),
}
COVERING = (
    "no_ln",
    "post_ln",
    "pre_ln, linear, two heads",
    "post_ln, uniform, two heads",
)
# Holm over the observables of a case, Bonferroni over cases: 0.01 for all comparisons together.
LEVEL = 0.01 / len(CASES)


def observe(
    sampler: GradientSampler, case: tuple[Scheme, EncoderConfig], n_networks: int
) -> dict[str, np.ndarray]:
    """ln of every norm at every layer, and of ratios, which see how the norms go together.

    The networks share one input, and each has a readout of its own.
    """
    scheme, config = case
    x = tokens(1, config.n_tokens, config.d_model, seed=20).expand(n_networks, -1, -1)
    found = gradient_norms(x, config, scheme, sampler, local=True)
    logs = {
        f"{name} {layer}": values.log().numpy()
        for name in found
        if name.startswith(("grad", "jacobian", "sum_sq", "one_minus"))
        for layer, values in enumerate(found[name])
        if values.std() > 1e-6 * values.mean()  # the input, and post-LN norms of tokens, are given
    }
    whole = logs["grad_x 0"]
    ratios = {f"{name} / grad_x 0": values - whole for name, values in logs.items()}
    return logs | {name: values for name, values in ratios.items() if values.std() > 1e-9}


def holm_smallest(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """Smallest Holm-corrected p of the two-sample KS tests of every observable, m times p."""
    assert a.keys() == b.keys()
    p = [stats.ks_2samp(a[key], b[key]).pvalue for key in a]
    return min(1.0, len(p) * min(p))


def agree(name: str, n_networks: int, seed: int) -> float:
    case = CASES[name]
    explicit = observe(ExplicitGradients(seeded(seed)), case, n_networks)
    law = observe(in_coordinates(case[1], seed + 1), case, n_networks)
    assert len(explicit) >= 20
    return holm_smallest(explicit, law)


@pytest.mark.parametrize("name", COVERING)
def test_explicit_and_coordinates_agree_in_distribution(name: str) -> None:
    """2,000 networks each."""
    assert agree(name, 2000, 30) > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_explicit_and_coordinates_agree_in_distribution_at_length(name: str) -> None:
    """10,000 networks each: every weight family, dLoss/dX^l, attention Jacobians and tokens."""
    assert agree(name, 10_000, 40) > LEVEL


class NothingBeyondTheBlock(CoordinateGradients):
    """Drops what lies outside of the directions of the block."""

    def back(self, gradient: Tensor, frame: Frame) -> Tensor:
        found = super().back(gradient, frame)
        found[..., 3 * self.size :] = 0
        return found


class NothingAlongTheBlock(CoordinateGradients):
    """Takes what lies beyond X^l to lie beyond the whole block: forgets Z_1."""

    def back(self, gradient: Tensor, frame: Frame) -> Tensor:
        found, p = super().back(gradient, frame), self.size
        along = functional.pad(gradient[..., :p].flip(-1), (0, 2 * p))
        beyond = gradient[..., p:]
        found[..., : 3 * p] = torch.ormqr(frame.a, frame.tau, along.mT).mT
        found[..., 3 * p : 3 * p + self.n_tokens] = torch.linalg.cholesky(beyond @ beyond.mT)
        return found


class FreshTooStrong(CoordinateGradients):
    def project(self, x: Tensor, families: Families, n_heads: int = 1) -> tuple[Tensor, ...]:
        z = x.clone()
        if "v" in families:  # the part of the gradient beyond the columns of the tokens
            weight = torch.ones_like(x[0, 0])
            weight[self.size :] = 1.1
            z.register_hook(lambda gradient: weight * gradient)
        return super().project(z, families, n_heads)


@pytest.mark.parametrize("wrong", [NothingBeyondTheBlock, NothingAlongTheBlock, FreshTooStrong])
def test_the_comparison_rejects_mistakes(wrong: type[CoordinateGradients]) -> None:
    """2,000 networks, the same test."""
    case = CASES["no_ln"]
    explicit = observe(ExplicitGradients(seeded(60)), case, 2000)
    law = observe(wrong(seeded(61), 3, 24), case, 2000)
    assert holm_smallest(explicit, law) < LEVEL / 10


def test_float32_near_collapse_has_the_law_of_float64() -> None:
    """Tokens 1e-3 apart: gradients in float32 coordinates against float64 explicit weights."""
    config, scheme = EncoderConfig(4, 27, 2), SCHEMES["post_ln"]
    x = (tokens(1, 1, 27) + 1e-3 * normal(1, 4, 27, seed=2)).expand(3000, -1, -1)
    explicit = gradient_norms(x, config, scheme, ExplicitGradients(seeded(80)))
    law = gradient_norms(x.float(), config, scheme, in_coordinates(config, 81))
    observed = [
        {f"{name} {i}": v.log().numpy() for name in found for i, v in enumerate(found[name])}
        for found in (explicit, law)
    ]
    assert float(np.median(observed[0]["grad_q 0"] - observed[0]["grad_v 0"])) < math.log(1e-5)
    assert holm_smallest(*observed) > LEVEL


# ------------------------------------------------------------------ streams, sizes, refusals


def test_same_seed_same_norms_and_networks_do_not_depend_on_each_other() -> None:
    config, scheme = EncoderConfig(4, 40, 3, n_heads=2), SCHEMES["pre_ln"]
    x, state = tokens(5, 4, 40), torch.get_rng_state()
    a, b, c = (gradient_norms(x, config, scheme, in_coordinates(config, s)) for s in (1, 1, 2))
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert all((a[key] != c[key]).all() for key in a)
    assert torch.equal(state, torch.get_rng_state())  # the global generator is not touched
    x[2] *= -3
    changed = gradient_norms(x, config, scheme, in_coordinates(config, 1))
    others = torch.tensor([0, 1, 3, 4])
    for key in a:
        torch.testing.assert_close(a[key][:, others], changed[key][:, others], rtol=1e-9, atol=0)
    assert (changed["grad_q"][:, 2] != a["grad_q"][:, 2]).all()


def test_a_given_read_out_takes_the_products_at_full_width() -> None:
    config, scheme = EncoderConfig(4, 40, 2), SCHEMES["post_ln"]
    x, readout = tokens(3, 4, 40), normal(3, 4, 40, seed=2)
    a = gradient_norms(x, config, scheme, in_coordinates(config, 1), readout=readout)
    b = gradient_norms(x, config, scheme, LawGradients(seeded(1)), readout=readout)
    assert all(torch.equal(a[key], b[key]) for key in b)


@pytest.mark.parametrize("scheme", ["no_ln", "post_ln", "pre_ln"])
def test_memory_estimate_bounds_what_is_saved(scheme: str) -> None:
    """Bytes of distinct storages that autograd keeps, against the estimate that sets the parts."""
    for config in (
        EncoderConfig(16, 128, 3),
        EncoderConfig(16, 512, 2, n_heads=4, d_ff=2048),
        EncoderConfig(16, 128, 3, activation="linear"),
    ):
        saved: dict[int, int] = {}

        def pack(t: Tensor, saved: dict[int, int] = saved) -> Tensor:
            saved[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        x = torch.randn(10, 16, config.d_model, generator=seeded(1))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            gradient_norms(x, config, SCHEMES[scheme], in_coordinates(config, 2))
        estimate = end_to_end.SAVED_BYTES / end_to_end._networks_at_once(config, "coordinates", 4)
        assert 0.2 * estimate < sum(saved.values()) / 10 < 1.05 * estimate


def test_make_gradient_sampler_takes_coordinates_where_they_fit() -> None:
    assert gradient_coordinates_fit(8, 51) and not gradient_coordinates_fit(8, 50)
    for d_model, kind in ((51, CoordinateGradients), (50, LawGradients)):
        assert type(make_gradient_sampler(EncoderConfig(8, d_model, 2), seeded(0))) is kind
    config = EncoderConfig(8, 60, 2, n_heads=2, d_ff=7, activation="linear")
    sampler = make_gradient_sampler(config, seeded(0))
    assert isinstance(sampler, CoordinateGradients)
    assert (sampler.d_ff, sampler.activation, sampler.width % 2) == (7, "linear", 0)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"d_model must be at least 6 n_tokens \+ 3 = 51 .* 50"):
        CoordinateGradients(seeded(0), 8, 50)
    config, scheme = EncoderConfig(4, 40, 1), SCHEMES["no_ln"]
    x = tokens(2, 4, 40)
    with pytest.raises(ValueError, match="made for activation 'relu' and d_ff 9, the config has"):
        gradient_norms(x, config, scheme, CoordinateGradients(seeded(0), 4, 40, d_ff=9))
    with pytest.raises(ValueError, match=r"x must be \(networks, 3, 40\), got"):
        gradient_norms(x, config, scheme, CoordinateGradients(seeded(0), 3, 40))
    with pytest.raises(FloatingPointError, match="activations of scheme 'no_ln' are not finite"):
        deep = EncoderConfig(4, 40, 150)
        gradient_norms(1e15 * x.float(), deep, scheme, in_coordinates(deep, 0))
