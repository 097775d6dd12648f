"""Encoder-decoder transformer for translation, built from the sub-layers of `models.block`.

    encoder block    self-attention, feed-forward
    decoder block    causal self-attention, cross-attention, feed-forward

Each stack is a `models.stack.Stack`, whose blocks obey the scheme, with L the depth of its own
stack in alpha(L); cross-attention is placed and scaled like self-attention.

    A = softmax( tau / sqrt(d_k) f(X W^Q) f(Y W^K)^T ) ,   Y = X or the encoder's output

with f of `models.attention`. A variant that depends on positions replaces those that are added to
embeddings, and leaves cross-attention a dot product.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from sigprop.models.attention import ATTENTION_VARIANTS, vary
from sigprop.models.block import Project, block, feed_forward, merge_heads, split_heads
from sigprop.models.label_smoothing import smoothed_cross_entropy
from sigprop.models.schemes import CROSS, Branch, Scheme, SubLayer, check_name
from sigprop.models.stack import Stack
from sigprop.models.trained import sinusoids

Site = Literal["encoder", "decoder", "cross"]
Sharing = Literal["none", "decoder", "all"]
SITES: tuple[Site, ...] = get_args(Site)
SHARINGS: tuple[Sharing, ...] = get_args(Sharing)


@dataclass(frozen=True)
class Seq2SeqConfig:
    """Shape of an encoder-decoder.

    Attributes:
        source_symbols, target_symbols: sizes of the vocabularies.
        d_model, n_heads, d_ff: as everywhere; each head has d_k = d_model / n_heads.
        encoder_depth, decoder_depth: blocks of each stack.
        max_tokens: longest sentence, with its end mark.
        dropout: rate on embeddings and on the output of every branch, in training mode.
        attention_dropout: rate on attention probabilities, in training mode.
        share: embeddings that are one matrix. "decoder": the decoder's input and output. "all":
            also the encoder's, which needs a joint vocabulary. "none": all separate.
        heated: attentions that get the `tau` of a forward pass, the others keep the scheme's.
        pad: symbol that fills sentences up to the length of the batch, on the right.

    Raises ValueError for a size or rate out of range and for an unknown name.
    """

    source_symbols: int
    target_symbols: int
    d_model: int
    encoder_depth: int
    decoder_depth: int
    n_heads: int = 4
    d_ff: int = 256
    max_tokens: int = 256
    dropout: float = 0.0
    attention_dropout: float = 0.0
    share: Sharing = "decoder"
    heated: tuple[Site, ...] = SITES
    pad: int = 0

    def __post_init__(self) -> None:
        sizes = ("source_symbols", "target_symbols", "d_model", "encoder_depth", "decoder_depth")
        for name in (*sizes, "n_heads", "d_ff", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.d_model % self.n_heads or self.d_model % 2:
            raise ValueError(
                f"d_model = {self.d_model} must be even and a multiple of n_heads = {self.n_heads}"
            )
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)}")
        check_name("share", self.share, SHARINGS)
        for site in self.heated:
            check_name("heated", site, SITES)
        if self.share == "all" and self.source_symbols != self.target_symbols:
            raise ValueError(
                f"share 'all' needs one vocabulary, got {self.source_symbols} and "
                f"{self.target_symbols} symbols: use share 'decoder'"
            )
        if not 0 <= self.pad < min(self.source_symbols, self.target_symbols):
            raise ValueError(f"pad must be a symbol of both vocabularies, got {self.pad}")

    def fans(self, family: str) -> tuple[int, int]:
        """(fan_in, fan_out) of the weights of `family`, heads together."""
        d = self.d_model
        return {"ff1": (d, self.d_ff), "ff2": (self.d_ff, d)}.get(family, (d, d))


def dropout(x: Tensor, rate: float) -> Tensor:
    """Inverted dropout: entries are zero with probability `rate`, else divided by 1 - rate.

    On the CPU the decisions compare 16 random bits, four to a draw, so the rate is rounded to a
    multiple of 2^-16. That is several times faster than PyTorch's, which draws each on its own.
    """
    if rate == 0:
        return x
    if x.device.type != "cpu":
        return functional.dropout(x, rate)
    dropped = min(round(rate * 2**16), 2**16 - 1)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = draws.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - 2**15
    return x * kept.to(x.dtype).mul_(2**16 / (2**16 - dropped))


class Cache(Protocol):
    """Keys and values of tokens decoded before, for every layer (see `models.decoding`)."""

    @property
    def n_before(self) -> int:
        """Position of the new tokens in their sentences."""

    @property
    def visible(self) -> Tensor | None:
        """Boolean (B, 1, new, all), True where a new token may see a token; None for all."""

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Take those of the new tokens, (B, h, new, d_k), and return all, (B, h, all, d_k)."""


