"""The encoder streams the right networks, in constant memory, and stops clearly when it cannot."""

import dataclasses
import itertools
import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from sigprop.instruments.propagation import measure, rho_ratio
from sigprop.models.block import block
from sigprop.models.encoder import EncoderConfig, LayerState, make_sampler, stream
from sigprop.models.samplers import ExplicitSampler, LawSampler
from sigprop.models.schemes import SCHEMES, Scheme, Strength


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw_x(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64).to(dtype)


def last(states: object) -> LayerState:
    *_, final = states
    return final


def test_stream_applies_the_block_with_the_scheme_variances() -> None:
    """Against blocks with weights read off the explicit sampler by projecting the identity."""
    config = EncoderConfig(3, 4, 2, n_heads=2, d_ff=6)
    scheme = dataclasses.replace(SCHEMES["pre_ln_scaled"], init="xavier", tau=2.0)
    x = draw_x(1, 3, 4)
    drawn = ExplicitSampler(seeded(7))
    states = list(stream(x, config, scheme, ExplicitSampler(seeded(7)), keep_attention=True))
    assert [state.layer for state in states] == [0, 1, 2]
    assert torch.equal(states[0].x, x)
    assert states[0].attention is None

    def project(z: Tensor, widths: dict[str, int]) -> tuple[Tensor, ...]:
        d_in = z.shape[-1]
        eye = torch.eye(d_in, dtype=torch.float64)[None]
        weights = drawn.project(eye, {f: (m, 2 / (d_in + m)) for f, m in widths.items()})
        return tuple(z @ w for w in weights)

    y = x
    for state in states[1:]:
        y, a = block(y, project, scheme, 2, n_heads=2, d_ff=6, keep_attention=True)
        torch.testing.assert_close(state.x, y, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(state.attention, a, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("sampler_name", "dtype"),
    list(itertools.product(("explicit", "law"), (torch.float32, torch.float64))),
)
def test_stream_is_deterministic_and_keeps_the_dtype(sampler_name: str, dtype: torch.dtype) -> None:
    config = EncoderConfig(4, 16, 3, n_heads=2)
    x = draw_x(5, 2, 4, 16, dtype=dtype)
    kept = x.clone()
    a, b, c = (
        last(stream(x, config, SCHEMES["post_ln"], make_sampler(config, seeded(s), sampler_name)))
        for s in (1, 1, 2)
    )
    assert a.layer == 3
    assert a.x.shape == x.shape
    assert a.x.dtype == dtype
    assert torch.equal(a.x, b.x)
    assert not torch.equal(a.x, c.x)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("sampler_name", ["explicit", "law"])
def test_sequences_of_one_network_share_its_weights(sampler_name: str) -> None:
    config = EncoderConfig(3, 16, 2)
    x = draw_x(2, 1, 3, 16).expand(2, 2, 3, 16)
    y = last(stream(x, config, SCHEMES["no_ln"], make_sampler(config, seeded(3), sampler_name))).x
    torch.testing.assert_close(y[:, 0], y[:, 1], rtol=1e-10, atol=1e-10)


def test_inference_mode_does_not_leak_to_the_caller() -> None:
    config = EncoderConfig(3, 8, 2)
    for state in stream(draw_x(1, 3, 8), config, SCHEMES["no_ln"], LawSampler(seeded(1))):
        assert not torch.is_inference_mode_enabled()
        leaf = state.x.clone().requires_grad_()
        leaf.square().sum().backward()
        torch.testing.assert_close(leaf.grad, 2 * state.x)


# ------------------------------------------------------------------ against closed forms


@pytest.mark.parametrize("sampler_name", ["explicit", "law"])
@pytest.mark.parametrize("name", ["no_ln", "no_ln_scaled"])
def test_uniform_linear_networks_follow_theorem_3_2(name: str, sampler_name: str) -> None:
    """No LN, uniform attention, linear (Noci et al. 2022, Lemmas 3.2, 3.3 and Theorem 3.2).

    With a = b = 1 + alpha^2, E[C_L] = (a b)^L C_0, E[T_L] = b^L [T_0 + C_0 (a^L - 1) / n].
    4,000 networks, deviations below 4 standard errors.
    """
    n, d, depth, n_networks = 5, 24, 4, 4000
    config = EncoderConfig(n, d, depth, activation="linear", attention="uniform")
    x = draw_x(1, n, d) + 0.3 * draw_x(1, 1, d, seed=2)
    start = measure(x)
    t_0, c_0 = float(start["sum_sq_norm"]), float(start["sum_inner"])
    sampler = make_sampler(config, seeded(4), sampler_name)
    final = measure(last(stream(x.expand(n_networks, n, d), config, SCHEMES[name], sampler)).x)
    a = b = 1 + (1.0 if name == "no_ln" else 1 / depth)
    expected = {
        "sum_inner": (a * b) ** depth * c_0,
        "sum_sq_norm": b**depth * (t_0 + c_0 / n * (a**depth - 1)),
    }
    for quantity, value in expected.items():
        error = float(final[quantity].std()) / math.sqrt(n_networks)
        assert error < 0.05 * value
        assert abs(float(final[quantity].mean()) - value) < 4 * error
    rho_0 = (c_0 - t_0) / ((n - 1) * t_0)
    rho = 1 - (1 - rho_0) * n / (n + (1 + (n - 1) * rho_0) * (a**depth - 1))
    measured = float(rho_ratio(final["sum_sq_norm"], final["sum_inner"], n))
    assert measured == pytest.approx(rho, abs=0.02)
    assert abs(measured - rho_0) > 0.1  # the theorem says something here


@pytest.mark.parametrize("sampler_name", ["explicit", "law"])
@pytest.mark.parametrize(
    ("activation", "he", "gain"), [("relu", True, 1.0), ("relu", False, 0.5), ("linear", True, 1.0)]
)
def test_feed_forward_branch_keeps_its_power(
    activation: str, he: bool, gain: float, sampler_name: str
) -> None:
    """E||FF(X)||^2 = gain ||X||^2 under fan-in, whatever d_ff; 2,000 networks.

    Norms only, because the states may be coordinates; <X, FF(X)> has mean zero.
    """
    config = EncoderConfig(2, 12, 1, d_ff=30, activation=activation)
    ff_only = Scheme("ff", "ff", "none", Strength(0.0), Strength(1e3), he=he)
    x = draw_x(1, 2, 12)
    sampler = make_sampler(config, seeded(5), sampler_name)
    y = last(stream(x.expand(2000, 2, 12), config, ff_only, sampler)).x
    ratio = (y.square().sum((-2, -1)) / x.square().sum() - 1) / 1e6
    error = float(ratio.std()) / math.sqrt(2000)
    assert error < 0.02
    assert abs(float(ratio.mean()) - gain) < 4 * error


@pytest.mark.parametrize("n_heads", [1, 3])
def test_attention_branch_keeps_the_power_of_the_mean_token(n_heads: int) -> None:
    """E||S||^2 = n ||xbar||^2 under uniform attention and fan-in, for any number of heads."""
    config = EncoderConfig(4, 12, 1, n_heads=n_heads, attention="uniform")
    attention_only = Scheme("attn", "attn", "none", Strength(1e3), Strength(0.0))
    x = draw_x(1, 4, 12)
    for sampler in (ExplicitSampler(seeded(6)), LawSampler(seeded(7))):
        y = last(stream(x.expand(3000, 4, 12), config, attention_only, sampler)).x
        ratio = ((y - x) / 1e3).square().sum((-2, -1)) / (4 * x.mean(1).square().sum())
        error = float(ratio.std()) / math.sqrt(3000)
        assert abs(float(ratio.mean()) - 1) < 4 * error


# ------------------------------------------------------------------ memory


PROGRAM = """
import pathlib, resource, sys, torch
torch.set_num_threads(1)
from sigprop.models.encoder import EncoderConfig, stream
from sigprop.models.samplers import LawSampler
from sigprop.models.schemes import SCHEMES
depth, keep = int(sys.argv[1]), sys.argv[2] == "keep"
config = EncoderConfig(2, 2048, depth, attention="uniform", activation="linear")
x = torch.randn(12, 2, 2048, generator=torch.Generator().manual_seed(0))
kept = []
for state in stream(x, config, SCHEMES["no_ln_scaled"], LawSampler(torch.Generator())):
    kept += [state.x] * keep
status = pathlib.Path("/proc/self/status")
if status.exists():  # on Linux ru_maxrss of a child starts at the memory of its parent
    print(status.read_text().split("VmHWM:")[1].split()[0])
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak_memory(depth: int, keep: str = "stream") -> int:
    """Peak resident memory of a process of its own; one state takes 0.2 MB."""
    arguments = [sys.executable, "-c", PROGRAM, str(depth), keep]
    return int(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)


def test_memory_does_not_grow_with_depth() -> None:
    short, long = peak_memory(100), peak_memory(1000)
    assert long / short < 1.1
    assert peak_memory(1000, "keep") / short > 1.2  # the measurement sees states that are kept


# ------------------------------------------------------------------ refusing


def test_activations_that_overflow_stop_with_advice() -> None:
    config = EncoderConfig(4, 16, 400)
    x = draw_x(2, 4, 16, dtype=torch.float32)
    for sampler in (ExplicitSampler(seeded(8)), LawSampler(seeded(9))):
        with pytest.raises(
            FloatingPointError,
            match=r"scheme 'no_ln' are not finite at layer \d+ of 400 in float32: use float64 or",
        ) as caught:
            last(stream(x, config, SCHEMES["no_ln"], sampler))
        assert "\n" not in str(caught.value)


def test_large_finite_activations_are_accepted() -> None:
    """A sum that overflows is not an activation that overflows."""
    config = EncoderConfig(4, 16, 1, attention="uniform", activation="linear")
    x = torch.full((1, 4, 16), 2e37)
    off = Scheme("off", "off", "none", Strength(0.0), Strength(0.0))
    assert not torch.isfinite(x.sum())
    assert torch.equal(last(stream(x, config, off, ExplicitSampler(seeded(1)))).x, x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"d_model": -8}, "d_model must be at least 1, got -8"),
        ({"n_tokens": 0}, "n_tokens must be at least 1, got 0"),
        ({"n_heads": 0}, "n_heads must be at least 1, got 0"),
        ({"d_ff": -1}, "d_ff must be at least 1, got -1"),
        ({"n_heads": 3}, "n_heads = 3 does not divide d_model = 16: choose a divisor"),
        ({"activation": "rleu"}, "activation 'rleu' is unknown: did you mean 'relu'"),
        ({"attention": "softmx"}, "attention 'softmx' is unknown: did you mean 'softmax'"),
        ({"distribution": "gauss"}, "distribution 'gauss' is unknown: did you mean 'gaussian'"),
    ],
)
def test_config_refuses(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        EncoderConfig(**{"n_tokens": 4, "d_model": 16, "depth": 2, **change})
    assert "\n" not in str(caught.value)


def test_stream_refuses_inputs_that_do_not_fit() -> None:
    config = EncoderConfig(4, 16, 1)
    for x in (torch.ones(4, 16), torch.ones(1, 3, 16), torch.ones(1, 4, 8)):
        with pytest.raises(ValueError, match=r"x must be \(networks, \.\.\., 4, 16\), got \("):
            next(stream(x, config, SCHEMES["no_ln"], LawSampler(seeded(1))))
    with pytest.raises(ValueError, match=r"x must be float32 or float64, got torch\.float16"):
        half = torch.ones(1, 4, 16, dtype=torch.float16)
        next(stream(half, config, SCHEMES["no_ln"], LawSampler(seeded(1))))


def test_default_hidden_width() -> None:
    assert EncoderConfig(4, 16, 1).hidden == 16
    assert EncoderConfig(4, 16, 1, d_ff=64).hidden == 64
