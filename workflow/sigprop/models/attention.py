"""Attention variants: what becomes of the queries and keys of a head before they meet.

    logits = tau / sqrt(d_k) f(q) f(k)^T

    dot_product    f(y) = y                      Vaswani et al. 2017
    qk_norm        f(y) = sqrt(d_k) y / |y|      Henry et al. 2020 (arXiv 2010.04245): L2 norm of
                   each query and key, so that logits are tau sqrt(d_k) times a cosine. The scale is
                   fixed here and trained there. The LN of Dehghani et al. 2023 (arXiv 2302.05442)
                   also centres over features; that would be a variant that needs "features".
    rotary         f(y)_i = R_i y_i              Su et al. 2021 (arXiv 2104.09864): R_i turns the
                   pair of features (2 j, 2 j + 1) by i 10000^(-2 j / d_k) for a token at position
                   i. Of self-attention only, in place of positions that are added to tokens.

A variant is one entry of `ATTENTION_VARIANTS`. It says what it needs, and samplers, instruments and
theory that cannot give it refuse. Settings read this module, so it imports no torch, and tensors
have the type Any.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

# What of a head's queries and keys has the right joint law; each includes those before it:
# q k^T alone; also q q^T and k k^T; all features.
Preserved = Literal["logits", "gram", "features"]


@dataclass(frozen=True)
class AttentionVariant:
    """One way to compare queries with keys.

    Attributes:
        change: f(y, d_k, position), see `vary`.
        needs: what a sampler must preserve.
        linear: f(c y) = c f(y), so that tau may be a factor of W^Q.
        shift_invariant: the softmax ignores a vector added to all keys of a head.
        positional: depends on the places of tokens.
        title: on figures; empty for the standard.
    """

    change: Callable[[Any, int, int | None], Any]
    needs: Preserved
    linear: bool = True
    shift_invariant: bool = False
    positional: bool = False
    title: str = ""

    def missing(self, preserved: Preserved) -> bool:
        """Whether it needs more than is `preserved`."""
        order = get_args(Preserved)
        return order.index(self.needs) > order.index(preserved)


def vary(y: Any, variant: str, d_k: int, position: int | None = None) -> Any:
    """f(y) of queries or keys (..., n, d_h).

    Args:
        d_k: the model's head size, which a sampler in law may represent by other columns.
        position: of all tokens, when decoding; None for tokens at 0 to n - 1.
    """
    return ATTENTION_VARIANTS[variant].change(y, d_k, position)


def check_head_size(variant: str, d_k: int) -> None:
    """ValueError where a head of d_k features cannot have this attention."""
    if ATTENTION_VARIANTS[variant].positional and d_k % 2:
        raise ValueError(
            f"attention {variant!r} turns pairs of features, but a head has d_k = {d_k}: choose "
            "d_model / n_heads even"
        )


def _same(y: Any, d_k: int, position: int | None) -> Any:
    return y


def _normalized(y: Any, d_k: int, position: int | None) -> Any:
    # |y|^2 / d_k by the model's d_k, whatever the number of columns; the last term is for zeros.
    return y * (y.square().sum(-1, keepdim=True) / d_k + 1e-30).rsqrt()


def _turned(y: Any, d_k: int, position: int | None) -> Any:
    pairs = y.unflatten(-1, (-1, 2))  # (..., n, d_k / 2, 2)
    ones = y.new_ones(pairs.shape[-3:]).double()
    at = ones.cumsum(0) - 1 if position is None else position * ones
    angle = at * 10000.0 ** (-2 * (ones.cumsum(1) - 1) / d_k)
    cos, sin = angle.cos().to(y.dtype), angle.sin().to(y.dtype)
    sin[..., 0] *= -1
    return (pairs * cos + pairs.flip(-1) * sin).flatten(-2)


ATTENTION_VARIANTS: Mapping[str, AttentionVariant] = MappingProxyType(
    {
        "dot_product": AttentionVariant(_same, "logits", shift_invariant=True),
        "qk_norm": AttentionVariant(_normalized, "gram", linear=False, title="QK-norm"),
        "rotary": AttentionVariant(_turned, "features", positional=True, title="rotary"),
    }
)