class Memory(NamedTuple):
    """What a decoder needs of the source.

    keys_values: k and v of every decoder layer, each (B, h, S, d_k).
    visible: (B, 1, 1, S) boolean, True at real tokens.
    """

    keys_values: tuple[tuple[Tensor, Tensor], ...]
    visible: Tensor

    def select(self, rows: Tensor) -> "Memory":
        """The memory of some sentences, `rows` (b,) int64."""
        kept = tuple((k[rows], v[rows]) for k, v in self.keys_values)
        return Memory(kept, self.visible[rows])


@dataclass(frozen=True)
class Pass:
    """What the attentions of one forward pass of a stack use.

    Attributes:
        tau, cross_tau: inverse temperatures of self- and cross-attention.
        visible: boolean, broadcastable to (B, h, n, m), True where a query may see a key.
        causal: a token sees those up to itself.
        memory: the source, in a decoder.
        cache: keys and values of earlier tokens, when decoding.
    """

    tau: float
    visible: Tensor | None = None
    causal: bool = False
    memory: Memory | None = None
    cross_tau: float = 1.0
    cache: Cache | None = None


class TextStack(Stack):
    """The blocks of an encoder or of a decoder, which crosses to the source.

    Attention runs in the fused kernel, which `models.block.attend` cannot use as it also returns
    the probabilities. Parameters have a member axis of length 1, activations none.

    Args:
        config: shape.
        scheme, depth, sublayers: see `models.stack.Stack`.
        generator: draws the weights.
    """

    def __init__(
        self,
        config: Seq2SeqConfig,
        scheme: Scheme,
        depth: int,
        sublayers: Sequence[SubLayer],
        generator: torch.Generator,
    ) -> None:
        super().__init__(config, scheme, depth, [generator], sublayers=sublayers)
        self.config, self.d_k = config, config.d_model // config.n_heads
        self.variant = scheme.attention
        positional = ATTENTION_VARIANTS[self.variant].positional
        self.cross_variant = "dot_product" if positional else self.variant

    def forward(self, x: Tensor, how: Pass, states: list[Tensor] | None = None) -> Tensor:
        """X^0 -> X^L, (B, n, d) -> (B, n, d); `states` gets X^0, ..., X^L before a final LN."""
        x = x[None]
        if states is not None:
            states.append(x.squeeze(0))
        for index, layer in enumerate(self.layers()):
            project = layer.project
            branches: dict[Branch, Callable[[Tensor], Tensor]] = {
                "attention": partial(self._attention, index, project, how),
                "cross_attention": partial(self._cross_attention, index, project, how),
                "feed_forward": partial(self._feed_forward, project),
            }
            x = block(
                x,
                project,
                self.scheme,
                self.depth,
                norm=layer.norm,
                strengths=layer.strengths,
                sublayers=self.sublayers,
                branches=branches,
            ).x
            if states is not None:
                states.append(x.squeeze(0))
        return self.end(x).squeeze(0)

    def _attention(self, layer: int, project: Project, how: Pass, z: Tensor) -> Tensor:
        d = self.config.d_model
        q, k, v = (self._heads(y.squeeze(0)) for y in project(z, {"q": d, "k": d, "v": d}))
        at = None if how.cache is None else how.cache.n_before
        q, k = (vary(each, self.variant, self.d_k, at) for each in (q, k))
        if how.cache is not None:
            k, v = how.cache.append(layer, k, v)
        return self._out(project, "o", self._attend(q, k, v, how.tau, how.visible, how.causal))

    def _cross_attention(self, layer: int, project: Project, how: Pass, z: Tensor) -> Tensor:
        if how.memory is None:
            raise ValueError("memory is missing: a decoder needs the encoder's output")
        (y,) = project(z, {CROSS + "q": self.config.d_model})
        q = vary(self._heads(y.squeeze(0)), self.cross_variant, self.d_k)
        k, v = how.memory.keys_values[layer]
        return self._out(
            project, CROSS + "o", self._attend(q, k, v, how.cross_tau, how.memory.visible)
        )

    def _feed_forward(self, project: Project, z: Tensor) -> Tensor:
        return self._dropped(feed_forward(z, project, self.config.d_ff, "relu"))

    def _out(self, project: Project, family: str, y: Tensor) -> Tensor:
        """Heads merged, (B, n, d), to the branch's output (1, B, n, d)."""
        y = y[None]
        if family in self.weights:
            (y,) = project(y, {family: self.config.d_model})
        return self._dropped(y)

    def _dropped(self, y: Tensor) -> Tensor:
        return dropout(y, self.config.dropout) if self.training else y

    def keys_values(self, x: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
        """Cross-attention's k and v of every layer from the encoder's output (B, S, d)."""
        w = torch.cat([self.weights[CROSS + "k"], self.weights[CROSS + "v"]], -1).squeeze(0)
        y = x @ w.transpose(0, 1).flatten(1)  # w (L, d, 2 d), all layers at once
        heads = [self._heads(part) for part in y.chunk(2 * self.depth, -1)]
        keys = [vary(k, self.cross_variant, self.d_k) for k in heads[::2]]
        return tuple(zip(keys, heads[1::2], strict=True))

    def _heads(self, y: Tensor) -> Tensor:
        """(B, n, d) -> (B, h, n, d_k)."""
        return split_heads(y, self.config.n_heads)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        tau: float,
        visible: Tensor | None,
        causal: bool = False,
    ) -> Tensor:
        """softmax(tau / sqrt(d_k) q k^T) v, heads merged: (B, h, n, d_k) -> (B, n, d)."""
        s = functional.scaled_dot_product_attention(
            # tau is not put into `scale`: the fused kernel masks before it scales, and 0 inf is NaN
            q if tau == 1.0 else tau * q,
            k,
            v,
            attn_mask=visible,
            dropout_p=self.config.attention_dropout if self.training else 0.0,
            is_causal=causal,
        )  # (B, h, n, d_k); it divides by sqrt(d_k)
        return merge_heads(s)


