"""Random blocks forward and backward, one at a time: the chain rule, block by block.

    X^(l+1) = block(X^l)             forward, every block with fresh weights
    dLoss/dX^l = (dX^(l+1)/dX^l)^T dLoss/dX^(l+1)        backward, from the last block

Each block is a graph of its own, so that what passes between two blocks can be looked at, or
replaced by other coordinates of the same thing, on both ways.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sigprop.models.block import Project, block
from sigprop.models.encoder import EncoderConfig
from sigprop.models.schemes import Branch, Scheme


class Tape:
    """The blocks of one batch of networks that were computed and not yet differentiated.

    Args:
        config, scheme: shape and scheme of the networks.
        project: draws the products with fresh weights, see `models.block.block`.
        strengths: branch strengths by network, see `models.block.block`; None means the scheme's.
        options: further ones of `models.block.block`.
    """

    def __init__(
        self,
        config: EncoderConfig,
        scheme: Scheme,
        project: Project,
        *,
        strengths: Mapping[Branch, float | Tensor] | None = None,
        **options: Any,
    ) -> None:
        self._config, self._scheme, self._project = config, scheme, project
        self._options = options | {"strengths": strengths}
        self._blocks: list[tuple[Tensor, Tensor]] = []  # input and output

    @torch.enable_grad()
    def forward(self, x: Tensor) -> Tensor:
        """X^(l+1) of the next block from X^l (B, ..., n, d), without its history.

        FloatingPointError when it is infinite or NaN.
        """
        config = self._config
        x = x.detach().requires_grad_()
        y = block(
            x,
            self._project,
            self._scheme,
            config.depth,
            n_heads=config.n_heads,
            d_ff=config.hidden,
            activation=config.activation,
            attention=config.attention,
            **self._options,
        ).x
        self._blocks.append((x, y))
        self._check_finite("activations", y)
        return y.detach()

    def backward(self, delta: Tensor) -> Tensor:
        """dLoss/dX^l from `delta` = dLoss/dX^(l+1), for the last block not yet differentiated.

        FloatingPointError when it is infinite or NaN.
        """
        x, y = self._blocks[-1]
        (delta,) = torch.autograd.grad(y, x, delta)
        self._check_finite("gradients", delta)
        self._blocks.pop()  # frees the block
        return delta

    def _check_finite(self, what: str, x: Tensor) -> None:
        # The sum first: it is cheap, and finite sums are the rule.
        if not torch.isfinite(x.sum()) and not torch.isfinite(x).all():
            raise FloatingPointError(
                f"{what} of scheme {self._scheme.name!r} are not finite at layer "
                f"{len(self._blocks)} of {self._config.depth} in "
                f"{str(x.dtype).removeprefix('torch.')}: use float64 or scale the residual branches"
            )
