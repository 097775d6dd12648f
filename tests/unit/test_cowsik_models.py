"""The networks of Cowsik et al. 2024 as schemes: skips, LN at block outputs, tanh, gains."""

import math
import re
from collections.abc import Mapping

import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor

from sigprop.models.block import activate, block, variance_preserving_skip, with_gains
from sigprop.models.cowsik import MODES, Mode, cowsik_gains, cowsik_scheme
from sigprop.models.encoder import EncoderConfig, make_sampler, stream
from sigprop.models.samplers import ExplicitSampler, LawSampler, Sampler
from sigprop.models.schemes import Scheme, Strength

FAMILIES = ("q", "k", "v", "ff1", "ff2")


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def ln(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / centred.square().mean(-1, keepdim=True).sqrt()


def by_hand(
    x: Tensor, w: dict[str, Tensor], alpha_a: float, alpha_m: float, mode: Mode, relu: bool
) -> Tensor:
    """Y = s_A X + alpha_A Attn(LN X), X' = s_M Y + alpha_M W2 phi(W1 LN Y), in so many words."""
    d = x.shape[-1]
    s_a, s_m = (math.sqrt(1 - a * a) if mode == "conv" else 1.0 for a in (alpha_a, alpha_m))
    z = ln(x)
    a = torch.softmax((z @ w["q"]) @ (z @ w["k"]).mT / math.sqrt(d), -1)
    y = s_a * x + alpha_a * a @ (z @ w["v"])
    hidden = ln(y) @ w["ff1"]
    hidden = hidden.clamp(min=0) if relu else torch.tanh(hidden)
    out = s_m * y + alpha_m * hidden @ w["ff2"]
    return ln(out) if mode == "renorm" else out


def products(w: Mapping[str, Tensor]):
    return lambda x, widths: tuple(x @ w[family] for family in widths)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_block_is_the_papers(mode: Mode, activation: str) -> None:
    n, d = 5, 12
    w = {family: normal(d, d, seed=i) / math.sqrt(d) for i, family in enumerate(FAMILIES)}
    x = normal(n, d, seed=10)
    found = block(x, products(w), cowsik_scheme(0.3, 0.8, mode=mode), 7, activation=activation).x
    torch.testing.assert_close(found, by_hand(x, w, 0.3, 0.8, mode, activation == "relu"))


@pytest.mark.parametrize("mode", MODES)
def test_one_strength_for_each_setting(mode: Mode) -> None:
    """Strengths (E, 1, 1, 1) on networks (E, B, n, d): as if each setting ran alone."""
    settings, networks, n, d = 3, 2, 4, 8
    w = {
        family: normal(settings, networks, d, d, seed=i) / math.sqrt(d)
        for i, family in enumerate(FAMILIES)
    }
    x = normal(settings, networks, n, d, seed=11)
    attn, mlp = (torch.tensor(a, dtype=torch.float64) for a in ([0.0, 0.4, 1.0], [1.0, 0.3, 0.0]))
    strengths = {"attention": attn[:, None, None, None], "feed_forward": mlp[:, None, None, None]}
    scheme = cowsik_scheme(0.5, 0.5, mode=mode)  # its strengths are not used
    found = block(x, products(w), scheme, 1, activation="tanh", strengths=strengths).x
    for e in range(settings):
        of_one = {family: w[family][e] for family in FAMILIES}
        expected = by_hand(x[e], of_one, float(attn[e]), float(mlp[e]), mode, relu=False)
        torch.testing.assert_close(found[e], expected)


def test_strengths_0_and_1_are_identity_and_pure_branch() -> None:
    d = 9
    w = {family: normal(d, d, seed=i) for i, family in enumerate(FAMILIES)}
    x = normal(4, d, seed=20)
    off = block(x, products(w), cowsik_scheme(0.0, 0.0), 1, activation="tanh").x
    assert torch.equal(off, x)
    mlp = block(x, products(w), cowsik_scheme(0.0, 1.0), 1, activation="tanh").x
    torch.testing.assert_close(mlp, torch.tanh(ln(x) @ w["ff1"]) @ w["ff2"])


def test_skip_coefficient() -> None:
    assert variance_preserving_skip(0.6) == pytest.approx(0.8, rel=1e-14)
    torch.testing.assert_close(
        variance_preserving_skip(torch.tensor([0.0, 0.6, 1.0])), torch.tensor([1.0, 0.8, 0.0])
    )
    for alpha in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match=r"alpha must lie in \[0, 1\].*got"):
            variance_preserving_skip(alpha)


