"""Gradients of a loss through a whole random encoder, layer by layer.

The loss of one network is a random linear readout of its last layer, of order one when tokens have
unit variance,

    Loss = <R, X^L> / sqrt(n d) ,     R (n, d) with iid N(0, 1) entries, fresh for every network.

Measured are ||dLoss/dW||^2 for the weights of every layer and ||dLoss/dX^l||^2, and on request what
Lemma 3.1 conditional on X^l needs: sums over the tokens of each layer and the exact Jacobian norms
of its attention (Noci et al. 2022, arXiv 2206.03126, section 3).
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sigprop.instruments.jacobian import COVERS, jacobian_norms_from_qkv
from sigprop.instruments.propagation import measure
from sigprop.instruments.tape import Tape
from sigprop.instruments.tokens import token_sums
from sigprop.models.attention import ATTENTION_VARIANTS
from sigprop.models.block import layer_norm
from sigprop.models.encoder import EncoderConfig, check_covered, drawn_families
from sigprop.models.gradient_coordinates import CoordinateGradients, Frame
from sigprop.models.gradients import GradientSampler, LawGradients
from sigprop.models.schemes import Scheme

# Networks run together while the numbers kept for the backward pass stay below this, at least one.
SAVED_BYTES = 2**28


@torch.enable_grad()
def gradient_norms(
    x: Tensor,
    config: EncoderConfig,
    scheme: Scheme,
    sampler: GradientSampler,
    *,
    readout: Tensor | None = None,
    local: bool = False,
) -> dict[str, Tensor]:
    """Squared Frobenius norms of the gradients of random encoders, one forward and backward pass.

    Args:
        x: (B, n_tokens, d_model), float32 or float64, which is also the dtype of the computation.
            One network per entry of the first dimension.
        config, scheme: shape and scheme of the networks.
        sampler: from `models.gradients`, draws fresh weights for every block.
        readout: R (B, n_tokens, d_model); None draws it from the sampler's generator. A given R
            takes `LawGradients` in place of `CoordinateGradients`, which draw their own.
        local: also measure tokens and attention Jacobians of every layer; these cover plain dot
            products only.

    Returns:
        float64 tensors. Index l of the first dimension is layer l + 1 for weights, whose input is
        X^l, and X^l itself for tokens.

        grad_q, grad_k, grad_v, grad_ff1, grad_ff2, with several heads grad_o: (depth, B),
            ||dLoss/dW||^2, heads fused. Uniform attention has no queries and keys.
        grad_x: (depth + 1, B), ||dLoss/dX^l||^2.

        With `local`:
        cos_mean, one_minus_cos: (depth + 1, B) of X^l, see `instruments.propagation`.
        sum_sq_norm, gram_sq_norm, spread_sq_norm, mean_sq_norm: (depth, B), `token_sums` of what
            the attention of the layer reads, which is X^l, or LN(X^l) with PRE-LN.
        jacobian_q, jacobian_k, jacobian_v: (depth, B), ||dS/dW||^2 of the layer's softmax attention
            with its own weights, summed over heads, before the output projection; see
            `instruments.jacobian`. Not there with uniform attention.

        Near rank collapse q and k gradients are differences: expect a relative error of a few
        eps / sqrt(1 - cos_mean) in them, eps = 6e-8 in float32 and 1e-16 in float64.

    The numbers drawn depend on the shapes, the dtype and `SAVED_BYTES`, which set how many networks
    run together; a network does not depend on the input of another.

    Raises:
        ValueError: x, readout or the sampler does not fit the config or the scheme's attention, or
            `local` with an attention that the Jacobians do not cover.
        FloatingPointError: activations or gradients became infinite or NaN.
    """
    if x.ndim != 3 or x.shape[1:] != (config.n_tokens, config.d_model):
        raise ValueError(
            f"x must be (networks, {config.n_tokens}, {config.d_model}), got {tuple(x.shape)}"
        )
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"x must be float32 or float64, got {x.dtype}")
    if isinstance(sampler, CoordinateGradients):
        if sampler.activation != config.activation or sampler.d_ff != config.hidden:
            raise ValueError(
                f"the sampler was made for activation {sampler.activation!r} and d_ff "
                f"{sampler.d_ff}, the config has {config.activation!r} and {config.hidden}: use "
                "make_gradient_sampler with this config"
            )
        if readout is not None:  # only a readout that is drawn fits into coordinates
            sampler = LawGradients(sampler.generator)
    check_covered(sampler, config, scheme)
    if local and config.attention == "softmax" and scheme.attention not in COVERS:
        raise ValueError(
            f"local: attention Jacobians cover {', '.join(COVERS)}, not attention "
            f"{scheme.attention!r} of scheme {scheme.name!r}: use local=False"
        )
    coordinates = isinstance(sampler, CoordinateGradients)
    if readout is not None and readout.shape != x.shape:
        raise ValueError(f"readout must be {tuple(x.shape)} like x, got {tuple(readout.shape)}")
    if readout is None and not coordinates:
        readout = torch.empty_like(x, memory_format=torch.contiguous_format)
        readout.normal_(generator=sampler.generator)

    kind = "coordinates" if coordinates else sampler.name
    size = _networks_at_once(config, kind, x.element_size())
    parts = [
        _some_networks(
            x[k : k + size],
            config,
            scheme,
            sampler,
            None if readout is None else readout[k : k + size].to(x.dtype),
            local,
        )
        for k in range(0, len(x), size)
    ]
    return {name: torch.cat([part[name] for part in parts], dim=1) for name in parts[0]}


def _some_networks(
    x: Tensor,
    config: EncoderConfig,
    scheme: Scheme,
    sampler: GradientSampler,
    readout: Tensor | None,
    local: bool,
) -> dict[str, Tensor]:
    """`gradient_norms` of networks that fit into memory together; no readout: in coordinates."""
    measured: dict[str, list[Tensor]] = defaultdict(list)
    attended: list[Tensor] = []  # input, queries, keys and values of the current layer
    coordinates = sampler if isinstance(sampler, CoordinateGradients) else None
    norm = coordinates.norm if coordinates else layer_norm

    def project(z: Tensor, widths: Mapping[str, int]) -> tuple[Tensor, ...]:
        families = drawn_families(config, scheme, widths)
        products = dict(zip(families, sampler.project(z, families, config.n_heads), strict=True))
        if "k" in families:
            # Where the softmax does not see a shift that is common to all keys, taking it away here
            # keeps rounding errors of the logits' cotangent from the q and k gradients.
            if ATTENTION_VARIANTS[scheme.attention].shift_invariant:
                products["k"] = products["k"] - products["k"][..., :1, :]
            if local:
                attended[:] = (y.detach() for y in (z, *(products[name] for name in "qkv")))
            if coordinates:  # the block divides logits by sqrt(width / h) in place of sqrt(d / h)
                products["q"] = products["q"] * math.sqrt(coordinates.width / config.d_model)
        return tuple(products.values())

    def look(found: Mapping[str, Tensor]) -> None:
        for name, value in found.items():
            measured[name].append(value)

    sampler.record.clear()
    tape = Tape(config, scheme, project, norm=norm)
    frames: list[Frame] = []  # in coordinates, from every layer to the next
    x = coordinates.enter(x) if coordinates else x
    for layer in range(1, config.depth + 1):
        y = tape.forward(x)
        if local:
            look(_cosines(x))
            before = scheme.sublayers[0].norm_before
            look(token_sums(norm(x, "attention") if before else x))
            if attended:
                look(_attention_jacobians(attended, scheme.tau, config.d_model, config.n_heads))
        x = y
        if coordinates and layer < config.depth:
            x, frame = coordinates.compress(x)
            frames.append(frame)
    if local:
        look(_cosines(x))

    # dLoss/dX^l, from l = L down to 0
    if readout is not None:
        gradient = readout / math.sqrt(config.n_tokens * config.d_model)
    elif coordinates:
        gradient = coordinates.readout(len(x), x)
    norms = [_squared_norm(gradient)]
    for _ in range(config.depth):
        gradient = tape.backward(gradient)
        norms.append(_squared_norm(gradient))
        if coordinates and frames:
            gradient = coordinates.back(gradient, frames.pop())
    gradients = {f"grad_{family}": norm for family, norm in sampler.record.take().items()}
    gradients["grad_x"] = torch.stack(norms[::-1])
    return gradients | {name: torch.stack(values) for name, values in measured.items()}


def _cosines(x: Tensor) -> dict[str, Tensor]:
    values = measure(x)
    return {name: values[name] for name in ("cos_mean", "one_minus_cos")}


def _attention_jacobians(
    attended: Sequence[Tensor], tau: float, d_model: int, n_heads: int
) -> dict[str, Tensor]:
    """Squared Jacobian norms of softmax attention from x, q, k, v, summed over heads, (B,) each."""
    d_h = d_model // n_heads
    x, *qkv = attended
    q, k, v = (y.unflatten(-1, (n_heads, -1)).transpose(1, 2) for y in qkv)
    # A sampler may return fewer columns than d_h: the scale stays tau / sqrt(d_h), and ||dS/dW^V||
    # counts all features.
    tau *= math.sqrt(q.shape[-1] / d_h)
    norms = jacobian_norms_from_qkv(x.unsqueeze(1), q, k, v, tau=tau)
    norms["v"] *= d_h / v.shape[-1]
    return {f"jacobian_{name}": norm.sum(1) for name, norm in norms.items()}


def _squared_norm(x: Tensor) -> Tensor:
    """||X||_F^2 of every network in float64, (B, n, d) -> (B,)."""
    return torch.linalg.vector_norm(x, dim=(-2, -1), dtype=torch.float64).square()


def _networks_at_once(config: EncoderConfig, sampler: str, bytes_per_number: int) -> int:
    """How many networks keep less than SAVED_BYTES from the forward to the backward pass."""
    n, d, d_ff, h = config.n_tokens, config.d_model, config.hidden, config.n_heads
    # Tokens: input, LN inputs, factor and draws of q, k, v, o, ff1 (d wide), ff1 and ff2 (d_ff).
    saved = n * (10 * d + 4 * d_ff) + h * n * (5 * n)
    if sampler == "explicit":
        saved += 4 * d * d + 2 * d * d_ff
    if sampler == "coordinates":  # d_ff as above, for each head 2 n columns of q, k, v, the stream
        hidden = min(d_ff, 2 * n) if config.activation == "linear" else d_ff
        saved = n * (4 * hidden + h * 30 * n + 60 * n)
    return max(1, SAVED_BYTES // (config.depth * saved * bytes_per_number))
