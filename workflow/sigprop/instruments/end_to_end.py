"""Gradients of a loss through a whole random encoder, layer by layer.

The loss of one network is a random linear read-out of its last layer, of order one when tokens have
unit variance,

    Loss = <R, X^L> / sqrt(n d) ,     R (n, d) with iid N(0, 1) entries, fresh for every network.

Measured are ||dLoss/dW||^2 for the weights of every layer and ||dLoss/dX^l||^2, and on request what
Lemma 3.1 conditional on X^l needs: sums over the tokens of each layer and the exact Jacobian norms
of its attention (Noci et al. 2022, arXiv 2206.03126, section 3).
"""

import math
from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from sigprop.instruments.jacobian import jacobian_norms_from_qkv
from sigprop.instruments.propagation import measure
from sigprop.instruments.tokens import token_sums
from sigprop.models.block import block, layer_norm
from sigprop.models.encoder import EncoderConfig
from sigprop.models.gradients import GradientSampler
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
        readout: R (B, n_tokens, d_model); None draws it from the sampler's generator.
        local: also measure tokens and attention Jacobians of every layer.

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
        ValueError: x or readout does not fit the config.
        FloatingPointError: activations or gradients became infinite or NaN.
    """
    if x.ndim != 3 or x.shape[1:] != (config.n_tokens, config.d_model):
        raise ValueError(
            f"x must be (networks, {config.n_tokens}, {config.d_model}), got {tuple(x.shape)}"
        )
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"x must be float32 or float64, got {x.dtype}")
    if readout is None:
        readout = torch.empty_like(x, memory_format=torch.contiguous_format)
        readout.normal_(generator=sampler.generator)
    elif readout.shape != x.shape:
        raise ValueError(f"readout must be {tuple(x.shape)} like x, got {tuple(readout.shape)}")
    readout = readout.to(x.dtype) / math.sqrt(config.n_tokens * config.d_model)

    size = _networks_at_once(config, sampler.name, x.element_size())
    parts = [
        _some_networks(x_part, config, scheme, sampler, r_part, local)
        for x_part, r_part in zip(x.split(size), readout.split(size), strict=True)
    ]
    return {name: torch.cat([part[name] for part in parts], dim=1) for name in parts[0]}


def _some_networks(
    x: Tensor,
    config: EncoderConfig,
    scheme: Scheme,
    sampler: GradientSampler,
    readout: Tensor,
    local: bool,
) -> dict[str, Tensor]:
    """`gradient_norms` of networks that fit into memory together; readout = dLoss/dX^L."""
    measured: dict[str, list[Tensor]] = defaultdict(list)
    attended: list[Tensor] = []  # input, queries, keys and values of the current layer

    def project(z: Tensor, widths: Mapping[str, int]) -> tuple[Tensor, ...]:
        d_in = z.shape[-1]
        families = {
            family: (width, scheme.variance(family, d_in, width, config.activation))
            for family, width in widths.items()
        }
        products = dict(zip(families, sampler.project(z, families, config.n_heads), strict=True))
        if "k" in families:
            # The softmax does not see a shift that is common to all keys. Taking it away here keeps
            # rounding errors of the logits' cotangent from reaching the q and k gradients with it.
            products["k"] = products["k"] - products["k"][..., :1, :]
            if local:
                attended[:] = (y.detach() for y in (z, *(products[name] for name in "qkv")))
        return tuple(products.values())

    def look(found: Mapping[str, Tensor]) -> None:
        for name, value in found.items():
            measured[name].append(value)

    sampler.record.clear()
    tape: list[tuple[Tensor, Tensor]] = []  # input and output of every layer
    for layer in range(1, config.depth + 1):
        x = x.detach().requires_grad_()
        y = block(
            x,
            project,
            scheme,
            config.depth,
            n_heads=config.n_heads,
            d_ff=config.hidden,
            activation=config.activation,
            attention=config.attention,
        ).x
        _check_finite("activations", y, layer, config, scheme)
        tape.append((x, y))
        if local:
            look(_cosines(x.detach()))
            look(_sums_of_attention_input(x.detach(), scheme))
            if attended:
                look(_attention_jacobians(*attended, tau=scheme.tau, n_heads=config.n_heads))
        x = y
    if local:
        look(_cosines(x.detach()))

    gradient = readout  # dLoss/dX^l, from l = L down to 0
    norms = [_squared_norm(gradient)]
    while tape:
        x, y = tape.pop()
        (gradient,) = torch.autograd.grad(y, x, gradient)
        _check_finite("gradients", gradient, len(tape) + 1, config, scheme)
        norms.append(_squared_norm(gradient))
    gradients = {f"grad_{family}": norm for family, norm in sampler.record.take().items()}
    gradients["grad_x"] = torch.stack(norms[::-1])
    return gradients | {name: torch.stack(values) for name, values in measured.items()}


def _cosines(x: Tensor) -> dict[str, Tensor]:
    values = measure(x)
    return {name: values[name] for name in ("cos_mean", "one_minus_cos")}


def _sums_of_attention_input(x: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    return token_sums(layer_norm(x) if scheme.sublayers[0].norm_before else x)


def _attention_jacobians(
    x: Tensor, q: Tensor, k: Tensor, v: Tensor, *, tau: float, n_heads: int
) -> dict[str, Tensor]:
    """Squared Jacobian norms of softmax attention, summed over heads, (B,) each."""
    d_k = x.shape[-1] // n_heads
    q, k, v = (y.unflatten(-1, (n_heads, -1)).transpose(1, 2) for y in (q, k, v))
    # A sampler may return fewer than d_k columns of q and k: the scale stays tau / sqrt(d_k).
    tau *= math.sqrt(q.shape[-1] / d_k)
    norms = jacobian_norms_from_qkv(x.unsqueeze(1), q, k, v, tau=tau)
    return {f"jacobian_{name}": norm.sum(1) for name, norm in norms.items()}


def _squared_norm(x: Tensor) -> Tensor:
    """||X||_F^2 of every network in float64, (B, n, d) -> (B,)."""
    return torch.linalg.vector_norm(x, dim=(-2, -1), dtype=torch.float64).square()


def _check_finite(what: str, x: Tensor, layer: int, config: EncoderConfig, scheme: Scheme) -> None:
    if not torch.isfinite(x.sum()) and not torch.isfinite(x).all():
        raise FloatingPointError(
            f"{what} of scheme {scheme.name!r} are not finite at layer {layer} of "
            f"{config.depth} in {str(x.dtype).removeprefix('torch.')}: "
            "use float64 or scale the residual branches"
        )


def _networks_at_once(config: EncoderConfig, sampler: str, bytes_per_number: int) -> int:
    """How many networks keep less than SAVED_BYTES from the forward to the backward pass."""
    n, d, d_ff = config.n_tokens, config.d_model, config.hidden
    # Tokens: input, LN inputs, factor and draws of q, k, v, o, ff1 (d wide), ff1 and ff2 (d_ff).
    saved = n * (10 * d + 4 * d_ff) + config.n_heads * n * (5 * n)
    if sampler == "explicit":
        saved += 4 * d * d + 2 * d * d_ff
    return max(1, SAVED_BYTES // (config.depth * saved * bytes_per_number))
