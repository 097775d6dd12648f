"""The blocks of an encoder or a decoder with weights that are trained, E of them side by side.

Every parameter and every activation has a leading member axis, and no operation mixes members, so
that the gradient of the sum of the members' losses is each member's own gradient. Elementwise
optimizers then train E independent networks in one program; a single network is E = 1.

A layer is `models.block.block`, fed with its weights: what is trained is what the theory describes
at initialization (Noci et al. 2022, arXiv 2206.03126, section 2), plus, unless told otherwise, a
gain and a bias after each normalization, which start at 1 and 0. There are no other biases.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from sigprop.models.attention import check_head_size
from sigprop.models.block import Norm, Project
from sigprop.models.schemes import CROSS, Activation, Branch, Scheme, SubLayer

# PyTorch's own; in training nothing has to be scale-free.
LAYER_NORM_EPS = 1e-5


class Shape(Protocol):
    """What a stack must know of the network it belongs to."""

    @property
    def d_model(self) -> int:
        """Width."""

    @property
    def n_heads(self) -> int:
        """Heads of an attention."""

    def fans(self, family: str) -> tuple[int, int]:
        """(fan_in, fan_out) of the weights of `family`, heads together."""


class Layer(NamedTuple):
    """What `models.block.block` asks for, of one layer."""

    project: Project
    norm: Norm
    strengths: Mapping[Branch, Tensor] | None


def families(sublayers: Sequence[SubLayer], n_heads: int) -> tuple[str, ...]:
    """Families of weights of a stack; output projections only with several heads."""
    attention = ("q", "k", "v", *(("o",) if n_heads > 1 else ()))
    crosses = any(sublayer.branch == "cross_attention" for sublayer in sublayers)
    return (*attention, *(CROSS + f for f in attention if crosses), "ff1", "ff2")


class Stack(nn.Module):
    """L blocks of E members, each member from its own generator.

    Member e draws all its weights from `generators[e]`, so it starts the same in an ensemble and
    alone.

    Args:
        shape: sizes of the weights.
        scheme: normalization, strengths, tau and variances of the initial weights; whether
            strengths are trained.
        depth: L.
        generators: one per member, on the CPU; move the module to a device afterwards.
        sublayers: of a block, those of the scheme or of its decoder.
        activation: of the feed-forward branch.
        strengths: alpha by branch, each (E,), where members differ; None takes the scheme's.
        train_norms: give each LN a gain and a bias; False has LN alone, as in the theory.

    Parameters: `weights[family]` (E, L, fan_in, fan_out), those of cross-attention with prefix
    `cross_`; with `train_norms`, for branches with an LN, `gains[branch]` and `biases[branch]`
    (E, L, d), and `final_gain`, `final_bias` (E, d) after the last block of a PRE-LN stack;
    `strengths[branch]` (E, L), without a gradient unless trained.

    Raises:
        ValueError: no generator, or strengths that do not fit.
    """

    def __init__(
        self,
        shape: Shape,
        scheme: Scheme,
        depth: int,
        generators: Sequence[torch.Generator],
        *,
        sublayers: Sequence[SubLayer],
        activation: Activation = "relu",
        strengths: Mapping[Branch, Tensor] | None = None,
        train_norms: bool = True,
    ) -> None:
        super().__init__()
        if not generators:
            raise ValueError("generators must hold one generator per member, got none")
        check_head_size(scheme.attention, shape.d_model // shape.n_heads)
        self.scheme, self.depth, self.sublayers = scheme, depth, tuple(sublayers)
        self.n_members = n_members = len(generators)
        d = shape.d_model

        self.weights = nn.ParameterDict()
        for family in families(sublayers, shape.n_heads):
            kind = family.removeprefix(CROSS)
            fan_in, fan_out = shape.fans(kind)
            variance = scheme.variance(kind, fan_in, fan_out, activation, depth=depth)
            drawn = [torch.randn(depth, fan_in, fan_out, generator=g) for g in generators]
            self.weights[family] = nn.Parameter(math.sqrt(variance) * torch.stack(drawn))

        self.train_norms = train_norms
        with_norm = [s.branch for s in sublayers if s.norm_before or s.norm_after]
        normalized = with_norm if train_norms else []
        self.gains = nn.ParameterDict(
            {b: nn.Parameter(torch.ones(n_members, depth, d)) for b in normalized}
        )
        self.biases = nn.ParameterDict(
            {b: nn.Parameter(torch.zeros(n_members, depth, d)) for b in normalized}
        )
        if scheme.norm == "pre" and train_norms:
            self.final_gain = nn.Parameter(torch.ones(n_members, d))
            self.final_bias = nn.Parameter(torch.zeros(n_members, d))

        self.strengths: nn.ParameterDict | None = None
        if strengths is not None or scheme.train_strengths:
            self.strengths = nn.ParameterDict()
            for sublayer in sublayers:
                own = torch.full((n_members,), sublayer.strength.at(depth))
                alpha = own if strengths is None else strengths[sublayer.branch].to(own)
                if alpha.shape != (n_members,):
                    raise ValueError(
                        f"strengths[{sublayer.branch!r}] must be ({n_members},), "
                        f"got {tuple(alpha.shape)}"
                    )
                by_layer = alpha[:, None].repeat(1, depth)  # (E, L)
                self.strengths[sublayer.branch] = nn.Parameter(by_layer, scheme.train_strengths)

    def layers(self, *, q_factor: float | Tensor = 1.0) -> Iterator[Layer]:
        """The layers in their order; `q_factor`, a number or (E,), multiplies W^Q."""
        # (E, L, ...) -> L tensors (E, ...): one stack in the backward pass, not L scatters.
        weights = {family: w.unbind(1) for family, w in self.weights.items()}
        gains = {b: g[:, :, None, None].unbind(1) for b, g in self.gains.items()}
        biases = {b: g[:, :, None, None].unbind(1) for b, g in self.biases.items()}
        alphas: dict[Any, tuple[Tensor, ...]] = {
            b: a[:, :, None, None, None].unbind(1) for b, a in (self.strengths or {}).items()
        }
        for layer in range(self.depth):
            here = {family: w[layer] for family, w in weights.items()}
            here["q"] = _per_member(q_factor, here["q"])

            def project(
                z: Tensor, widths: Mapping[str, int], here: Mapping[str, Tensor] = here
            ) -> tuple[Tensor, ...]:
                rows = z.flatten(1, -2)  # all tokens of a member are rows of one matrix
                each = [here[family] for family in widths]
                w = each[0] if len(each) == 1 else torch.cat(each, -1)  # (E, d_in, all widths)
                # One member: the kernel for one matrix is faster.
                y = torch.bmm(rows, w) if len(w) > 1 else (rows.squeeze(0) @ w.squeeze(0))[None]
                y = y.view(*z.shape[:-1], -1)
                return (y,) if len(each) == 1 else y.split(list(widths.values()), -1)

            def norm(z: Tensor, branch: Branch, layer: int = layer) -> Tensor:
                if not self.train_norms:
                    return standardize(z)
                return _layer_norm(z, gains[branch][layer], biases[branch][layer])

            yield Layer(project, norm, {b: a[layer] for b, a in alphas.items()} or None)

    def end(self, x: Tensor) -> Tensor:
        """What follows the last block, (E, B, n, d) -> (E, B, n, d): LN in a PRE-LN stack."""
        if self.scheme.norm != "pre":
            return x
        if not self.train_norms:
            return standardize(x)
        return _layer_norm(x, self.final_gain[:, None, None], self.final_bias[:, None, None])


def _layer_norm(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """LN of (E, B, n, d) with one gain and bias (E, 1, 1, d) per member."""
    if len(x) == 1:  # one kernel instead of two
        return functional.layer_norm(
            x, x.shape[-1:], gain.flatten(), bias.flatten(), LAYER_NORM_EPS
        )
    y = functional.layer_norm(x, x.shape[-1:], eps=LAYER_NORM_EPS)
    return torch.addcmul(bias, y, gain)


def standardize(x: Tensor) -> Tensor:
    """LN without gain and bias, (..., d) -> (..., d), eps as PyTorch's own."""
    if x.device.type == "cpu":
        return cast(Tensor, _Standardize.apply(x))
    return functional.layer_norm(x, x.shape[-1:], eps=LAYER_NORM_EPS)


