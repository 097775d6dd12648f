"""The package's measurements on any `torch.nn.Module`: its residual stream, block by block.

The model runs once on the caller's input. Hooks record X^0, which enters the first block, and X^l,
which leaves the l-th (`recording`); the functions of `propagation`, `geometry` and `jacobian`
measure them. With a loss, one backward pass gives dLoss/dX^l and the gradients of the blocks'
parameters. The loss is the caller's, or the random readout of `end_to_end`, taken on the stream,

    Loss = sum over sequences of <R, X^L> / sqrt(n d) ,     R (n, d) with iid N(0, 1) entries .
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sigprop.instruments.geometry import token_moments
from sigprop.instruments.multihead import measure_calls
from sigprop.instruments.propagation import measure
from sigprop.instruments.recording import Blocks, Recording, attentions, find_blocks, undisturbed

_GRADIENT_NAMES = {"q": "g", "p": "h", "q_minus_p": "g_minus_h"}
# What the projections to queries, keys and values are called, in lower case.
_FAMILIES = {
    name: letter
    for letter, word in (("q", "query"), ("k", "key"), ("v", "value"))
    for name in (
        *(letter, f"{letter}_proj", f"{letter}_lin", f"to_{letter}", f"w{letter}", f"w_{letter}"),
        *(word, f"{word}_proj"),
    )
}


class Probe(NamedTuple):
    """What `probe` found: float64 tensors over the layer, for B sequences.

    Attributes:
        blocks: names of the L blocks, in the order in which they ran.
        dtype: of the stream.
        stream: quantity -> (L + 1, B), of X^0 to X^L: all of `measure` and `token_moments`; with a
            loss grad_x = ||dLoss/dX^l||^2 and g, h, g_minus_h too, see `geometry`.
        parameters: name in the block -> (L,), ||dLoss/dW||^2 in blocks 1 to L. Queries, keys and
            values are called q, k, v wherever they can be told apart: "self_attn.q.weight".
        attention: "module in the block.quantity" -> (L, B): attention_entropy in nats, and
            jacobian_q, jacobian_k, jacobian_v = ||dS/dW||^2, summed over heads, see `jacobian`.
        notes: what could not be measured, and why. It is NaN where other blocks have a number.
    """

    blocks: tuple[str, ...]
    dtype: torch.dtype
    stream: dict[str, Tensor]
    parameters: dict[str, Tensor]
    attention: dict[str, Tensor]
    notes: tuple[str, ...]


def probe(
    model: nn.Module,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    blocks: str | None = None,
    loss: Callable[[Any], Tensor] | None = None,
    readout: torch.Generator | None = None,
    attention: bool = False,
    mask: Tensor | None = None,
    batch_first: bool | None = None,
    training: bool = False,
) -> Probe:
    """Run `model(*args, **kwargs)` once and measure its stream; the model stays as it was.

    Kept are mode, gradients, hooks, buffers, `requires_grad` and torch's random numbers, also when
    the model raises.

    Args:
        blocks: names of the blocks as in `model.named_modules()`; * stands for anything but a dot:
            "encoder.layers.*", "h.*". None takes the longest ModuleList or Sequential that holds
            modules of one type.
        loss: maps the model's output to a scalar; asks for gradients.
        readout: CPU generator that draws R; asks for the gradients of the random readout.
        attention: measure the `nn.MultiheadAttention` in the blocks too: the Jacobian of its
            output, biases and masks included, without dropout. O(n^3) operations per head.
        mask: boolean (B, n), False where a token is padding, which counts nowhere.
        batch_first: True for a stream (B, n, d), False for (n, B, d); None asks the blocks'
            `nn.MultiheadAttention`, and without any takes True. (n, d) is one sequence.
        training: run in training mode, with dropout.

    Raises:
        ValueError: no such blocks, a block that does not run once, a stream that is not floating,
            of several shapes, or has a zero token, a mask or loss that does not fit.
        FloatingPointError: the stream or a gradient is infinite or NaN.
    """
    if loss is not None and readout is not None:
        raise ValueError("loss and readout are both given; give one")
    found = find_blocks(model, blocks)
    if batch_first is None:
        layouts = {m.batch_first for block in found.values() for m in attentions(block).values()}
        batch_first = layouts != {False}
    gradients = loss is not None or readout is not None
    deltas: list[Tensor] = []
    parameters: dict[str, Tensor] = {}
    with undisturbed(model, found, training=training, gradients=gradients):
        with Recording(found, gradients=gradients, attention=attention) as record:
            output = model(*args, **(kwargs or {}))
        states = [_sequences(x, batch_first) for x in record.states]
        _check_mask(mask, states[0])
        stream = [_tokens(x, mask, where) for x, where in zip(states, record.places, strict=True)]
        if gradients:
            total = loss(output) if loss else _read_out(states[-1], mask, readout)
            deltas, parameters = _differentiate(total, record, found)
    for at, delta, where in zip(stream, deltas, record.places, strict=False):
        at |= _cotangents(_sequences(delta, batch_first), mask, where)
    looked, notes = measure_calls(record, mask, batch=len(states[0])) if attention else ({}, ())
    return Probe(
        blocks=tuple(record.names),
        dtype=states[0].dtype,
        stream={name: torch.stack([at[name] for at in stream]) for name in stream[0]},
        parameters=parameters,
        attention=looked,
        notes=notes,
    )


def _sequences(x: Tensor, batch_first: bool) -> Tensor:
    """(B, n, d), from the layout of the model."""
    if x.ndim == 2:
        return x.unsqueeze(0)
    return x if batch_first else x.transpose(0, 1)


def _check_mask(mask: Tensor | None, x: Tensor) -> None:
    if mask is None:
        return
    if mask.dtype != torch.bool or mask.shape != x.shape[:2]:
        raise ValueError(
            f"mask is {str(mask.dtype).removeprefix('torch.')} of shape {tuple(mask.shape)}; it "
            f"must be boolean, (batch, n) = {tuple(x.shape[:2])}, False where a token is padding"
        )
    if (few := mask.sum(1) < 2).any():
        raise ValueError(f"mask leaves sequence {int(few.nonzero()[0])} fewer than two tokens")


def _split(x: Tensor, mask: Tensor | None) -> Iterator[Tensor]:
    """Sequences (B, ..., n, m) without padding: all at once, or one by one (1, ..., n_b, m)."""
    if mask is None:
        yield x
    else:
        for sequence, real in zip(x, mask, strict=True):
            yield sequence[..., real.to(x.device), :].unsqueeze(0)


def _join(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]).cpu() for name in parts[0]}


def _tokens(x: Tensor, mask: Tensor | None, where: str) -> dict[str, Tensor]:
    """`measure` and `token_moments` of every sequence in x (B, n, d), (B,) each."""
    parts = []
    for tokens in _split(x.detach(), mask):
        if not torch.isfinite(tokens).all():
            raise FloatingPointError(f"{where} is not finite: use a wider dtype, or other weights")
        parts.append(measure(tokens) | token_moments(tokens, x.shape[-1]))
    found = _join(parts)
    if found["cos_mean"].isnan().any():
        raise ValueError(f"{where} has a token that is zero: leave it out with mask")
    return found


def _cotangents(delta: Tensor, mask: Tensor | None, where: str) -> dict[str, Tensor]:
    """grad_x, g, h and g - h of every sequence in dLoss/dX (B, n, d), (B,) each."""
    parts = []
    for tokens in _split(delta, mask):
        if not torch.isfinite(tokens).all():
            raise FloatingPointError(f"the gradient at {where} is not finite: use a wider dtype")
        moments = {_GRADIENT_NAMES[name]: v for name, v in token_moments(tokens, 1).items()}
        parts.append({"grad_x": moments["g"] * tokens.shape[-2]} | moments)
    return _join(parts)


def _read_out(x: Tensor, mask: Tensor | None, generator: torch.Generator | None) -> Tensor:
    """sum_b <R_b, X_b> / sqrt(n_b d), without padded tokens."""
    r = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)
    real = x.new_ones(x.shape[:2]) if mask is None else mask.to(x)
    scale = (real.sum(1) * x.shape[-1]).sqrt()  # (B,)
    return (r * x * (real / scale[:, None])[..., None]).sum()


def _differentiate(
    total: Any, record: Recording, blocks: Blocks
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """dLoss/dX^l, and ||dLoss/dW||^2 by name in the block, (L,) each, NaN where there is none."""
    if not isinstance(total, Tensor) or total.numel() != 1:
        shown = tuple(total.shape) if isinstance(total, Tensor) else type(total).__name__
        raise ValueError(f"loss gives {shown}; it must be a scalar tensor")
    owned = [
        (layer, names, parameter)
        for layer, name in enumerate(record.names)
        for names, parameter in named_parts(blocks[name])
    ]
    sources = [*record.states, *(parameter for _, _, parameter in owned)]
    if not total.requires_grad:
        raise ValueError("loss does not depend on the blocks, or the model runs without gradients")
    found = torch.autograd.grad(total, sources, allow_unused=True)
    deltas, rest = found[: len(record.states)], found[len(record.states) :]
    for delta, where in zip(deltas, record.places, strict=True):
        if delta is None:
            raise ValueError(f"loss does not depend on {where}, or the model detaches it")
    norms: dict[str, Tensor] = {}
    for (layer, names, parameter), gradient in zip(owned, rest, strict=True):
        gradient = torch.zeros_like(parameter) if gradient is None else gradient
        for name, part in zip(names, gradient.chunk(len(names)), strict=True):
            norms.setdefault(name, torch.full((len(record.names),), math.nan, dtype=torch.float64))
            norms[name][layer] = torch.linalg.vector_norm(part, dtype=torch.float64).square()
            if not torch.isfinite(norms[name][layer]):
                raise FloatingPointError(
                    f"the gradient of {name!r} in block {record.names[layer]!r} is not finite: "
                    "use a wider dtype"
                )
    return list(deltas), norms


def named_parts(block: nn.Module) -> Iterator[tuple[tuple[str, ...], nn.Parameter]]:
    """Floating parameters of a block with their names; three where q, k and v are stacked in one.

    Projections to queries, keys and values that go by a usual name are called q, k and v.
    """
    for path, module in block.named_modules():
        where = [_FAMILIES.get(word.lower(), word) for word in path.split(".") if word]
        for own, parameter in module.named_parameters(recurse=False):
            if not parameter.is_floating_point():
                continue
            if isinstance(module, nn.MultiheadAttention) and own.startswith("in_proj_"):
                kind = own.removeprefix("in_proj_")
                yield tuple(".".join([*where, letter, kind]) for letter in "qkv"), parameter
                continue
            family = own.lower().removesuffix("_weight")  # q_proj_weight of MultiheadAttention
            yield (".".join([*where, _FAMILIES.get(family, own)]),), parameter
