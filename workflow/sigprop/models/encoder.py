"""A stack of L blocks with fresh random weights in every block, streamed layer by layer."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sigprop.models.attention import ATTENTION_VARIANTS, check_head_size
from sigprop.models.block import (
    ATTENTIONS,
    Attention,
    Project,
    block,
    layer_norm,
    with_gains,
)
from sigprop.models.coordinates import CoordinateSampler, coordinates_fit
from sigprop.models.samplers import (
    DISTRIBUTIONS,
    Distribution,
    ExplicitSampler,
    LawSampler,
    Sampler,
    choose_sampler,
)
from sigprop.models.schemes import (
    ACTIVATIONS,
    Activation,
    Branch,
    Family,
    Scheme,
    check_name,
)


@dataclass(frozen=True)
class EncoderConfig:
    """Shape of an encoder.

    Attributes:
        n_tokens: n, sequence length.
        d_model: d, width of the residual stream.
        depth: L, number of blocks.
        n_heads: h, must divide d_model; each head has d_k = d_v = d_model / n_heads.
        d_ff: hidden width of the feed-forward branch; None takes d_model.
        activation: "relu", "tanh" or "linear".
        attention: "softmax" or "uniform".
        distribution: of the weight entries, "gaussian" or "uniform".

    Raises ValueError for a size below one, for n_heads that do not divide d_model and for an
    unknown name.
    """

    n_tokens: int
    d_model: int
    depth: int
    n_heads: int = 1
    d_ff: int | None = None
    activation: Activation = "relu"
    attention: Attention = "softmax"
    distribution: Distribution = "gaussian"

    def __post_init__(self) -> None:
        for size in ("n_tokens", "d_model", "depth", "n_heads", "d_ff"):
            value = getattr(self, size)
            if value is not None and value < 1:
                raise ValueError(f"{size} must be at least 1, got {value}")
        if self.d_model % self.n_heads:
            raise ValueError(
                f"n_heads = {self.n_heads} does not divide d_model = {self.d_model}: "
                "choose a divisor"
            )
        check_name("activation", self.activation, ACTIVATIONS)
        check_name("attention", self.attention, ATTENTIONS)
        check_name("distribution", self.distribution, DISTRIBUTIONS)

    @property
    def hidden(self) -> int:
        """d_F, with the default filled in."""
        return self.d_model if self.d_ff is None else self.d_ff

    def fans(self, family: str) -> tuple[int, int]:
        """(fan_in, fan_out) of the weights of `family`, heads together."""
        d = self.d_model
        return {"ff1": (d, self.hidden), "ff2": (self.hidden, d)}.get(family, (d, d))


class LayerState(NamedTuple):
    """State of the networks after a layer.

    Attributes:
        layer: 0 (the input) to L.
        x: (B, ..., n, m), the residual stream. With a `CoordinateSampler` m = n + 1: coordinates of
            the tokens in some orthonormal frame, which changes from layer to layer. Inner products
            and norms are those of the tokens, single features have no meaning. With every other
            sampler m = d_model.
        attention: (B, ..., h, n, n) or None.
    """

    layer: int
    x: Tensor
    attention: Tensor | None


def make_sampler(
    config: EncoderConfig,
    generator: torch.Generator,
    name: str = "auto",
    sequences: int = 1,
    variant: str = "dot_product",
) -> Sampler:
    """The sampler called `name` for networks of this shape, see `samplers.choose_sampler`.

    `sequences` is the number of sequences that share one network's weights. Draws in law keep the
    stream in coordinates when there is one sequence, d_model has room for them and the attention
    `variant` needs no more than q k^T.
    """
    n, d = config.n_tokens, config.d_model
    if choose_sampler(name, n * sequences, d, config.distribution, variant) == "explicit":
        return ExplicitSampler(generator, config.distribution)
    covered = not ATTENTION_VARIANTS[variant].missing(CoordinateSampler.preserves)
    if covered and sequences == 1 and coordinates_fit(n, d):
        return CoordinateSampler(generator, n, d, config.n_heads, config.activation)
    return LawSampler(generator)


def drawn_families(
    config: EncoderConfig, scheme: Scheme, families: Iterable[str]
) -> dict[str, tuple[int, float]]:
    """Width and entry variance of each family, as samplers take them.

    The widths are the model's: in coordinates a block sees fewer columns.
    """
    fans = {family: config.fans(family) for family in families}
    return {
        family: (fan[1], scheme.variance(family, *fan, config.activation, depth=config.depth))
        for family, fan in fans.items()
    }


def check_covered(sampler: Sampler, config: EncoderConfig, scheme: Scheme) -> None:
    """ValueError when the sampler does not preserve what the scheme's attention needs."""
    if config.attention == "uniform":  # has no queries and keys
        return
    check_head_size(scheme.attention, config.d_model // config.n_heads)
    variant = ATTENTION_VARIANTS[scheme.attention]
    if variant.missing(sampler.preserves):
        raise ValueError(
            f"{type(sampler).__name__} preserves {sampler.preserves!r} of queries and keys, "
            f"attention {scheme.attention!r} needs {variant.needs!r}: make the sampler with "
            f"variant={scheme.attention!r}"
        )


@torch.inference_mode()
def stream(
    x: Tensor,
    config: EncoderConfig,
    scheme: Scheme,
    sampler: Sampler,
    *,
    mask: Tensor | None = None,
    keep_attention: bool = False,
    strengths: Mapping[Branch, float | Tensor] | None = None,
    gains: Mapping[Family, float | Tensor] | None = None,
) -> Iterator[LayerState]:
    """Run random encoders forward and yield their states at layers 0 to L.

    Only the current state is kept, so memory does not grow with depth. States are inference
    tensors: clone one outside of the loop to differentiate through it.

    Args:
        x: (B, ..., n_tokens, d_model), float32 or float64, which is also the dtype of the
            computation. One network per entry of the first dimension.
        config, scheme: shape and scheme of the networks.
        sampler: draws fresh weights for every block. A `CoordinateSampler` made for this config
            yields coordinates, see `LayerState`; for several sequences per network it draws
            products like `LawSampler`.
        mask: see `models.block.block`.
        keep_attention: yield the attention probabilities of each layer from 1 on.
        strengths: alpha by branch in place of the scheme's; tensors (B, 1, 1) give each network
            its own, so that networks of many settings run together.
        gains: factors on the entry variances on top of the scheme's, see `block.with_gains`.

    Raises:
        ValueError: x or the sampler does not fit the config or the scheme's attention.
        FloatingPointError: activations became infinite or NaN.
    """
    if x.ndim < 3 or x.shape[-2:] != (config.n_tokens, config.d_model):
        raise ValueError(
            f"x must be (networks, ..., {config.n_tokens}, {config.d_model}), got {tuple(x.shape)}"
        )
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"x must be float32 or float64, got {x.dtype}")

    coordinates: CoordinateSampler | None = None
    if isinstance(sampler, CoordinateSampler):
        if sampler.activation != config.activation:
            raise ValueError(
                f"the sampler was made for activation {sampler.activation!r}, the config has "
                f"{config.activation!r}: use make_sampler with this config"
            )
        if x.ndim == 3:
            coordinates = sampler
            x = coordinates.enter(x)
        else:
            sampler = sampler.products

    check_covered(sampler, config, scheme)

    def drawn(z: Tensor, widths: Mapping[str, int]) -> tuple[Tensor, ...]:
        return sampler.project(z, drawn_families(config, scheme, widths), config.n_heads)

    project: Project = with_gains(drawn, gains) if gains else drawn
    yield LayerState(0, x, None)
    for layer in range(1, config.depth + 1):
        x, attention = block(
            coordinates.extend(x) if coordinates else x,
            project,
            scheme,
            config.depth,
            n_heads=config.n_heads,
            d_ff=config.hidden,
            activation=config.activation,
            attention=config.attention,
            mask=mask,
            keep_attention=keep_attention,
            norm=coordinates.norm if coordinates else layer_norm,
            strengths=strengths,
        )
        x = coordinates.compress(x) if coordinates else x
        if not torch.isfinite(x.sum()) and not torch.isfinite(x).all():
            raise FloatingPointError(
                f"activations of scheme {scheme.name!r} are not finite at layer {layer} of "
                f"{config.depth} in {str(x.dtype).removeprefix('torch.')}: "
                "use float64 or scale the residual branches"
            )
        yield LayerState(layer, x, attention)
