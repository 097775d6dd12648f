"""Backward passes drawn in law: exact given X, equal in law to weights, accurate near collapse.

Explicit weights are compared with torch.autograd on real weight tensors, draws in law with explicit
weights in distribution and with the conditional law given the products.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from sigprop.instruments import end_to_end
from sigprop.instruments.end_to_end import gradient_norms
from sigprop.instruments.jacobian import multihead_jacobian_norms
from sigprop.models.block import ATTENTIONS, block
from sigprop.models.encoder import EncoderConfig
from sigprop.models.gradients import (
    ExplicitGradients,
    GradientSampler,
    LawGradients,
    make_gradient_sampler,
)
from sigprop.models.samplers import ExplicitSampler, Families
from sigprop.models.schemes import ACTIVATIONS, SCHEMES, Scheme

BUILD: dict[str, Callable[[torch.Generator], GradientSampler]] = {
    "explicit": ExplicitGradients,
    "law": LawGradients,
}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def z_scores(samples: Tensor, expected: Tensor) -> Tensor:
    """Deviation of the mean over dim 0 from `expected`, in standard errors."""
    error = samples.std(0) / math.sqrt(len(samples))
    return (samples.mean(0) - expected) / error


# ------------------------------------------------------------------ explicit weights


class RealWeights:
    """`project` with leaf tensors as weights, the same numbers as ExplicitGradients."""

    def __init__(self, seed: int, scheme: Scheme, config: EncoderConfig) -> None:
        self.sampler = ExplicitSampler(seeded(seed), config.distribution)
        self.scheme, self.activation, self.depth = scheme, config.activation, config.depth
        self.calls: list[tuple[Tensor, dict[str, Tensor]]] = []

    def __call__(self, x: Tensor, widths: Mapping[str, int]) -> tuple[Tensor, ...]:
        d_in = x.shape[-1]
        sizes = {
            f: (m, self.scheme.variance(f, d_in, m, self.activation, depth=self.depth))
            for f, m in widths.items()
        }
        eye = torch.eye(d_in, dtype=x.dtype).expand(len(x), d_in, d_in)
        drawn = self.sampler.project(eye, sizes)
        weights = {f: w.requires_grad_() for f, w in zip(widths, drawn, strict=True)}
        self.calls.append((x.detach(), weights))
        return tuple(x @ w for w in weights.values())

    def leaves(self, family: str) -> list[Tensor]:
        return [weights[family] for _, weights in self.calls if family in weights]


def autograd_norms(
    x: Tensor, readout: Tensor, scheme: Scheme, config: EncoderConfig, real: RealWeights
) -> dict[str, Tensor]:
    states = [x.clone().requires_grad_()]
    for _ in range(config.depth):
        output = block(
            states[-1],
            real,
            scheme,
            config.depth,
            n_heads=config.n_heads,
            d_ff=config.hidden,
            activation=config.activation,
            attention=config.attention,
        )
        states.append(output.x)
    loss = (readout * states[-1]).sum() / math.sqrt(config.n_tokens * config.d_model)
    tensors = {"x": states} | {f: real.leaves(f) for f in ("q", "k", "v", "o", "ff1", "ff2")}
    norms = {}
    for name, group in tensors.items():
        if group:
            gradients = torch.autograd.grad(loss, group, retain_graph=True)
            norms[f"grad_{name}"] = torch.stack([g.square().sum((1, 2)) for g in gradients])
    return norms


# Records that differ in more than the size of their weights.
DIFFERENT = [n for n, s in SCHEMES.items() if s.init == "fan_in" or n == "deepnorm"]


@pytest.mark.parametrize("n_tokens", [1, 5, 10])
@pytest.mark.parametrize("scheme", [SCHEMES[n] for n in DIFFERENT], ids=DIFFERENT)
def test_explicit_norms_equal_autograd_on_real_weights(scheme: Scheme, n_tokens: int) -> None:
    """Every scheme, attention and activation, one and two heads; fewer and more rows than d."""
    for attention, activation, n_heads in itertools.product(ATTENTIONS, ACTIVATIONS, (1, 2)):
        config = EncoderConfig(
            n_tokens,
            8,
            2,
            n_heads,
            11,
            activation,
            attention,
            "uniform" if n_heads == 2 else "gaussian",
        )
        x, readout = normal(3, n_tokens, 8, seed=1), normal(3, n_tokens, 8, seed=2)
        real = RealWeights(3, scheme, config)
        expected = autograd_norms(x, readout, scheme, config, real)
        sampler = make_gradient_sampler(config, seeded(3), "explicit")
        found = gradient_norms(x, config, scheme, sampler, readout=readout)
        assert found.keys() == expected.keys()
        for name, norms in found.items():
            assert norms.dtype == torch.float64
            floor = 1e-20 * float(expected["grad_v"].max())  # one token: no q and k gradients
            torch.testing.assert_close(norms, expected[name], rtol=1e-10, atol=floor)


@pytest.mark.parametrize("scheme", [SCHEMES["pre_ln"], SCHEMES["post_ln_scaled"]])
@pytest.mark.parametrize("n_heads", [1, 3])
def test_local_measurements(scheme: Scheme, n_heads: int) -> None:
    """Token sums and cosines by definition, Jacobian norms from the weights themselves."""
    config = EncoderConfig(5, 12, 2, n_heads)
    x, readout = normal(3, 5, 12, seed=1), normal(3, 5, 12, seed=2)
    real = RealWeights(3, scheme, config)
    autograd_norms(x, readout, scheme, config, real)
    sampler = make_gradient_sampler(config, seeded(3), "explicit")
    found = gradient_norms(x, config, scheme, sampler, readout=readout, local=True)

    attended = [(z, w) for z, w in real.calls if "q" in w]
    for layer, (z, weights) in enumerate(attended):
        mean = z.mean(1, keepdim=True)
        gram = z.mT @ z - 5 * mean.mT @ mean
        sums = {
            "sum_sq_norm": z.square().sum((1, 2)),
            "spread_sq_norm": (z - mean).square().sum((1, 2)),
            "gram_sq_norm": gram.square().sum((1, 2)),
            "mean_sq_norm": 5 * mean.square().sum((1, 2)),
        }
        for name, expected in sums.items():
            torch.testing.assert_close(found[name][layer], expected)
        heads = [
            weights[f].detach().unflatten(-1, (n_heads, -1)).transpose(1, 2)
            for f in ("q", "k", "v")
        ]
        eye = torch.eye(12 // n_heads, dtype=torch.float64).expand(n_heads, -1, -1)
        norms = multihead_jacobian_norms(z, *heads, eye, tau=scheme.tau, which=("q", "k", "v"))
        for name, norm in norms.items():
            torch.testing.assert_close(found[f"jacobian_{name}"][layer], norm.sum(1))
    assert found["cos_mean"].shape == found["one_minus_cos"].shape == (3, 3)
    u = x / x.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(found["cos_mean"][0], ((u @ u.mT).sum((1, 2)) - 5) / 20)
    torch.testing.assert_close(found["cos_mean"], 1 - found["one_minus_cos"])
    uniform = EncoderConfig(5, 12, 2, attention="uniform")
    sampler = make_gradient_sampler(uniform, seeded(3))
    found = gradient_norms(x, uniform, scheme, sampler, local=True)
    assert not {"grad_q", "grad_k", "jacobian_q", "jacobian_v"} & found.keys()
    assert found["mean_sq_norm"].shape == found["grad_v"].shape == (2, 3)


# ------------------------------------------------------------------ exactness given X and X W


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_fresh_part_given_the_products(rank: int) -> None:
    """Given X and all X W, dLoss/dX is normal with known moments (derived here).

    mean sum_f D_f (X W_f)^T pinv(X)^T, covariance (sum_f s_f^2 D_f D_f^T) (x) (I - pinv(X) X).
    30,000 networks, three families on one X, also of deficient rank; hundreds of moments each, all
    within 4.8 standard errors.
    """
    n_networks, r, d = 30_000, 3, 7
    sizes: Families = {"v": (4, 0.3), "ff1": (2, 2.0), "ff2": (9, 0.1)}
    x = normal(r, rank, seed=1) @ normal(rank, d, seed=2)
    cotangents = [normal(r, width, seed=3 + i) for i, (width, _) in enumerate(sizes.values())]
    batch = x.expand(n_networks, r, d).clone().requires_grad_()
    sampler = LawGradients(seeded(6))
    products = sampler.project(batch, sizes)
    (dx,) = torch.autograd.grad(products, batch, [c.expand(n_networks, -1, -1) for c in cotangents])

    pinv = torch.linalg.pinv(x)  # (d, r)
    mean = sum(c @ y.mT @ pinv.T for c, y in zip(cotangents, products, strict=True))
    fresh = (dx - mean).detach()
    assert (fresh @ x.T).abs().max() < 1e-10  # nothing along the rows of X
    k = sum(variance * c @ c.T for c, (_, variance) in zip(cotangents, sizes.values(), strict=True))
    outside = torch.eye(d, dtype=torch.float64) - pinv @ x
    fresh = fresh.flatten(1)  # (networks, r d)
    covariance = torch.kron(torch.as_tensor(k), outside)
    squares = fresh[:, :, None] * fresh[:, None, :]
    assert z_scores(squares, covariance).abs().max() < 4.8
    assert z_scores(fresh, torch.zeros(r * d)).abs().max() < 4.8
    for y in products:  # independent of the products
        cross = fresh[:, :, None] * y.detach().flatten(1)[:, None, :]
        assert z_scores(cross, torch.zeros(())).abs().max() < 4.8
    # kurtosis of one projection: the fresh part is normal, not only of the right covariance
    one = fresh @ normal(r * d, seed=9)
    assert abs(float((one / one.std()).pow(4).mean()) - 3) < 4.5 * math.sqrt(24 / n_networks)
    # and the gradient of the weights is X^T D whatever was drawn
    taken = sampler.record.take()
    for family, c in zip(sizes, cotangents, strict=True):
        expected = (x.T @ c).square().sum().expand(1, n_networks)
        torch.testing.assert_close(taken[family], expected, rtol=1e-10, atol=0)


def test_norms_of_nearly_equal_tokens_with_cotangents_that_add_up_to_zero() -> None:
    """||X^T D||^2 with tokens 1e-9 apart: the textbook formula through X X^T loses all digits."""
    x0, noise = normal(1, 1, 20, seed=1), normal(2, 6, 20, seed=2)
    d = normal(2, 6, 20, seed=3)
    d[:, 0] -= d.sum(1)
    x = x0 + 1e-9 * noise
    total = d.sum(1, keepdim=True)  # of rounding size
    expected = ((x - x[:, :1]).mT @ d + x[:, :1].mT @ total).square().sum((1, 2))
    for build in BUILD.values():
        sampler = build(seeded(4))
        y = x.clone().requires_grad_()
        (product,) = sampler.project(y, {"k": (20, 1.0)})
        product.backward(d)
        (found,) = sampler.record.take()["k"]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    naive = ((x @ x.mT) * (d @ d.mT)).sum((1, 2))
    assert (naive / expected - 1).abs().min() > 10


@pytest.mark.parametrize("n_heads", [1, 2])
def test_short_queries_and_keys_have_the_right_law_backward(n_heads: int) -> None:
    """One attention layer, fixed X and V's cotangent: KS on q, k gradients and on dLoss/dX."""
    n_networks, n, d = 6000, 3, 20
    x = normal(n, d, seed=1).expand(n_networks, n, d)
    sizes = {"q": (d, 2.0), "k": (d, 0.5), "v": (d, 1.0)}
    observed = []
    for name, build in BUILD.items():
        sampler = build(seeded(10 + len(name)))
        z = x.clone().requires_grad_()
        q, k, v = (
            y.unflatten(-1, (n_heads, -1)).transpose(1, 2)
            for y in sampler.project(z, sizes, n_heads)
        )
        assert q.shape[-1] == (2 * n if name == "law" else d // n_heads)
        s = torch.softmax(q @ k.mT / math.sqrt(d // n_heads), -1) @ v
        (dx,) = torch.autograd.grad((s * normal(n_heads, n, d // n_heads, seed=2)).sum(), z)
        taken = sampler.record.take()
        observed.append(
            {f: taken[f][0].numpy() for f in sizes}
            | {"x": dx.square().sum((1, 2)).numpy(), "x entry": dx[:, 0, 0].numpy()}
            | {"x along x": (dx * x).sum((1, 2)).numpy()}
        )
    assert holm_smallest(*observed) > 0.01


# ------------------------------------------------------------------ equality in law, end to end


CASES = {
    "post_ln": (SCHEMES["post_ln"], EncoderConfig(6, 24, 3)),
    "no_ln, three heads": (SCHEMES["no_ln"], EncoderConfig(6, 24, 3, n_heads=3, d_ff=40)),
    "pre_ln_scaled, linear, two heads": (
        SCHEMES["pre_ln_scaled"],
        EncoderConfig(3, 24, 4, n_heads=2, activation="linear"),
    ),
    "no_ln_scaled, uniform attention": (
        SCHEMES["no_ln_scaled"],
        EncoderConfig(8, 24, 3, attention="uniform"),
    ),
}


def observe(
    sampler: GradientSampler, scheme: Scheme, config: EncoderConfig, n_networks: int
) -> dict[str, np.ndarray]:
    """ln of every norm of every layer; networks share the input and one readout."""
    n, d = config.n_tokens, config.d_model
    x, readout = (normal(1, n, d, seed=s).expand(n_networks, n, d) for s in (20, 21))
    found = gradient_norms(x, config, scheme, sampler, readout=readout, local=True)
    names = [name for name in found if name.startswith(("grad", "jacobian"))]
    return {
        f"{name} {layer}": values.log().numpy()
        for name in names
        for layer, values in enumerate(found[name])
        if values.std() > 1e-6 * values.mean()  # dLoss/dX^L is given, as is jacobian_v at layer 1
    }


def holm_smallest(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """Smallest Holm-corrected p of the two-sample KS tests of every observable."""
    common = a.keys() & b.keys()
    p = [stats.ks_2samp(a[key], b[key]).pvalue for key in common]
    return min(1.0, len(p) * min(p))


def agree(case: str, n_networks: int, seed: int) -> float:
    scheme, config = CASES[case]
    explicit, law = (
        observe(build(seeded(seed + i)), scheme, config, n_networks)
        for i, build in enumerate(BUILD.values())
    )
    assert len(explicit) >= config.depth * 4
    assert explicit.keys() == law.keys()
    return holm_smallest(explicit, law)


@pytest.mark.parametrize("case", CASES)
def test_explicit_and_law_agree_in_distribution(case: str) -> None:
    """5,000 networks each: dLoss/dX^l, every weight gradient and every local Jacobian norm."""
    assert agree(case, 5000, 30) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_explicit_and_law_agree_in_distribution_at_length(case: str) -> None:
    """20,000 networks each: sees distances half as large."""
    assert agree(case, 20_000, 40) > 0.01


class HookedLaw(LawGradients):
    """Draws in law whose dLoss/dX is spoiled by `change`(gradient, x)."""

    def __init__(
        self, generator: torch.Generator, change: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        super().__init__(generator)
        self.change = change

    def project(self, x: Tensor, families: Families, n_heads: int = 1) -> tuple[Tensor, ...]:
        z = x.clone()
        z.register_hook(lambda gradient: self.change(gradient, x.detach()))
        return super().project(z, families, n_heads)


def along(gradient: Tensor, x: Tensor) -> Tensor:
    """The part of the gradient in the row space of X."""
    return torch.linalg.solve(x @ x.mT, gradient @ x.mT, left=False) @ x


def test_the_comparison_rejects_wrong_fresh_parts() -> None:
    """The same test, two layers deep, with one of the two parts dropped or made too strong."""
    scheme, config = SCHEMES["post_ln"], EncoderConfig(6, 24, 2)
    explicit = observe(ExplicitGradients(seeded(50)), scheme, config, 5000)
    changes: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "dropped": along,
        "too strong": lambda g, x: 1.1 * g - 0.1 * along(g, x),
        "only fresh": lambda g, x: g - along(g, x),
    }
    for change in changes.values():
        wrong = observe(HookedLaw(seeded(51), change), scheme, config, 5000)
        assert holm_smallest(explicit, wrong) < 1e-4
    right = observe(HookedLaw(seeded(51), lambda g, x: g), scheme, config, 5000)
    assert holm_smallest(explicit, right) > 0.01


# ------------------------------------------------------------------ rank collapse


@pytest.mark.parametrize("name", BUILD)
@pytest.mark.parametrize("scheme", ["no_ln", "post_ln", "pre_ln_scaled"])
@pytest.mark.parametrize("tau", [1.0, 8.5])
def test_equal_tokens_have_no_query_and_key_gradients(name: str, scheme: str, tau: float) -> None:
    """Theorem 3.1 of Noci et al., at every layer: equal tokens stay equal."""
    some = SCHEMES[scheme]
    some = Scheme(some.name, some.title, some.norm, some.alpha_attn, some.alpha_ff, tau)
    config = EncoderConfig(5, 32, 4, n_heads=2)
    x = normal(20, 1, 32, seed=1).expand(20, 5, 32)
    found = gradient_norms(x, config, some, BUILD[name](seeded(2)), local=True)
    for quantity in ("grad", "jacobian"):
        for family in ("q", "k"):
            assert (found[f"{quantity}_{family}"] <= 1e-20 * found[f"{quantity}_v"]).all()
        assert (found[f"{quantity}_v"] > 0).all()


def test_float32_keeps_query_gradients_near_collapse() -> None:
    """Tokens 1e-4 apart: the same weights in float32 and float64, within the stated error."""

    class Rounded(ExplicitGradients):
        def _draw(self, n_networks: int, d_in: int, width: int, like: Tensor) -> Tensor:
            return super()._draw(n_networks, d_in, width, like.double()).to(like.dtype)

    config = EncoderConfig(8, 32, 2)
    x = (normal(40, 1, 32, seed=1) + 1e-4 * normal(40, 8, 32, seed=2)).float()
    readout = normal(40, 8, 32, seed=3)
    single, double = (
        gradient_norms(
            x.to(dtype), config, SCHEMES["post_ln"], Rounded(seeded(4)), readout=readout, local=True
        )
        for dtype in (torch.float32, torch.float64)
    )
    stated = 6e-8 / double["one_minus_cos"][:-1].sqrt()
    for family in ("q", "k"):
        error = (single[f"grad_{family}"] / double[f"grad_{family}"] - 1).abs()
        assert ((error / stated).mean() < 10) and (error > 0).any()


# ------------------------------------------------------------------ streams of random numbers


def small(name: str, seed: int, x: Tensor | None = None, **more: Any) -> dict[str, Tensor]:
    config = EncoderConfig(4, 20, 3, n_heads=2)
    x = normal(5, 4, 20, seed=60) if x is None else x
    return gradient_norms(x, config, SCHEMES["pre_ln"], BUILD[name](seeded(seed)), **more)


@pytest.mark.parametrize("name", BUILD)
def test_same_seed_same_norms(name: str) -> None:
    state = torch.get_rng_state()
    a, b, c = (small(name, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert all(not torch.equal(a[key], c[key]) for key in a)
    assert torch.equal(state, torch.get_rng_state())  # the global generator is not touched
    assert all((values[0] != values[1]).all() for values in a.values())  # every layer its own


@pytest.mark.parametrize("name", BUILD)
def test_networks_do_not_depend_on_each_other(name: str) -> None:
    x = normal(5, 4, 20, seed=60)
    a = small(name, 1, x, local=True)
    x[2] *= -3
    b = small(name, 1, x, local=True)
    others = torch.tensor([0, 1, 3, 4])
    for key in a:
        torch.testing.assert_close(a[key][:, others], b[key][:, others], rtol=1e-9, atol=0)
    assert (a["grad_q"][:, 2] != b["grad_q"][:, 2]).all()
    same = small(name, 1, normal(1, 4, 20, seed=60).expand(5, 4, 20))
    assert (same["grad_v"][:, 0] != same["grad_v"][:, 1]).all()


@pytest.mark.parametrize("name", BUILD)
def test_networks_in_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Split for memory: the same as one call after the other with one generator."""
    x, readout = normal(5, 4, 20, seed=60), normal(5, 4, 20, seed=61)
    monkeypatch.setattr(end_to_end, "_networks_at_once", lambda *_: 2)
    split = small(name, 1, x, readout=readout)
    monkeypatch.undo()
    config, sampler = EncoderConfig(4, 20, 3, n_heads=2), BUILD[name](seeded(1))
    for k in (0, 2, 4):
        part = slice(k, k + 2)
        whole = gradient_norms(x[part], config, SCHEMES["pre_ln"], sampler, readout=readout[part])
        for key, values in whole.items():
            assert torch.equal(split[key][:, part], values)


@pytest.mark.parametrize("name", BUILD)
@pytest.mark.parametrize("scheme", ["no_ln", "post_ln", "pre_ln"])
def test_memory_estimate_bounds_what_is_saved(name: str, scheme: str) -> None:
    """Bytes of distinct storages that autograd keeps, against the estimate that sets the parts."""
    for config in (
        EncoderConfig(16, 96, 3),
        EncoderConfig(16, 128, 3, n_heads=4, d_ff=512),
        EncoderConfig(16, 96, 3, attention="uniform"),
    ):
        saved: dict[int, int] = {}

        def pack(t: Tensor, saved: dict[int, int] = saved) -> Tensor:
            saved[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        x = torch.randn(10, 16, config.d_model, generator=seeded(1))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            gradient_norms(x, config, SCHEMES[scheme], BUILD[name](seeded(2)))
        estimate = end_to_end.SAVED_BYTES / end_to_end._networks_at_once(config, name, 4)
        assert 0.2 * estimate < sum(saved.values()) / 10 < 1.05 * estimate


def test_explicit_draws_the_numbers_of_the_forward_sampler() -> None:
    x = normal(2, 3, 20, seed=1)
    sizes = {"q": (20, 0.5), "v": (7, 1.0)}
    a = ExplicitGradients(seeded(2), "uniform").project(x, sizes)
    b = ExplicitSampler(seeded(2), "uniform").project(x, sizes)
    for y, z in zip(a, b, strict=True):
        torch.testing.assert_close(y, z)


def test_law_falls_back_to_explicit_weights_when_rows_fill_the_width() -> None:
    x = normal(2, 3, 4, 12, seed=1)  # 12 rows, 12 features, in three sequences
    results = []
    for build in BUILD.values():
        sampler, z = build(seeded(2)), x.clone().requires_grad_()
        (y,) = sampler.project(z, {"v": (9, 0.3)})
        assert y.shape == (2, 3, 4, 9)
        y.square().sum().backward()
        results.append((y, z.grad, sampler.record.take()["v"]))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_sequences_of_one_network_share_its_weights() -> None:
    for build in BUILD.values():
        sampler = build(seeded(1))
        x = normal(3, 1, 4, 16, seed=2).expand(3, 2, 4, 16).clone().requires_grad_()
        (y,) = sampler.project(x, {"v": (10, 1.0)})
        torch.testing.assert_close(y[:, 0], y[:, 1])
        c = normal(3, 2, 4, 10, seed=3)
        y.backward(c)
        expected = torch.einsum("bsni,bsnj->bij", x.detach(), c).square().sum((1, 2))
        torch.testing.assert_close(sampler.record.take()["v"][0], expected)


# ------------------------------------------------------------------ choosing, refusing


def test_make_gradient_sampler() -> None:
    assert make_gradient_sampler(EncoderConfig(32, 256, 2), seeded(0)).name == "law"
    assert make_gradient_sampler(EncoderConfig(32, 48, 2), seeded(0)).name == "explicit"
    assert (
        make_gradient_sampler(EncoderConfig(32, 256, 2), seeded(0), "explicit").name == "explicit"
    )
    uniform = EncoderConfig(32, 256, 2, distribution="uniform")
    assert make_gradient_sampler(uniform, seeded(0)).name == "explicit"
    with pytest.raises(ValueError, match="'law' needs distribution 'gaussian', got 'uniform'"):
        make_gradient_sampler(uniform, seeded(0), "law")


@pytest.mark.parametrize("name", BUILD)
def test_one_forward_pass_takes_one_backward_pass(name: str) -> None:
    sampler = BUILD[name](seeded(1))
    x = normal(2, 3, 8, seed=1).requires_grad_()
    (y,) = sampler.project(x, {"v": (4, 1.0)})
    y.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="product 0 of family 'v' was differentiated already"):
        y.sum().backward()
    assert sampler.record.take()["v"].shape == (1, 2)
    sampler.project(x, {"v": (4, 1.0)})
    with pytest.raises(RuntimeError, match="1 of 1 products of family 'v' have no gradient"):
        sampler.record.take()
    assert sampler.record.take() == {}


@pytest.mark.parametrize("name", BUILD)
def test_overflow_names_the_layer(name: str) -> None:
    config = EncoderConfig(4, 20, 150)
    x = torch.randn(2, 4, 20, generator=seeded(1))
    with pytest.raises(
        FloatingPointError,
        match=r"activations of scheme 'no_ln' .* at layer \d+ of 150 in float32: use float64",
    ):
        gradient_norms(1e15 * x, config, SCHEMES["no_ln"], sampler := BUILD[name](seeded(2)))
    config = EncoderConfig(4, 20, 40)
    with torch.no_grad():  # the sampler can be used again, and the caller's mode does not matter
        found = gradient_norms(1e-3 * x, config, SCHEMES["no_ln"], sampler)
    assert found["grad_v"].shape == (40, 2)
    readout = 1e37 * torch.randn(2, 4, 20, generator=seeded(3))
    with pytest.raises(
        FloatingPointError, match=r"gradients of scheme 'no_ln' .* at layer \d+ of 40"
    ):
        gradient_norms(1e-3 * x, config, SCHEMES["no_ln"], BUILD[name](seeded(2)), readout=readout)


def test_bad_arguments() -> None:
    config, scheme = EncoderConfig(4, 20, 1), SCHEMES["no_ln"]
    sampler = LawGradients(seeded(0))
    with pytest.raises(ValueError, match=r"x must be \(networks, 4, 20\), got \(2, 5, 20\)"):
        gradient_norms(torch.ones(2, 5, 20), config, scheme, sampler)
    with pytest.raises(ValueError, match=r"x must be float32 or float64, got torch\.float16"):
        gradient_norms(torch.ones(2, 4, 20).half(), config, scheme, sampler)
    with pytest.raises(ValueError, match=r"readout must be \(2, 4, 20\) like x, got \(4, 20\)"):
        gradient_norms(torch.ones(2, 4, 20), config, scheme, sampler, readout=torch.ones(4, 20))
    for build in BUILD.values():
        with pytest.raises(ValueError, match=r"x must be \(networks, \.\.\., tokens, d\), got"):
            build(seeded(0)).project(torch.ones(3, 4), {"v": (4, 1.0)})