def test_trained_strengths_have_a_gradient_through_the_skip() -> None:
    d = 6
    w = {family: normal(d, d, seed=i) for i, family in enumerate(FAMILIES)}
    x = normal(3, d, seed=21)
    alpha = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)

    def loss(a: Tensor) -> Tensor:
        strengths = {"attention": a, "feed_forward": a}
        return (
            block(
                x, products(w), cowsik_scheme(0.5, 0.5), 1, activation="tanh", strengths=strengths
            )
            .x.square()
            .sum()
        )

    assert torch.autograd.gradcheck(loss, (alpha,))


def test_activations() -> None:
    x = torch.linspace(-2, 2, 9)
    assert torch.equal(activate(x, "linear"), x)
    assert torch.equal(activate(x, "tanh"), torch.tanh(x))
    assert torch.equal(activate(x, "relu"), x.clamp(min=0))


def test_entry_variances() -> None:
    """N(0, sigma_A/d) for queries and keys, sigma_V^2/d, sigma_1^2/d and sigma_2^2/d; no He."""
    scheme = cowsik_scheme(0.5, 0.5, sigma_a=3.0, sigma_v=2.0, sigma_w1=1.5, sigma_w2=0.5)
    found = [scheme.variance(family, 64, 64, "relu", depth=1) * 64 for family in FAMILIES]
    assert found == [3.0, 3.0, 4.0, 2.25, 0.25]
    assert scheme.variance("o", 64, 64, depth=1) == 1 / 64
    assert hash(scheme) == hash(
        cowsik_scheme(0.5, 0.5, sigma_a=3.0, sigma_v=2.0, sigma_w1=1.5, sigma_w2=0.5)
    )


def test_logits_have_standard_deviation_sigma_a() -> None:
    d, sigma_a, draws = 64, 2.5, 3000
    scheme = cowsik_scheme(0.5, 0.5, sigma_a=sigma_a)
    x = ln(normal(1, 1, d, seed=3)).expand(draws, 1, d)
    sampler = ExplicitSampler(torch.Generator().manual_seed(4))
    families = {f: (d, scheme.variance(f, d, d, "tanh", depth=1)) for f in ("q", "k")}
    q, k = sampler.project(x, families)
    logits = (q * k).sum(-1).flatten() / math.sqrt(d)
    # Gaussian given the query, whose squared norm fluctuates: kurtosis 3 (1 + 2/d)
    error = sigma_a**2 * math.sqrt((3 * (1 + 2 / d) - 1) / draws)
    assert abs(float(logits.square().mean()) - sigma_a**2) < 4 * error


def test_defaults_leave_the_other_schemes_as_they_are() -> None:
    scheme = Scheme("mine", "mine", "pre")
    assert [s.skip for s in scheme.sublayers] == ["unit", "unit"]
    assert not any(s.norm_after for s in scheme.sublayers)
    assert scheme.variance("ff2", 7, 7, depth=1) == 2 / 7


def test_renorm_is_an_ln_after_the_feed_forward_sublayer() -> None:
    attention, mlp = cowsik_scheme(0.5, 0.5, mode="renorm").sublayers
    assert (attention.norm_before, attention.norm_after) == (True, False)
    assert (mlp.norm_before, mlp.norm_after) == (True, True)


