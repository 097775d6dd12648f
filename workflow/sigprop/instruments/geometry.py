"""Geometry of tokens and of their gradients: two moments a layer, and the exponents they give.

Tokens x_i (n of them, width d) and gradients delta_i = dLoss/dx_i are seen through

    q = mean_i |x_i|^2 / d         p = mean_{i != k} x_i.x_k / d        rho = p / q
    g = mean_i |delta_i|^2         h = mean_{i != k} delta_i.delta_k

(Cowsik et al. 2024, arXiv 2403.02579). q fluctuates together for all tokens of a network, so means
of q and p over networks come first, ratios and logarithms after.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from sigprop.instruments.tape import Tape
from sigprop.models.block import with_gains
from sigprop.models.encoder import EncoderConfig, check_covered, drawn_families, stream
from sigprop.models.samplers import Sampler
from sigprop.models.schemes import Branch, Family, Scheme

Strengths = Mapping[Branch, float | Tensor]
Gains = Mapping[Family, float | Tensor]

_GRADIENT_NAMES = {"q": "g", "p": "h", "q_minus_p": "g_minus_h"}


def token_moments(x: Tensor, d_model: int) -> dict[str, Tensor]:
    """q, p and q - p of every sequence in x (..., n, m), float64, shape (...).

    x holds tokens, or their coordinates in an orthonormal frame (m may differ from d_model).
    q - p = sum_i |x_i - xbar|^2 / ((n - 1) d) is measured on the centred tokens, so it keeps its
    relative precision near rank collapse, where it is far below q. ValueError for fewer than two
    tokens.
    """
    if x.ndim < 2 or x.shape[-2] < 2:
        raise ValueError(f"x must be (..., at least two tokens, d), got {tuple(x.shape)}")
    n = x.shape[-2]
    x = x.double()
    offset = x - x[..., :1, :]
    centred = offset - offset.mean(-2, keepdim=True)
    q = x.square().sum((-2, -1)) / (n * d_model)
    difference = centred.square().sum((-2, -1)) / ((n - 1) * d_model)
    return {"q": q, "p": q - difference, "q_minus_p": difference}


def token_norms(x: Tensor, d_model: int) -> Tensor:
    """|x_i|^2 / d of every token, (..., n, m) -> (..., n) float64."""
    return x.double().square().sum(-1) / d_model


def pair_cosines(x: Tensor) -> Tensor:
    """Cosines of all pairs i < k, (..., n, m) -> (..., n (n - 1) / 2) float64."""
    unit = torch.nn.functional.normalize(x.double(), dim=-1)
    first, second = torch.triu_indices(x.shape[-2], x.shape[-2], 1, device=x.device)
    return (unit @ unit.mT)[..., first, second]


def trajectory(
    x: Tensor,
    config: EncoderConfig,
    scheme: Scheme,
    sampler: Sampler,
    *,
    layers: Collection[int] | None = None,
    strengths: Strengths | None = None,
    gains: Gains | None = None,
) -> dict[str, Tensor]:
    """`token_moments` of random networks at some layers, each (layers, B, ...).

    Args:
        x: (B, ..., n_tokens, d_model), inputs of each network; computed in its dtype.
        config, scheme, sampler, strengths, gains: see `models.encoder.stream`.
        layers: which to keep, 0 (the input) to depth; None keeps all.

    Raises as `models.encoder.stream`.
    """
    found = [
        token_moments(state.x, config.d_model)
        for state in stream(x, config, scheme, sampler, strengths=strengths, gains=gains)
        if layers is None or state.layer in layers
    ]
    return {name: torch.stack([at[name] for at in found]) for name in found[0]}


def gradient_trajectory(
    x: Tensor,
    config: EncoderConfig,
    scheme: Scheme,
    sampler: Sampler,
    readout: Tensor,
    *,
    layers: Collection[int] | None = None,
    strengths: Strengths | None = None,
    gains: Gains | None = None,
) -> dict[str, Tensor]:
    """Moments of tokens and of their gradients, one forward and one backward pass.

    The loss of a network is sum_i R_i.x_i at the last layer, so delta_i = R_i there.

    Args:
        x: (B, ..., n_tokens, d_model); networks of the first dimension, as for `trajectory`.
        sampler: any that is differentiable in x and keeps all features of the stream:
            `ExplicitSampler`, or `ExplicitGradients` and `LawGradients` of `models.gradients`.
        readout: R, broadcastable to x: (B, 1, d_model) is one direction that all tokens share.
        layers, strengths, gains: as for `trajectory`.

    Returns:
        q, p, q_minus_p and g, h, g_minus_h, each (layers, B, ...) float64.

    Raises:
        ValueError: x or readout does not fit the config.
        FloatingPointError: activations or gradients became infinite or NaN.
    """
    if x.ndim < 3 or x.shape[-2:] != (config.n_tokens, config.d_model):
        raise ValueError(
            f"x must be (networks, ..., {config.n_tokens}, {config.d_model}), got {tuple(x.shape)}"
        )
    try:
        delta = readout.to(x.dtype).expand_as(x)
    except RuntimeError as error:
        raise ValueError(
            f"readout must be broadcastable to x, {tuple(x.shape)}, got {tuple(readout.shape)}"
        ) from error

    check_covered(sampler, config, scheme)

    def drawn(z: Tensor, widths: Mapping[str, int]) -> tuple[Tensor, ...]:
        return sampler.project(z, drawn_families(config, scheme, widths), config.n_heads)

    project = with_gains(drawn, gains) if gains else drawn
    record = getattr(sampler, "record", None)  # of weight gradients, which nobody asks for here
    tape = Tape(config, scheme, project, strengths=strengths)
    states, deltas = [x], [delta]
    for _ in range(config.depth):
        states.append(tape.forward(states[-1]))
    for _ in range(config.depth):
        deltas.append(tape.backward(deltas[-1]))
    if record is not None:
        record.clear()
    deltas.reverse()
    kept = range(config.depth + 1) if layers is None else sorted(layers)
    tokens = [token_moments(states[layer], config.d_model) for layer in kept]
    gradients = [token_moments(deltas[layer], 1) for layer in kept]
    found = {name: torch.stack([at[name] for at in tokens]) for name in tokens[0]}
    for name, gradient_name in _GRADIENT_NAMES.items():
        found[gradient_name] = torch.stack([at[name] for at in gradients])
    return found


def growth_rate(
    layers: Collection[int], numerator: Tensor, denominator: Tensor | None = None
) -> tuple[float, float]:
    """Exponent per block of a mean over networks, and its jackknife standard error.

    The slope over layers, by least squares, of log( mean numerator / mean denominator ). With two
    layers it is the difference of the logarithms over their distance.

        lambda_a = growth_rate(layers, q - p, q)        near rho = 1
        lambda_g = -growth_rate(layers, g)              g grows towards the input where lambda_g > 0

    Args:
        layers: at least two.
        numerator, denominator: (layers, B) per-network values at these layers, B >= 2.

    Raises ValueError for fewer than two layers or networks, or shapes that do not fit.
    """
    at = torch.tensor(list(layers), dtype=torch.float64, device=numerator.device)
    parts = [numerator] if denominator is None else [numerator, denominator]
    for part in parts:
        if part.ndim != 2 or len(part) != len(at) or len(at) < 2 or part.shape[1] < 2:
            raise ValueError(
                f"values must be (at least two layers, at least two networks) for {len(at)} "
                f"layers, got {tuple(part.shape)}"
            )
    weights = (at - at.mean()) / (at - at.mean()).square().sum()  # slope = weights . values

    def slope(reduce: Any) -> Tensor:
        logs = [reduce(part.double()).log() for part in parts]  # (layers, 1 or B)
        return weights @ (logs[0] - logs[1] if len(logs) == 2 else logs[0])

    n = numerator.shape[1]
    whole = slope(lambda v: v.mean(1, keepdim=True))
    without = slope(lambda v: (v.sum(1, keepdim=True) - v) / (n - 1))  # one network left out
    error = ((n - 1) / n * (without - without.mean()).square().sum()).sqrt()
    return float(whole), float(error)