class _Standardize(torch.autograd.Function):
    """LN of short tokens on a CPU, where torch's own forward is slow.

        y = c / s ,  c = x - mean(x) ,  s^2 = mean(c^2) + eps
        dLoss/dx = ( g - mean(g) - y mean(g y) ) / s ,  g = dLoss/dy

    Keeps y, which the product that follows keeps anyway, and not x.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x - x.mean(-1, keepdim=True)
        power = torch.linalg.vector_norm(y, dim=-1, keepdim=True).square_().div_(x.shape[-1])
        inverse = power.add_(LAYER_NORM_EPS).rsqrt_()  # 1 / s, (..., 1)
        y.mul_(inverse)
        ctx.save_for_backward(y, inverse)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        y, inverse = ctx.saved_tensors
        # The bracket is the gradient of an LN whose input y has mean 0 and deviation 1.
        zero, one = torch.zeros_like(inverse), torch.ones_like(inverse)
        only_input = (True, False, False)
        bracket, _, _ = torch.ops.aten.native_layer_norm_backward(
            g, y, y.shape[-1:], zero, one, None, None, only_input
        )
        return cast(Tensor, bracket.mul_(inverse))


def _per_member(factor: float | Tensor, w: Tensor) -> Tensor:
    """factor w for a number, or for one number per member, (E,) with w (E, d, m)."""
    if isinstance(factor, Tensor):
        return factor.view(-1, 1, 1) * w
    return w if factor == 1.0 else factor * w