def test_strengths_may_fall_with_depth() -> None:
    scheme = cowsik_scheme(Strength(0.8, 0.5), Strength(0.8, 0.5))
    assert [s.strength.at(16) for s in scheme.sublayers] == [0.2, 0.2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "cnv"}, "mode 'cnv' is unknown: did you mean 'conv'"),
        ({"sigma_a": 0.0}, "sigma_a must be positive, got 0.0"),
        ({"sigma_w2": math.nan}, "sigma_w2 must be positive, got nan"),
        ({"alpha_attn": 1.5}, "alpha_attn must stay in [0, 1]"),
        ({"alpha_ff": -0.1}, "alpha_ff must stay in [0, 1]"),
    ],
)
def test_bad_settings(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        cowsik_scheme(**{"alpha_attn": 0.5, "alpha_ff": 0.5} | change)


def test_bad_scheme_fields() -> None:
    with pytest.raises(ValueError, match="skip 'one' is unknown"):
        Scheme("s", "s", "pre", skip="one")
    with pytest.raises(ValueError, match="gains: family 'w' is unknown"):
        Scheme("s", "s", "pre", gains=(("w", 1.0),))
    with pytest.raises(ValueError, match="gains: v must be positive and finite, got -1"):
        Scheme("s", "s", "pre", gains=(("v", -1.0),))


# -------------------------------------------------------------------- whole encoders

GAINS = {"sigma_a": 2.0, "sigma_v": 1.3, "sigma_w1": 2.5, "sigma_w2": 0.7}


@pytest.mark.parametrize("sampler", ["explicit", "law"])
def test_stream_with_tensors_equals_one_scheme_for_each_network(sampler: str) -> None:
    """Networks of two settings in one batch, and the same draws with a scheme of their own."""
    config = EncoderConfig(4, 30, 3, activation="tanh")
    x = normal(2, 4, 30, seed=1)
    alphas = [(0.3, 0.8), (0.6, 0.2)]
    sigmas = [GAINS, {"sigma_a": 1.0, "sigma_v": 1.0, "sigma_w1": 1.0, "sigma_w2": 2.0}]

    def last(scheme: Scheme, **options) -> Tensor:
        draws = make_sampler(config, torch.Generator().manual_seed(5), sampler)
        *_, state = stream(x, config, scheme, draws, **options)
        return state.x @ state.x.mT

    column = torch.tensor(alphas, dtype=torch.float64).T[..., None, None]  # (2, B, 1, 1)
    stacked = [
        torch.tensor([s[name] for s in sigmas], dtype=torch.float64)[:, None, None]
        for name in GAINS
    ]
    together = last(
        cowsik_scheme(0.5, 0.5),
        strengths={"attention": column[0], "feed_forward": column[1]},
        gains=cowsik_gains(*stacked),
    )
    for k in range(2):
        alone = last(cowsik_scheme(*alphas[k], **sigmas[k]))
        torch.testing.assert_close(together[k], alone[k])


def test_gains_are_variances() -> None:
    w = {family: normal(5, 5, seed=i) for i, family in enumerate(FAMILIES)}
    x = normal(3, 5, seed=9)
    project = with_gains(products(w), {"q": 4.0, "v": torch.tensor(9.0).double()})
    q, k, v = project(x, {"q": 5, "k": 5, "v": 5})
    torch.testing.assert_close(q, 2 * x @ w["q"])
    assert torch.equal(k, x @ w["k"])
    torch.testing.assert_close(v, 3 * x @ w["v"])


@pytest.mark.parametrize("sampler", ["explicit", "law"])
def test_renorm_keeps_the_norm_of_every_token(sampler: str) -> None:
    config = EncoderConfig(4, 24, 4, activation="tanh")
    scheme = cowsik_scheme(0.4, 0.7, mode="renorm", **GAINS)
    draws = make_sampler(config, torch.Generator().manual_seed(6), sampler)
    for state in stream(normal(3, 4, 24, seed=2), config, scheme, draws):
        norms = state.x.square().sum(-1)
        if state.layer:
            torch.testing.assert_close(norms, torch.full_like(norms, 24.0))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["coordinates", "products"])
def test_law_and_explicit_draws_agree(mode: Mode, kind: str) -> None:
    """Token variance and inner products after 3 tanh blocks, two-sample KS at Holm level 1e-3."""
    n, d, networks = 4, 24, 1500
    config = EncoderConfig(n, d, 3, activation="tanh")
    scheme = cowsik_scheme(0.5, 0.7, mode=mode, **GAINS)
    x = normal(1, n, d, seed=7).expand(networks, n, d)

    def observe(sampler: Sampler) -> list[Tensor]:
        *_, state = stream(x, config, scheme, sampler)
        gram = state.x @ state.x.mT / d
        off = gram.sum((-2, -1)) - gram.diagonal(dim1=-2, dim2=-1).sum(-1)
        return [gram[:, 0, 0], gram[:, 0, 1], off]

    law = make_sampler(config, torch.Generator().manual_seed(8), "law")
    if kind == "products":
        law = LawSampler(torch.Generator().manual_seed(8))
    explicit = ExplicitSampler(torch.Generator().manual_seed(9))
    pairs = zip(observe(law), observe(explicit), strict=True)
    values = sorted(
        ks_2samp(a.numpy(), b.numpy()).pvalue for a, b in pairs if float(a.std()) > 1e-9
    )
    assert values[0] * len(values) > 1e-3
