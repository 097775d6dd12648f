"""Encoders with trained weights, E of them side by side (members of an ensemble).

Every parameter and every activation has a leading member axis, and no operation mixes members, so
that the gradient of the sum of the members' losses is each member's own gradient. Elementwise
optimizers then train E independent networks in one program; a single network is E = 1.

The block is `models.block.block`, fed with this layer's weights: what is trained is what the
theory describes at initialization (Noci et al. 2022, arXiv 2206.03126, section 2), plus, unless
told otherwise, a gain and a bias after each normalization, which start at 1 and 0.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from sigprop.models.attention import ATTENTION_VARIANTS, check_head_size
from sigprop.models.block import block
from sigprop.models.encoder import EncoderConfig
from sigprop.models.schemes import Branch, Scheme

BRANCHES: tuple[Branch, ...] = ("attention", "feed_forward")

# PyTorch's own; in training nothing has to be scale-free.
LAYER_NORM_EPS = 1e-5


def families(config: EncoderConfig) -> tuple[str, ...]:
    """Families of weights of an encoder; o only with several heads."""
    return ("q", "k", "v", *(("o",) if config.n_heads > 1 else ()), "ff1", "ff2")


class TrainedEncoder(nn.Module):
    """E encoders of one shape, each from its own generator.

    Member e draws all its weights from `generators[e]`, so it starts the same in an ensemble and
    alone.

    Args:
        config: shape. The attention must be softmax and the weights Gaussian.
        scheme: normalization, strengths, tau and variances of the initial weights; whether
            strengths are trained.
        generators: one per member, on the CPU; move the module to a device afterwards.
        strengths: alpha by branch, each (E,), where members differ; None takes the scheme's.
        train_norms: give each LN a gain and a bias; False has LN alone, as in the theory.

    Parameters: `weights[family]` (E, L, fan_in, fan_out); with `train_norms`, for branches
    with an LN, `gains[branch]` and `biases[branch]` (E, L, d), and `final_gain`, `final_bias`
    (E, d) after the last block of a PRE-LN stack; `strengths[branch]` (E, L), without a gradient
    unless trained.

    Raises:
        ValueError: no generator, strengths that do not fit, or a config that cannot be trained.
    """

    def __init__(
        self,
        config: EncoderConfig,
        scheme: Scheme,
        generators: Sequence[torch.Generator],
        *,
        strengths: Mapping[Branch, Tensor] | None = None,
        train_norms: bool = True,
    ) -> None:
        super().__init__()
        if not generators:
            raise ValueError("generators must hold one generator per member, got none")
        if config.attention != "softmax" or config.distribution != "gaussian":
            raise ValueError(
                f"attention {config.attention!r} with {config.distribution!r} weights is not "
                "trained: use 'softmax' and 'gaussian'"
            )
        check_head_size(scheme.attention, config.d_model // config.n_heads)
        self.config, self.scheme = config, scheme
        self.n_members = n_members = len(generators)
        depth, d = config.depth, config.d_model

        self.weights = nn.ParameterDict()
        for family in families(config):
            fan_in, fan_out = config.fans(family)
            variance = scheme.variance(family, fan_in, fan_out, config.activation, depth=depth)
            drawn = [torch.randn(depth, fan_in, fan_out, generator=g) for g in generators]
            self.weights[family] = nn.Parameter(math.sqrt(variance) * torch.stack(drawn))

        self.train_norms = train_norms
        with_norm = [s.branch for s in scheme.sublayers if s.norm_before or s.norm_after]
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
            for sublayer in scheme.sublayers:
                own = torch.full((n_members,), sublayer.strength.at(depth))
                alpha = own if strengths is None else strengths[sublayer.branch].to(own)
                if alpha.shape != (n_members,):
                    raise ValueError(
                        f"strengths[{sublayer.branch!r}] must be ({n_members},), "
                        f"got {tuple(alpha.shape)}"
                    )
                by_layer = alpha[:, None].repeat(1, depth)  # (E, L)
                self.strengths[sublayer.branch] = nn.Parameter(by_layer, scheme.train_strengths)

    def forward(
        self,
        x: Tensor,
        *,
        tau: float | Tensor | None = None,
        mask: Tensor | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """X^0 -> X^L, (E, B, n, d) -> (E, B, n, d).

        Args:
            tau: inverse temperature of this pass, or (E,) of them; None takes the scheme's. Zero
                is allowed and gives uniform attention.
            mask: as in `models.block.block`.
            states: gets X^0, ..., X^L appended (before the final LN of a PRE-LN stack).
        """
        config = self.config
        tau = self.scheme.tau if tau is None else tau
        # A factor of W^Q costs less than one of the queries, where the attention lets it through.
        folded = ATTENTION_VARIANTS[self.scheme.attention].linear
        heat = tau.view(-1, 1, 1, 1, 1).to(x.dtype) if isinstance(tau, Tensor) else tau
        # (E, L, ...) -> L tensors (E, ...): one stack in the backward pass, not L scatters.
        weights = {family: w.unbind(1) for family, w in self.weights.items()}
        gains = {b: g[:, :, None, None].unbind(1) for b, g in self.gains.items()}
        biases = {b: g[:, :, None, None].unbind(1) for b, g in self.biases.items()}
        alphas: dict[Branch, tuple[Tensor, ...]] = {}
        if self.strengths is not None:
            alphas = {b: self.strengths[b][:, :, None, None, None].unbind(1) for b in BRANCHES}
        if states is not None:
            states.append(x)
        for layer in range(config.depth):
            here = {family: w[layer] for family, w in weights.items()}
            here["q"] = _per_member(tau, here["q"]) if folded else here["q"]

            def project(
                z: Tensor, widths: Mapping[str, int], here: Mapping[str, Tensor] = here
            ) -> tuple[Tensor, ...]:
                rows = z.flatten(1, -2)  # all tokens of a member are rows of one matrix
                shape = (*z.shape[:-1], -1)
                if len(widths) == 1:
                    (family,) = widths
                    return (torch.bmm(rows, here[family]).view(shape),)
                w = torch.cat([here[family] for family in widths], -1)  # (E, d_in, sum of widths)
                return torch.bmm(rows, w).view(shape).split(list(widths.values()), -1)

            def norm(z: Tensor, branch: Branch, layer: int = layer) -> Tensor:
                if not self.train_norms:
                    return standardize(z)
                return _layer_norm(z, gains[branch][layer], biases[branch][layer])

            x = block(
                x,
                project,
                self.scheme,
                config.depth,
                n_heads=config.n_heads,
                d_ff=config.hidden,
                activation=config.activation,
                mask=mask,
                norm=norm,
                strengths={b: a[layer] for b, a in alphas.items()} or None,
                tau=1.0 if folded else heat,
            ).x
            if states is not None:
                states.append(x)
        if self.scheme.norm != "pre":
            return x
        if not self.train_norms:
            return standardize(x)
        return _layer_norm(x, self.final_gain[:, None, None], self.final_bias[:, None, None])


class TokenClassifier(nn.Module):
    """A digit in, a class out, at every position: embedding, positions, encoder, linear read-out.

        X^0 = scale (Emb[x] + pos) + offset ,    logits = X^L W + b

    Args:
        encoder: E encoders for sequences of config.n_tokens.
        n_symbols: size of the alphabet.
        n_classes: classes of the read-out.
        generators: one per member, those of the encoder; embedding entries start as N(0, 1), those
            of W as N(0, 1 / d_model), b at 0.
        scale, offset: (E,) and (E, d_model), fixed; None is 1 and 0. They set the correlation of
            the input tokens, see `tasks.reversal`.
        positions: sinusoids, which need an even d_model; False leaves pos out, and then the order
            of the tokens means nothing.
    """

    positions: Tensor | None
    scale: Tensor | None
    offset: Tensor | None

    def __init__(
        self,
        encoder: TrainedEncoder,
        n_symbols: int,
        n_classes: int,
        generators: Sequence[torch.Generator],
        *,
        scale: Tensor | None = None,
        offset: Tensor | None = None,
        positions: bool = True,
    ) -> None:
        super().__init__()
        n_members, d = encoder.n_members, encoder.config.d_model
        if len(generators) != n_members:
            raise ValueError(f"generators must be {n_members}, one per member: {len(generators)}")
        for name, value, shape in (("scale", scale, (n_members,)), ("offset", offset, None)):
            expected = shape or (n_members, d)
            if value is not None and value.shape != expected:
                raise ValueError(f"{name} must be {expected}, got {tuple(value.shape)}")
        self.encoder = encoder
        self.n_members = n_members
        self._turned = ATTENTION_VARIANTS[encoder.scheme.attention].positional
        self.embedding = nn.Parameter(
            torch.stack([torch.randn(n_symbols, d, generator=g) for g in generators])
        )
        drawn = [torch.randn(d, n_classes, generator=g) for g in generators]
        self.readout = nn.Parameter(torch.stack(drawn) / math.sqrt(d))
        self.readout_bias = nn.Parameter(torch.zeros(n_members, n_classes))
        pos = sinusoids(encoder.config.n_tokens, d) if positions else None
        self.register_buffer("positions", pos)
        self.register_buffer("scale", None if scale is None else scale[:, None, None, None])
        self.register_buffer("offset", None if offset is None else offset[:, None, None])

    def embed(self, tokens: Tensor) -> Tensor:
        """X^0, (E, B, n) int64 -> (E, B, n, d)."""
        n_symbols = self.embedding.shape[1]
        first = n_symbols * torch.arange(self.n_members, device=tokens.device)
        rows = tokens + first[:, None, None]  # member e's symbols are rows e * n_symbols and on
        x = functional.embedding(rows, self.embedding.flatten(0, 1))
        x = x if self.positions is None else x + self.positions
        x = x if self.scale is None else self.scale * x
        return x if self.offset is None else x + self.offset

    def forward(
        self,
        tokens: Tensor,
        *,
        counts: Tensor | None = None,
        tau: float | Tensor | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """Logits, (E, B, n) int64 -> (E, B, n, n_classes).

        Args:
            tokens: symbols.
            counts: how many equal tokens each one stands for, broadcastable to `tokens`; None is
                one each. A key that occurs c times has c times its weight in a row of attention,
                softmax(M + ln c), so the logits are those of the tokens written out. ValueError
                with positions, of either kind. Every sequence needs a count above 0.
            tau, states: see the encoder.
        """
        if counts is not None and (self.positions is not None or self._turned):
            raise ValueError(
                "counts stand for equal tokens, which positions tell apart: use positions=False "
                "and an attention without positions"
            )
        mask = None if counts is None else counts.log()[..., None, :]  # (E, B, 1, n)
        x = self.encoder(self.embed(tokens), tau=tau, mask=mask, states=states)
        y = torch.baddbmm(self.readout_bias[:, None], x.flatten(1, -2), self.readout)
        return y.view(*x.shape[:-1], -1)


def sinusoids(n_tokens: int, d_model: int) -> Tensor:
    """Sinusoidal positions (n_tokens, d_model), float32 (Vaswani et al. 2017, section 3.5).

        pos[k, 2 i] = sin(k / 10000^{2 i / d}) ,   pos[k, 2 i + 1] = cos(k / 10000^{2 i / d})

    The mean square of an entry is 1/2. ValueError for an odd d_model.
    """
    if d_model % 2:
        raise ValueError(f"d_model must be even for sinusoidal positions, got {d_model}")
    k = torch.arange(n_tokens, dtype=torch.float64)[:, None]
    angle = k * 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).float()


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