class Seq2Seq(nn.Module):
    """Encoder-decoder with sinusoidal positions and a readout that is the decoder's embedding.

        X^0 = sqrt(d) Emb[symbols] + pos ,    logits = Y^L Emb_out^T

    Embeddings start as N(0, 1/d) times the scheme's `embedding_gain`. Sentences are int64 rows,
    padded on the right; every row has at least one symbol that is not padding.

    Args:
        config: shape.
        scheme: normalization, strengths, tau and initial weights.
        generator: draws all weights, on the CPU; move the module to a device afterwards.

    Parameters: `source_embedding` (source_symbols, d) unless shared, `target_embedding`
    (target_symbols, d), `readout` (target_symbols, d) unless shared, and the stacks' `encoder` and
    `decoder`.
    """

    positions: Tensor

    def __init__(self, config: Seq2SeqConfig, scheme: Scheme, generator: torch.Generator) -> None:
        super().__init__()
        self.config, self.scheme = config, scheme
        d = config.d_model

        def embedding(symbols: int) -> nn.Parameter:
            std = scheme.embedding_gain.at(config.decoder_depth) / math.sqrt(d)
            return nn.Parameter(std * torch.randn(symbols, d, generator=generator))

        self.target_embedding = embedding(config.target_symbols)
        self.source_embedding = (
            self.target_embedding if config.share == "all" else embedding(config.source_symbols)
        )
        self.readout = (
            embedding(config.target_symbols) if config.share == "none" else self.target_embedding
        )
        self.encoder = TextStack(config, scheme, config.encoder_depth, scheme.sublayers, generator)
        self.decoder = TextStack(
            config, scheme.decoder, config.decoder_depth, scheme.decoder_sublayers, generator
        )
        self.register_buffer("positions", sinusoids(config.max_tokens, d), persistent=False)

    def encode(
        self, source: Tensor, *, tau: float | None = None, states: list[Tensor] | None = None
    ) -> Tensor:
        """Encoder output, (B, S) int64 -> (B, S, d).

        Args:
            tau: inverse temperature of the attentions in `config.heated`; None is the scheme's.
            states: gets X^0, ..., X^L, each (B, S, d), padding included.
        """
        how = Pass(tau=self._tau("encoder", tau), visible=self._real(source))
        x: Tensor = self.encoder(self._embed(source, self.source_embedding), how, states)
        return x

    def remember(self, encoded: Tensor, source: Tensor) -> Memory:
        """What the decoder reads of an encoder output (B, S, d) of `source` (B, S)."""
        return Memory(self.decoder.keys_values(encoded), self._real(source))

    def decode(
        self,
        target: Tensor,
        memory: Memory,
        *,
        tau: float | None = None,
        cache: Cache | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """Decoder output, (B, T) int64 -> (B, T, d); multiply by `readout`.T for logits.

        Without a cache row t sees the symbols up to t. With one, `target` holds symbols of one
        position, and the cache says what each of them sees.
        """
        how = Pass(
            tau=self._tau("decoder", tau),
            visible=None if cache is None else cache.visible,
            causal=cache is None,
            memory=memory,
            cross_tau=self._tau("cross", tau),
            cache=cache,
        )
        x = self._embed(target, self.target_embedding, None if cache is None else cache.n_before)
        y: Tensor = self.decoder(x, how, states)
        return y

    def forward(self, source: Tensor, target: Tensor, *, tau: float | None = None) -> Tensor:
        """Logits of the symbol after each of `target`, (B, S), (B, T) -> (B, T, target_symbols)."""
        return self._decoded(source, target, tau) @ self.readout.T

    def loss(
        self,
        source: Tensor,
        target_in: Tensor,
        target_out: Tensor,
        *,
        tau: float | None = None,
        label_smoothing: float = 0.0,
        reduction: Literal["mean", "sum"] = "mean",
    ) -> Tensor:
        """Cross-entropy of `target_out` given the source and `target_in`, in nats.

        Args:
            source: (B, S) int64.
            target_in, target_out: (B, T) int64, what the decoder reads (a start mark first) and
                what it must predict at each place (the end mark last).
            label_smoothing: see `models.label_smoothing`.
            reduction: "mean" or "sum" over the real tokens of target_out.
        """
        check_name("reduction", reduction, ("mean", "sum"))
        hidden = self._decoded(source, target_in, tau)
        wanted = target_out.flatten()
        real = (wanted != self.config.pad).nonzero().squeeze(1)
        rows = hidden.flatten(0, 1).index_select(0, real)  # (N, d): no readout for padding
        losses = smoothed_cross_entropy(rows, self.readout, wanted[real], label_smoothing)
        return losses.mean() if reduction == "mean" else losses.sum()

    def _decoded(self, source: Tensor, target: Tensor, tau: float | None) -> Tensor:
        return self.decode(target, self.remember(self.encode(source, tau=tau), source), tau=tau)

    def _tau(self, site: Site, tau: float | None) -> float:
        return self.scheme.tau if tau is None or site not in self.config.heated else tau

    def _real(self, tokens: Tensor) -> Tensor:
        """(B, n) -> (B, 1, 1, n), True at symbols that are not padding."""
        return (tokens != self.config.pad)[:, None, None]

    def _embed(self, tokens: Tensor, embedding: Tensor, position: int | None = None) -> Tensor:
        """X^0 of a sentence, or with a position of symbols that all stand there; (B, n, d)."""
        last = tokens.shape[1] if position is None else position + 1
        if last > self.config.max_tokens:
            raise ValueError(
                f"sentence of {last} symbols is longer than max_tokens = {self.config.max_tokens}: "
                "shorten it or raise max_tokens"
            )
        x = math.sqrt(self.config.d_model) * functional.embedding(tokens, embedding)
        if not ATTENTION_VARIANTS[self.scheme.attention].positional:
            x = x + (self.positions[:last] if position is None else self.positions[position])
        return dropout(x, self.config.dropout) if self.training else x
