"""Entropy and exact Jacobian norms of recorded calls of `nn.MultiheadAttention`.

The module computes O = sum over heads of softmax(Q K^T / sqrt(d_h)) V W^O with Q = X W^Q + b^Q and
so on. Biases shift Q, K and V and leave the derivatives with respect to the weights as `jacobian`
has them. Projections are made again in float64, so that nearly equal tokens keep their differences.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sigprop.instruments.jacobian import jacobian_norms_from_qkv
from sigprop.instruments.propagation import attention_entropy
from sigprop.instruments.recording import Recording


class _NotMeasured(Exception):
    """Why there are no numbers for a call."""


def measure_calls(
    record: Recording, mask: Tensor | None, batch: int
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Every attention that the blocks called.

    Args:
        record: made with `attention=True`.
        mask: boolean (B, n), False where a token is padding, or None.
        batch: B.

    Returns:
        "module in the block.quantity" -> (L, B) float64, NaN where a block has no number, for
        attention_entropy and jacobian_q, jacobian_k, jacobian_v (summed over heads); and a line
        for every reason why calls have none.
    """
    found: dict[str, Tensor] = {}
    if not record.calls:
        return {}, ("attention: not measured, the blocks call no nn.MultiheadAttention",)
    reasons: dict[tuple[str, str], list[str]] = {}  # (name in the block, why): blocks
    seen: set[tuple[int, str]] = set()
    for layer, path, module, call in record.calls:
        try:
            if (layer, path) in seen:
                raise _NotMeasured("it runs again; the numbers are those of its first call")
            seen.add((layer, path))
            values = _measure(module, call, mask)
        except _NotMeasured as error:
            reasons.setdefault((path, str(error)), []).append(record.names[layer])
            continue
        for quantity, value in values.items():
            key = f"{path}.{quantity}" if path else quantity
            if key not in found:
                found[key] = value.new_full((len(record.names), batch), math.nan)
            found[key][layer] = value
    notes = []
    for (path, why), blocks in reasons.items():
        ends = [f"'{name}.{path}'" if path else f"'{name}'" for name in (blocks[0], blocks[-1])]
        notes.append(f"attention of {' to '.join(dict.fromkeys(ends))}: not measured, {why}")
    return found, tuple(notes)


@torch.no_grad()
def _measure(
    module: nn.MultiheadAttention, call: Mapping[str, Any], mask: Tensor | None
) -> dict[str, Tensor]:
    """One call, (B,) each."""
    x = call["query"]
    if call["key"] is not x or call["value"] is not x:
        raise _NotMeasured("its queries, keys and values read different tensors")
    if type(module).forward is not nn.MultiheadAttention.forward:
        raise _NotMeasured("its class computes attention in a way of its own")
    if module.bias_k is not None or module.add_zero_attn:
        raise _NotMeasured("it adds a token of its own (bias_k, add_zero_attn)")
    if x.ndim == 2:
        x = x.unsqueeze(0)
    elif not module.batch_first:
        x = x.transpose(0, 1)
    allowed = _allowed(call, module.num_heads, x)
    if mask is None:
        return _norms(module, x, allowed)
    mask = mask.to(x.device)
    if (allowed & mask[:, None, :, None] & ~mask[:, None, None, :]).any():
        raise _NotMeasured("its tokens attend to tokens that mask calls padding")
    parts = [
        _norms(module, x[b : b + 1, real], allowed[b : b + 1, :, real][..., real])
        for b, real in enumerate(mask)
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _norms(module: nn.MultiheadAttention, x: Tensor, allowed: Tensor) -> dict[str, Tensor]:
    """From what it reads (B, n, d) and who may attend to whom (B, 1 or h, n, n), (B,) each."""
    h = module.num_heads
    x = x.double()
    bias = None if module.in_proj_bias is None else module.in_proj_bias.double()
    projected = functional.linear(x, module.in_proj_weight.double(), bias)  # (B, n, 3 d)
    q, k, v = (y.unflatten(-1, (h, -1)).transpose(1, 2) for y in projected.chunk(3, -1))
    w_o = module.out_proj.weight.double().mT.unflatten(0, (h, -1))  # (h, d_h, d)
    norms = jacobian_norms_from_qkv(x.unsqueeze(1), q, k, v, w_o=w_o, mask=allowed)  # (B, h)
    logits = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~allowed, -math.inf)
    found = {f"jacobian_{name}": norm.sum(1) for name, norm in norms.items()}
    found["attention_entropy"] = attention_entropy(logits.softmax(-1))
    return {name: value.cpu() for name, value in found.items()}


def _allowed(call: Mapping[str, Any], n_heads: int, x: Tensor) -> Tensor:
    """Who may attend to whom, boolean (B, 1 or h, n, n), from the masks of a call."""
    allowed = x.new_ones((len(x), 1, x.shape[1], x.shape[1]), dtype=torch.bool)
    for name in ("attn_mask", "key_padding_mask"):
        given = call.get(name)
        if given is None:
            continue
        hidden = given if given.dtype == torch.bool else given == -math.inf
        if given.is_floating_point() and (given.masked_fill(hidden, 0) != 0).any():
            raise _NotMeasured(f"its {name} adds numbers to the logits")
        if name == "key_padding_mask":
            hidden = hidden.reshape(-1, 1, 1, x.shape[1])
        elif hidden.ndim == 3:  # (B h, n, n)
            hidden = hidden.unflatten(0, (-1, n_heads))
        allowed = allowed & ~hidden
    return allowed
