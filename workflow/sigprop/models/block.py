"""One transformer block, obeying a scheme (Noci et al. 2022, arXiv 2206.03126, section 2).

    M = tau / sqrt(d_k) * f(X W^Q) f(X W^K)^T ,  A = softmax(M)       (n, n), rows sum to one
    S(X)  = A X W^V                                                   eq. (1)
    FF(X) = act(X W^F1) W^F2

f is the identity unless the scheme names another variant, see `models.attention`.

The block never sees a weight. It asks `project` for products of its input with the weights of
named families, so the same code runs with explicit weights, with products drawn in law
(`models.samplers`) and with trained parameters.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from sigprop.models.attention import vary
from sigprop.models.schemes import (
    ACTIVATIONS,
    Activation,
    Branch,
    Family,
    Scheme,
    SubLayer,
    check_name,
)

Attention = Literal["softmax", "uniform"]
ATTENTIONS: tuple[Attention, ...] = ("softmax", "uniform")

# project(x, {family: width, ...}) -> one (..., width) tensor per family, in the order asked.
Project = Callable[[Tensor, Mapping[str, int]], tuple[Tensor, ...]]
# norm(x, branch) -> x normalized token by token; `branch` names the sub-layer it belongs to.
Norm = Callable[[Tensor, Branch], Tensor]

# Far below PyTorch's 1e-5: the theory's LN is scale-free, also for inputs of variance 1/d.
LAYER_NORM_EPS = 1e-12


class BlockOutput(NamedTuple):
    """x: (..., n, d), the residual stream. attention: (..., h, n, n), or None if not asked for."""

    x: Tensor
    attention: Tensor | None


def layer_norm(x: Tensor, branch: Branch | None = None) -> Tensor:
    """LN at initialization: each token centred over features and scaled to squared norm d."""
    return functional.layer_norm(x, x.shape[-1:], eps=LAYER_NORM_EPS)


def block(
    x: Tensor,
    project: Project,
    scheme: Scheme,
    depth: int,
    *,
    n_heads: int = 1,
    d_ff: int | None = None,
    activation: Activation = "relu",
    attention: Attention = "softmax",
    mask: Tensor | None = None,
    keep_attention: bool = False,
    norm: Norm = layer_norm,
    strengths: Mapping[Branch, float | Tensor] | None = None,
    tau: float | Tensor | None = None,
    sublayers: Sequence[SubLayer] | None = None,
    branches: Mapping[Branch, Callable[[Tensor], Tensor]] | None = None,
) -> BlockOutput:
    """Apply one block: for each sub-layer, X <- norm_after(s X + alpha branch(norm_before(X))).

    s is 1, or sqrt(1 - alpha^2) where the sub-layer's skip is "variance_preserving".

    Args:
        x: (..., n, d) residual stream, float32 or float64.
        project: multiplies its first argument by this layer's weights of the named families.
            Families that share one input come in one call: q, k, v; then o (only with several
            heads); ff1; ff2.
        scheme: normalization placement, strengths and tau.
        depth: L, the number of blocks of the whole stack; sets the strengths.
        n_heads: h; each head has d_k = d / h. One head has no output projection.
        d_ff: hidden width of the feed-forward branch; None takes d.
        activation: "relu", "tanh" or "linear" (identity).
        attention: "softmax", or "uniform" for A = 1 1^T / n (Noci et al. 2022, Assumption 3.1).
        mask: broadcastable to (..., n, n); boolean, True where a query (row) may see a key
            (column), or, with softmax attention, numbers to add to the logits. Every row needs at
            least one True, or one number above -inf.
        keep_attention: return the attention probabilities.
        norm: normalization; the default has no parameters.
        strengths: alpha by branch, for trained strengths or for one per network, a tensor
            broadcastable to x; None takes the scheme's at `depth`.
        tau: in place of the scheme's, a number or a tensor broadcastable to (..., h, n, d_k).
        sublayers: in place of the scheme's, those of a decoder for example.
        branches: F of sub-layers whose branch is computed in another way; all others as below.

    Raises:
        ValueError: unknown `attention` or `activation`, n_heads does not divide d, or a strength
            given as a number lies outside [0, 1] with skip "variance_preserving".
    """
    check_name("attention", attention, ATTENTIONS)
    check_name("activation", activation, ACTIVATIONS)
    probabilities: Tensor | None = None

    def attention_branch(z: Tensor) -> Tensor:
        nonlocal probabilities
        heat, variant = scheme.tau if tau is None else tau, scheme.attention
        y, probabilities = attend(
            z, project, heat, n_heads, attention, mask, keep_attention, variant
        )
        return y

    branch_of: dict[Branch, Callable[[Tensor], Tensor]] = {
        "attention": attention_branch,
        "feed_forward": lambda z: feed_forward(z, project, d_ff or z.shape[-1], activation),
        **(branches or {}),
    }
    for sublayer in sublayers or scheme.sublayers:
        alpha = strengths[sublayer.branch] if strengths else sublayer.strength.at(depth)

        def own_norm(z: Tensor, branch: Branch = sublayer.branch) -> Tensor:
            return norm(z, branch)

        x = residual(x, branch_of[sublayer.branch], sublayer, alpha, own_norm)
    return BlockOutput(x, probabilities)


def residual(
    x: Tensor,
    branch: Callable[[Tensor], Tensor],
    sublayer: SubLayer,
    alpha: float | Tensor,
    norm: Callable[[Tensor], Tensor],
) -> Tensor:
    """X <- norm_after(s X + alpha branch(norm_before(X))): the rule of every sub-layer."""
    y = branch(norm(x) if sublayer.norm_before else x)
    if sublayer.skip == "variance_preserving":
        x = variance_preserving_skip(alpha) * x
    x = torch.add(x, y, alpha=alpha) if isinstance(alpha, float) else x + alpha * y
    return norm(x) if sublayer.norm_after else x


def variance_preserving_skip(alpha: float | Tensor) -> float | Tensor:
    """sqrt(1 - alpha^2); ValueError for a number outside [0, 1], NaN for such tensor entries."""
    if isinstance(alpha, Tensor):
        return (1 - alpha.square()).sqrt()
    if not 0 <= alpha <= 1:
        raise ValueError(
            f"alpha must lie in [0, 1] for skip 'variance_preserving', got {alpha}: "
            "use skip 'unit' or a smaller strength"
        )
    return math.sqrt(1 - alpha**2)


def with_gains(project: Project, gains: Mapping[Family, float | Tensor]) -> Project:
    """`project` with the entry variance of the named families multiplied by their gains.

    A product X W is linear in W, so each is multiplied by the root of its gain. Gains are numbers,
    or tensors broadcastable to the products: (networks, 1, 1) gives each network its own.
    """
    roots: dict[str, float | Tensor] = {
        family: gain.sqrt() if isinstance(gain, Tensor) else math.sqrt(gain)
        for family, gain in gains.items()
    }

    def scaled(x: Tensor, widths: Mapping[str, int]) -> tuple[Tensor, ...]:
        products = zip(widths, project(x, widths), strict=True)
        return tuple(roots[family] * y if family in roots else y for family, y in products)

    return scaled


def attend(
    x: Tensor,
    project: Project,
    tau: float | Tensor = 1.0,
    n_heads: int = 1,
    attention: Attention = "softmax",
    mask: Tensor | None = None,
    keep_attention: bool = False,
    variant: str = "dot_product",
) -> tuple[Tensor, Tensor | None]:
    """Self-attention S(X) (..., n, d) and, when asked, its probabilities (..., h, n, n).

    Uniform attention without a mask gives every token the same output, so only the mean token is
    projected and the result is (..., 1, d), to be broadcast over tokens.
    """
    d = x.shape[-1]
    if n_heads < 1 or d % n_heads:
        raise ValueError(f"n_heads must divide d_model = {d}, got {n_heads}")

    if attention == "uniform":
        a = _uniform(x, mask)  # (..., n, n)
        mixed = x.mean(dim=-2, keepdim=True) if mask is None else a @ x  # (..., 1 or n, d)
        (s,) = project(mixed, {"v": d})  # A X W^V: the same for every head
        probabilities = a.unsqueeze(-3).expand(*a.shape[:-2], n_heads, *a.shape[-2:])
    else:
        q, k, v = project(x, {"q": d, "k": d, "v": d})
        q, k, v = (split_heads(y, n_heads) for y in (q, k, v))  # (..., h, n, d_h)
        # d_k is the model's, not q.shape[-1]: a sampler may return fewer columns with the same
        # q k^T (see LawSampler).
        d_k = d // n_heads
        q, k = vary(q, variant, d_k), vary(k, variant, d_k)
        logits = (tau / math.sqrt(d_k) * q) @ k.mT  # (..., h, n, n)
        if mask is not None and mask.dtype == torch.bool:
            logits = logits.masked_fill(~mask.unsqueeze(-3), -math.inf)
        elif mask is not None:
            logits = logits + mask.unsqueeze(-3)
        probabilities = logits.softmax(dim=-1)
        s = merge_heads(probabilities @ v)  # (..., n, d)

    if n_heads > 1:
        (s,) = project(s, {"o": d})
    return s, probabilities if keep_attention else None


def feed_forward(x: Tensor, project: Project, d_ff: int, activation: Activation) -> Tensor:
    """FF(X) = act(X W^F1) W^F2, (..., n, d) -> (..., n, d)."""
    (hidden,) = project(x, {"ff1": d_ff})  # (..., n, d_ff)
    (y,) = project(activate(hidden, activation), {"ff2": x.shape[-1]})
    return y


def activate(x: Tensor, activation: Activation) -> Tensor:
    """ReLU, tanh or, for "linear", x itself, entry by entry."""
    if activation == "linear":
        return x
    return x.tanh() if activation == "tanh" else functional.relu(x)


def _uniform(x: Tensor, mask: Tensor | None) -> Tensor:
    """Uniform attention over the tokens each row may see, (..., n, n)."""
    n = x.shape[-2]
    if mask is None:
        return x.new_tensor(1.0 / n).expand(*x.shape[:-2], n, n)
    seen = mask.to(x.dtype).expand(*x.shape[:-2], n, n)
    return seen / seen.sum(dim=-1, keepdim=True)


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """(..., n, h * d_h) -> (..., h, n, d_h): head i is the i-th block of columns."""
    return x.unflatten(-1, (n_heads, -1)).transpose(-3, -2)


def merge_heads(x: Tensor) -> Tensor:
    """(..., h, n, d_h) -> (..., n, h * d_h)."""
    return x.transpose(-3, -2).flatten(-2)
