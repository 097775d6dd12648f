"""The stream in coordinates: inner products kept exactly, transitions exact in law."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from sigprop.instruments.propagation import measure
from sigprop.models.block import layer_norm
from sigprop.models.coordinates import CoordinateSampler, coordinates_fit
from sigprop.models.encoder import EncoderConfig, LayerState, make_sampler, stream
from sigprop.models.samplers import ExplicitSampler, LawSampler, Sampler
from sigprop.models.schemes import SCHEMES, Scheme


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tokens(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """Gaussian tokens with a mean over features, which LN takes away."""
    x = torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)
    return (x + 0.6 * torch.randn(*shape[:-1], 1, generator=seeded(seed + 1000))).to(dtype)


def spread_error(f: Tensor, x: Tensor) -> float:
    """Error of P F F^T P relative to P X X^T P, with P the centring matrix, in float64."""
    f, x = (y.double() - y.double().mean(-2, keepdim=True) for y in (f, x))
    gram = x @ x.mT
    return float(torch.linalg.norm(f @ f.mT - gram) / torch.linalg.norm(gram))


def gram_error(f: Tensor, x: Tensor) -> float:
    f, x = f.double(), x.double()
    gram = x @ x.mT
    return float((f @ f.mT - gram).abs().max() / gram.abs().max())


# ------------------------------------------------------------------ exact statements


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.float64, 3e-14)])
@pytest.mark.parametrize(("n", "d"), [(1, 6), (5, 18), (6, 300), (4, 4500)])
def test_enter_keeps_inner_products_and_feature_means(
    n: int, d: int, dtype: torch.dtype, tolerance: float
) -> None:
    x = tokens(3, n, d, dtype=dtype)
    c = CoordinateSampler(seeded(0), n, d).enter(x)
    assert c.shape == (3, n, n + 1)
    assert c.dtype == dtype
    assert gram_error(c, x) < tolerance
    e = x.double().mean(-1) * math.sqrt(d)  # up to one sign per network
    scale = x.double().norm(dim=-1)
    flipped = torch.where(c[:, :1, -1] * e[:, :1] < 0, -1.0, 1.0)
    difference = (flipped * c[..., -1].double() - e).abs()
    assert (difference / scale).max() < tolerance
    assert e.abs().max() > 1


def test_enter_sees_that_features_have_no_mean() -> None:
    x = tokens(2, 3, 40)
    x = x - x.mean(-1, keepdim=True)
    c = CoordinateSampler(seeded(0), 3, 40).enter(x)
    assert c[..., -1].abs().max() < 1e-13
    assert gram_error(c, x) < 1e-14


@pytest.mark.parametrize("n_heads", [1, 4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.float64, 3e-14)])
def test_compress_keeps_inner_products(n_heads: int, dtype: torch.dtype, tolerance: float) -> None:
    sampler = CoordinateSampler(seeded(0), 6, 64, n_heads)
    assert sampler.width % n_heads == 0
    x = tokens(5, 6, sampler.width, dtype=dtype)
    c = sampler.compress(x)
    assert c.shape == (5, 6, 7)
    assert gram_error(c, x) < tolerance
    # so does the component along the ones direction, up to one sign per network
    ratio = c[..., -1] / x[..., 6]
    torch.testing.assert_close(ratio.abs(), torch.ones_like(ratio), rtol=1e-4, atol=1e-4)
    assert torch.equal(ratio.sign(), ratio[:, :1].sign().expand_as(ratio))
    assert gram_error(sampler.extend(c), x) < tolerance


@pytest.mark.parametrize("way", ["enter", "compress"])
def test_nearly_equal_tokens_keep_their_differences(way: str) -> None:
    """Spread 1e-6: float64 exact, float32 as good as the rounding of one column allows."""
    n, d = 16, 256
    sampler = CoordinateSampler(seeded(0), n, d)
    m = d if way == "enter" else sampler.width
    x = tokens(8, 1, m, dtype=torch.float32) + 1e-6 * tokens(8, n, m, seed=2, dtype=torch.float32)
    keep = getattr(sampler, way)
    assert spread_error(keep(x.double()), x) < 1e-9
    assert spread_error(keep(x), x) < 0.05
    # a plain QR, without reference to one token, is worse
    plain = torch.linalg.qr(x.mT, mode="r").R.mT
    assert spread_error(plain, x) > 2 * spread_error(keep(x), x)


@pytest.mark.parametrize("way", ["enter", "compress"])
def test_equal_tokens_stay_equal(way: str) -> None:
    sampler = CoordinateSampler(seeded(0), 5, 30)
    m = 30 if way == "enter" else sampler.width
    x = tokens(2, 1, m, dtype=torch.float32).expand(2, 5, m)
    c = getattr(sampler, way)(x)
    assert torch.equal(c, c[:, :1].expand_as(c))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.float64, 1e-13)])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_norm_is_layer_norm(scale: float, dtype: torch.dtype, tolerance: float) -> None:
    x = scale * tokens(4, 6, 90, dtype=dtype)
    sampler = CoordinateSampler(seeded(0), 6, 90)
    y = sampler.norm(sampler.extend(sampler.enter(x)))
    assert gram_error(y, layer_norm(x)) < tolerance


def test_norm_of_tiny_tokens_uses_the_same_epsilon() -> None:
    x = 1e-6 * tokens(1, 3, 30)
    sampler = CoordinateSampler(seeded(0), 3, 30)
    y = sampler.norm(sampler.extend(sampler.enter(x)))
    assert gram_error(y, layer_norm(x)) < 1e-12
    assert float(y.square().sum(-1).max()) < 0.9 * 30  # epsilon is seen


def test_products_have_the_gram_law_of_explicit_weights() -> None:
    """One product into the stream: C of (X, XW) has mean Gram [XX^T, 0; 0, s^2 d XX^T]; 20,000."""
    n, d, m = 3, 14, 20_000
    sampler = CoordinateSampler(seeded(3), n, d)
    x = tokens(1, n, d).expand(m, n, d)
    c = sampler.extend(sampler.enter(x))
    (y,) = sampler.project(c, {"v": (d, 0.5)})
    (w,) = sampler.project(y, {"ff2": (d, 1 / d)})
    xx = x[0] @ x[0].mT
    e = 1 / math.sqrt(d)
    expected = {
        "yy": (y @ y.mT, 0.5 * d * xx),
        "xy": (c @ y.mT, 0 * xx),
        "ww": (w @ w.mT, 0.5 * d * xx),
        "xw": (c @ w.mT, 0 * xx),
        "yw": (y @ w.mT, 0 * xx),
        "along e": (y[..., 3:4] @ y[..., 3:4].mT, 0.5 * xx),
        "mean over features": (w[..., 3:4] @ w[..., 3:4].mT * e**2, 0.5 * xx / d),
    }
    for name, (found, value) in expected.items():
        z = (found.mean(0) - value) / (found.std(0) / math.sqrt(m))
        assert z.abs().max() < 4.5, name


# ------------------------------------------------------------------ equality in law


SMALL, WIDE = EncoderConfig(6, 24, 6), EncoderConfig(4, 32, 6)
LINEAR, UNIFORM = {"activation": "linear"}, {"attention": "uniform"}
CASES: dict[str, tuple[Scheme, EncoderConfig]] = {
    "no_ln": (SCHEMES["no_ln"], SMALL),
    "no_ln, linear, two heads": (SCHEMES["no_ln"], replace(WIDE, n_heads=2, **LINEAR)),
    "no_ln, uniform": (SCHEMES["no_ln"], replace(SMALL, **UNIFORM)),
    "no_ln_scaled, uniform, linear, narrow": (
        SCHEMES["no_ln_scaled"],
        replace(WIDE, d_ff=3, **LINEAR, **UNIFORM),
    ),
    "post_ln, two heads": (SCHEMES["post_ln"], replace(SMALL, n_heads=2)),
    "post_ln, linear": (SCHEMES["post_ln"], replace(WIDE, d_ff=60, **LINEAR)),
    "post_ln_scaled, uniform, two heads": (
        SCHEMES["post_ln_scaled"],
        replace(WIDE, n_heads=2, **UNIFORM),
    ),
    "post_ln, uniform, linear": (SCHEMES["post_ln"], replace(SMALL, **LINEAR, **UNIFORM)),
    "pre_ln, wide hidden": (SCHEMES["pre_ln"], replace(WIDE, d_ff=64)),
    "pre_ln_scaled, linear, two heads": (
        SCHEMES["pre_ln_scaled"],
        replace(SMALL, n_heads=2, **LINEAR),
    ),
    "pre_ln, uniform": (SCHEMES["pre_ln"], replace(SMALL, d_ff=7, **UNIFORM)),
    "pre_ln, uniform, linear": (SCHEMES["pre_ln"], replace(WIDE, **LINEAR, **UNIFORM)),
    "pre_ln, xavier, two heads": (
        replace(SCHEMES["pre_ln"], init="xavier", tau=2.0),
        replace(WIDE, n_heads=2, d_ff=48),
    ),
    "post_ln, masked, four heads": (SCHEMES["post_ln"], replace(WIDE, n_heads=4)),
    "no_ln, masked, uniform": (SCHEMES["no_ln"], replace(WIDE, **UNIFORM)),
}


# Every pair of norm, activation, attention and number of heads; the slow test runs all cases.
COVERING = (
    "no_ln",
    "no_ln, linear, two heads",
    "no_ln, masked, uniform",
    "post_ln, linear",
    "post_ln_scaled, uniform, two heads",
    "pre_ln, uniform, linear",
    "pre_ln, xavier, two heads",
)
# Holm over the observables of a case, Bonferroni over cases: 0.01 for all comparisons together.
LEVEL = 0.01 / len(CASES)


def samplers(config: EncoderConfig, seed: int) -> tuple[ExplicitSampler, CoordinateSampler]:
    c = config
    return ExplicitSampler(seeded(seed)), CoordinateSampler(
        seeded(seed + 1), c.n_tokens, c.d_model, c.n_heads, c.activation
    )


def observe(
    sampler: Sampler,
    case: tuple[Scheme, EncoderConfig],
    masked: bool = False,
    layers: tuple[int, ...] = (1, 3, 6),
    n_networks: int = 3000,
) -> dict[str, np.ndarray]:
    """cos_mean, ln T, C and entropy of networks that share one float64 input."""
    scheme, config = case
    n = config.n_tokens
    mask = torch.ones(n, n, dtype=torch.bool).tril() if masked else None
    x = tokens(1, n, config.d_model, seed=16).expand(n_networks, -1, -1)
    observed = {}
    for state in stream(x, config, scheme, sampler, mask=mask, keep_attention=True):
        if state.layer in layers:
            values = measure(state.x, state.attention)
            observed[f"cos {state.layer}"] = values["cos_mean"].numpy()
            observed[f"C {state.layer}"] = values["sum_inner"].numpy()
            if scheme.norm != "post":  # there T is n d, up to rounding
                observed[f"ln T {state.layer}"] = values["sum_sq_norm"].log().numpy()
            if config.attention == "softmax":
                observed[f"entropy {state.layer}"] = values["attention_entropy"].numpy()
    return observed


def holm_smallest(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """Smallest Holm-corrected p of the two-sample KS tests of every observable, m times p."""
    p = [stats.ks_2samp(a[key], b[key]).pvalue for key in a]
    return min(1.0, len(p) * min(p))


@pytest.mark.parametrize("name", COVERING)
def test_explicit_and_coordinates_agree_in_distribution(name: str) -> None:
    """3,000 networks each, n 6 and d 24 or n 4 and d 32, at layers 1, 3 and 6."""
    case, masked = CASES[name], "masked" in name
    explicit, law = (observe(s, case, masked) for s in samplers(case[1], 50))
    assert holm_smallest(explicit, law) > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_explicit_and_coordinates_agree_in_distribution_at_length(name: str) -> None:
    """12,000 networks each: sees distances half as large."""
    case, masked = CASES[name], "masked" in name
    explicit, law = (observe(s, case, masked, n_networks=12_000) for s in samplers(case[1], 70))
    assert holm_smallest(explicit, law) > LEVEL


@pytest.mark.parametrize("name", ["no_ln", "post_ln", "pre_ln"])
def test_float32_follows_the_spread_of_nearly_equal_tokens(name: str) -> None:
    """Spread 1e-5: ln(1 - cos) in float32 coordinates against float64 explicit weights; 3,000.

    At 1e-6 float32 itself is too coarse: ln(1 - cos) is then off by 0.02 to 0.09 after 3 blocks in
    coordinates, and by 0.04 to 0.23 with explicit weights.
    """
    config = EncoderConfig(6, 24, 3)
    x = (tokens(1, 1, 24) + 1e-5 * tokens(1, 6, 24, seed=2)).float()
    found = []
    for sampler, dtype in zip(samplers(config, 80), (torch.float64, torch.float32), strict=True):
        states = stream(x.to(dtype).expand(3000, -1, -1), config, SCHEMES[name], sampler)
        found.append(
            {str(s.layer): measure(s.x)["one_minus_cos"].log().numpy() for s in states if s.layer}
        )
    assert float(np.median(found[0]["3"])) < math.log(1e-9)
    assert holm_smallest(*found) > LEVEL


class NewDirectionsOnly(CoordinateSampler):
    """Forgets the component along the directions in use: a common mistake."""

    def _into_stream(self, f: Tensor, used: int) -> Tensor:
        y = super()._into_stream(f, used)
        y[..., :used] = 0
        return y


class TooManyDegrees(CoordinateSampler):
    """Does not take the directions in use off the degrees of freedom."""

    def _into_stream(self, f: Tensor, used: int) -> Tensor:
        self.d_model += used
        try:
            return super()._into_stream(f, used)
        finally:
            self.d_model -= used


class NoCentring(CoordinateSampler):
    def norm(self, x: Tensor, branch: object = None) -> Tensor:
        scale = torch.rsqrt(x.square().sum(-1, keepdim=True) / self.d_model)
        return x * scale


class WrongLogits(CoordinateSampler):
    """The logits of the block's own width in place of the model's."""

    def project(self, x: Tensor, families: object, n_heads: int = 1) -> tuple[Tensor, ...]:
        q, *rest = super().project(x, families, n_heads)
        return (q * math.sqrt(self.d_model / self.width) if len(rest) == 2 else q, *rest)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (NewDirectionsOnly, "no_ln"),
        (TooManyDegrees, "no_ln"),
        (NoCentring, "pre_ln, wide hidden"),
        (WrongLogits, "pre_ln, wide hidden"),
    ],
)
def test_the_comparison_rejects_mistakes(wrong: type[CoordinateSampler], name: str) -> None:
    case = CASES[name]
    c = case[1]
    explicit = observe(ExplicitSampler(seeded(60)), case)
    law = observe(wrong(seeded(61), c.n_tokens, c.d_model, c.n_heads, c.activation), case)
    assert holm_smallest(explicit, law) < LEVEL / 100


def test_the_comparison_rejects_a_wrong_variance() -> None:
    scheme, config = CASES["no_ln"]
    sampler = samplers(config, 62)[1]
    project = sampler.project

    def wrong(x: Tensor, families: dict, n_heads: int = 1) -> tuple[Tensor, ...]:
        return project(x, {f: (m, 1.1 * s) for f, (m, s) in families.items()}, n_heads)

    sampler.project = wrong
    explicit = observe(ExplicitSampler(seeded(60)), (scheme, config))
    assert holm_smallest(explicit, observe(sampler, (scheme, config))) < LEVEL / 100


# ------------------------------------------------------------------ the stream, choosing, refusing


def last(states: object) -> LayerState:
    *_, final = states
    return final


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_heads", [1, 2])
def test_stream_is_deterministic_and_keeps_the_dtype(dtype: torch.dtype, n_heads: int) -> None:
    config = EncoderConfig(4, 16, 3, n_heads=n_heads)
    x = tokens(5, 4, 16, dtype=dtype)
    kept = x.clone()
    global_state = torch.get_rng_state()
    states = [
        list(stream(x, config, SCHEMES["post_ln"], make_sampler(config, seeded(s), "law")))
        for s in (1, 1, 2)
    ]
    a, b, c = (s[-1].x for s in states)
    assert [state.x.shape for state in states[0]] == [(5, 4, 5)] * 4
    assert a.dtype == dtype
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(x, kept)
    assert torch.equal(global_state, torch.get_rng_state())
    assert gram_error(states[0][0].x, x) < 3e-6  # layer 0 is the input


def test_make_sampler_chooses_coordinates_where_they_fit() -> None:
    assert coordinates_fit(4, 15)
    assert not coordinates_fit(4, 14)
    for d_model, sequences, kind in (
        (15, 1, CoordinateSampler),
        (14, 1, LawSampler),
        (64, 2, LawSampler),
    ):
        sampler = make_sampler(EncoderConfig(4, d_model, 1), seeded(0), "law", sequences)
        assert type(sampler) is kind
        assert sampler.name == "law"
    sampler = make_sampler(EncoderConfig(4, 64, 1, n_heads=4), seeded(0))
    assert isinstance(sampler, CoordinateSampler)
    assert sampler.width == 16


def test_several_sequences_draw_products() -> None:
    config = EncoderConfig(4, 16, 2)
    x = tokens(3, 1, 4, 16).expand(3, 2, 4, 16)
    y = last(stream(x, config, SCHEMES["no_ln"], make_sampler(config, seeded(3), "law"))).x
    z = last(stream(x, config, SCHEMES["no_ln"], LawSampler(seeded(3)))).x
    assert torch.equal(y, z)


def test_one_token_and_the_narrowest_model() -> None:
    config = EncoderConfig(1, 6, 3, n_heads=3)
    sampler = make_sampler(config, seeded(4), "law")
    assert isinstance(sampler, CoordinateSampler)
    y = last(stream(tokens(2, 1, 6), config, SCHEMES["post_ln"], sampler)).x
    torch.testing.assert_close(y.square().sum(-1), torch.full((2, 1), 6.0, dtype=torch.float64))


def test_overflow_stops_with_advice() -> None:
    config = EncoderConfig(4, 16, 400)
    x = tokens(2, 4, 16, dtype=torch.float32)
    with pytest.raises(FloatingPointError, match=r"not finite at layer \d+ of 400 in float32"):
        last(stream(x, config, SCHEMES["no_ln"], make_sampler(config, seeded(8), "law")))


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"at least 3 \(n_tokens \+ 1\) = 15 .* got 14: use LawS"):
        CoordinateSampler(seeded(0), 4, 14)
    with pytest.raises(ValueError, match="activation 'rleu' is unknown: did you mean 'relu'"):
        CoordinateSampler(seeded(0), 4, 64, activation="rleu")
    sampler = CoordinateSampler(seeded(0), 4, 64)
    x = torch.ones(1, 4, sampler.width, requires_grad=True)
    with pytest.raises(ValueError, match="sampler 'law' has no gradient"):
        sampler.project(x, {"v": (64, 1.0)})
    with pytest.raises(ValueError, match=r"x must be \(networks, 4, 64\), got \(1, 3, 64\): make"):
        sampler.enter(torch.ones(1, 3, 64))
    linear = EncoderConfig(4, 64, 1, activation="linear")
    with pytest.raises(ValueError, match="made for activation 'relu', the config has 'linear'"):
        last(stream(torch.ones(1, 4, 64), linear, SCHEMES["no_ln"], sampler))
