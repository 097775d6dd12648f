"""Encoders with trained weights, E of them side by side, and a classifier of tokens."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from sigprop.models.attention import ATTENTION_VARIANTS
from sigprop.models.block import block
from sigprop.models.encoder import EncoderConfig
from sigprop.models.schemes import Branch, Scheme
from sigprop.models.stack import Stack


class TrainedEncoder(Stack):
    """E encoders of one shape, each from its own generator.

    Args:
        config: shape. The attention must be softmax and the weights Gaussian.
        scheme, generators, strengths, train_norms, and parameters: see `models.stack.Stack`.

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
        if config.attention != "softmax" or config.distribution != "gaussian":
            raise ValueError(
                f"attention {config.attention!r} with {config.distribution!r} weights is not "
                "trained: use 'softmax' and 'gaussian'"
            )
        super().__init__(
            config,
            scheme,
            config.depth,
            generators,
            sublayers=scheme.sublayers,
            activation=config.activation,
            strengths=strengths,
            train_norms=train_norms,
        )
        self.config = config

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
        if states is not None:
            states.append(x)
        for layer in self.layers(q_factor=tau if folded else 1.0):
            x = block(
                x,
                layer.project,
                self.scheme,
                config.depth,
                n_heads=config.n_heads,
                d_ff=config.hidden,
                activation=config.activation,
                mask=mask,
                norm=layer.norm,
                strengths=layer.strengths,
                tau=1.0 if folded else heat,
            ).x
            if states is not None:
                states.append(x)
        return self.end(x)


class TokenClassifier(nn.Module):
    """A digit in, a class out, at every position: embedding, positions, encoder, linear readout.

        X^0 = scale (Emb[x] + pos) + offset ,    logits = X^L W + b

    Args:
        encoder: E encoders for sequences of config.n_tokens.
        n_symbols: size of the alphabet.
        n_classes: classes of the readout.
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
