"""The residual stream in its own coordinates: draws in law without any (n, d) object in the stream.

Derived here. Everything that a forward pass computes from the residual stream X (n, d), and
everything that is measured on it, depends on inner products of tokens and, for LN, on their means
over features. So X = C E^T may be kept as coordinates C in an orthonormal frame E (d, p) that spans
the rows of X and the direction e = 1 / sqrt(d), p = n + 1. E itself is never formed.

A product Y = Z W that ends in the stream, with Z = F Q^T for orthonormal columns Q (see
`models.samplers`), is Y = s F N with N (c, d) iid N(0, 1) for the c columns of F. Rotate N to the
frame: its coordinates along the u directions E in use are iid N(0, 1), G (c, u). The rest of N
lives in d - u further directions and is independent of G; choose the next c directions of the
frame by a triangular factorization of that rest, and its coordinates there are Bartlett's T (c, c)
with d - u degrees of freedom:

    coordinates of Y  :=  s F [G, T]        in the frame [E, c new directions]

The new directions depend on the weights just drawn, but all later weights are independent of them.
A block adds p directions for attention and p for the feed-forward branch. After it, n + 1 are
enough again: `compress`.

Products that stay inside a branch are needed up to a rotation of their space, unless a nonlinearity
acts on their entries. The keys of a head, k = s F G^K, may be rotated so that G^K becomes
Bartlett's T (c, c) with d_k degrees of freedom. Only q k^T is used, so of the queries only the
coordinates along those c directions count, and these are iid N(0, 1), independent of T. The values
of each of several heads (which the output projection mixes) and a linear hidden layer are drawn
like keys. Only a ReLU or tanh hidden layer, which depends on the basis, has its full width d_F; it
is factorized once for the way back. Per block this leaves n d_F + O(n^2) random numbers.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from sigprop.models.attention import Preserved
from sigprop.models.block import LAYER_NORM_EPS
from sigprop.models.samplers import (
    ExplicitSampler,
    Families,
    LawSampler,
    SamplerName,
    bartlett,
    row_factor,
)
from sigprop.models.schemes import ACTIVATIONS, Activation, Branch, check_name


def coordinates_fit(n_tokens: int, d_model: int) -> bool:
    """Whether d_model has room for the 3 (n_tokens + 1) directions that a block uses."""
    return d_model >= 3 * (n_tokens + 1)


class CoordinateSampler:
    """Draws in law, for Gaussian weights and one sequence per network; see the head of this module.

    The stream inside of a block is (B, n, width), with coordinates in the order

        [ p: input, the last of them along e | p: attention | p: feed-forward | zeros ]

    and p = n + 1; `width` is 3 p rounded up to a multiple of n_heads. Attention comes first in
    every scheme, see `Scheme.sublayers`. Forward pass only: the products carry no gradient.

    Args:
        generator: seeded by the caller, on the device of x.
        n_tokens, d_model, n_heads, activation: those of the model.

    Raises ValueError for d_model < 3 (n_tokens + 1) and for an unknown activation.
    """

    name: SamplerName = "law"
    preserves: Preserved = "logits"

    def __init__(
        self,
        generator: torch.Generator,
        n_tokens: int,
        d_model: int,
        n_heads: int = 1,
        activation: Activation = "relu",
    ) -> None:
        check_name("activation", activation, ACTIVATIONS)
        if not coordinates_fit(n_tokens, d_model):
            raise ValueError(
                f"d_model must be at least 3 (n_tokens + 1) = {3 * (n_tokens + 1)} to keep the "
                f"stream in coordinates, got {d_model}: use LawSampler"
            )
        self.generator = generator
        self.d_model = d_model
        self.activation = activation
        self.size = n_tokens + 1  # p
        self.width = math.ceil(3 * self.size / n_heads) * n_heads
        # For several sequences that share a network's weights; same generator.
        self.products = LawSampler(generator)
        self._explicit = ExplicitSampler(generator)

    # -------------------------------------------------------------- into and out of coordinates

    def enter(self, x: Tensor) -> Tensor:
        """Coordinates of tokens, (B, n, d_model) -> (B, n, p): same Gram matrix, e last.

        Raises ValueError when x does not fit n_tokens and d_model.
        """
        if x.ndim != 3 or x.shape[1:] != (self.size - 1, self.d_model):
            raise ValueError(
                f"x must be (networks, {self.size - 1}, {self.d_model}), got {tuple(x.shape)}: "
                "make the sampler for this shape"
            )
        return _coordinates(x, x.new_full((x.shape[-1],), 1 / math.sqrt(x.shape[-1])))

    def extend(self, x: Tensor) -> Tensor:
        """Zeros along the directions that a block will add, (B, n, p) -> (B, n, width)."""
        return functional.pad(x, (0, self.width - x.shape[-1]))

    def compress(self, x: Tensor) -> Tensor:
        """Coordinates in p directions again, (B, n, width) -> (B, n, p): same Gram matrix, e last.

        Nearly equal tokens keep their differences, see `samplers.row_factor`.
        """
        ones = x.new_zeros(x.shape[-1])
        ones[self.size - 1] = 1
        return _coordinates(x, ones)

    def norm(self, x: Tensor, branch: Branch | None = None) -> Tensor:
        """LN in coordinates, `models.block.layer_norm` of the tokens, (B, n, width).

        Centring over features takes the component along e away; the rest gets squared norm d.
        """
        x = x.clone()
        x[..., self.size - 1] = 0
        variance = x.square().sum(dim=-1, keepdim=True) / self.d_model
        return x * torch.rsqrt(variance + LAYER_NORM_EPS)

    # -------------------------------------------------------------- products

    def project(self, x: Tensor, families: Families, n_heads: int = 1) -> tuple[Tensor, ...]:
        """X W in law, jointly over families, in the coordinates that `models.block` goes on with.

        Args:
            x: (B, r, width), the stream or a mean token, for q, k, v and ff1; the output of the
                branch's hidden part, (B, r, any), for o and ff2.
            families: (d_out, variance) by family, with the model's d_out.
            n_heads: h.

        Returns, with c <= n + 1 the number of columns of F:
            v of one head, o and ff2: (B, r, width), coordinates in the stream.
            q and k: (B, r, h * min(c, d_k)), with the law of q k^T, scaled for logits that the
            block divides by sqrt(width / h) in place of sqrt(d / h).
            v of several heads: (B, r, h * min(c, d_h)).
            ff1: (B, r, d_ff) for ReLU and tanh, (B, r, min(c, d_ff)) for a linear activation.

        Raises ValueError when x requires a gradient.
        """
        if torch.is_grad_enabled() and x.requires_grad:
            raise ValueError("sampler 'law' has no gradient: use torch.no_grad() or 'explicit'")
        if families.keys() & {"q", "k", "v"}:
            x = x[..., : self.size]
        elif "ff1" in families:
            x = x[..., : 2 * self.size]
        # F (B, r, c), where one column more than rows is not worth a factorization.
        f = x if x.shape[-1] <= x.shape[-2] + 1 else row_factor(x)

        products = []
        for family, (d_out, variance) in families.items():
            scaled = math.sqrt(variance) * f
            if family in ("o", "ff2") or (family == "v" and n_heads == 1):
                y = self._into_stream(scaled, 2 * self.size if family == "ff2" else self.size)
            elif family == "q":
                scaled *= math.sqrt(self.width / self.d_model)
                y = self._rotated(scaled, n_heads, d_out // n_heads, triangular=False)
            elif family in ("k", "v"):
                y = self._rotated(scaled, n_heads, d_out // n_heads)
            elif self.activation == "linear":
                y = self._rotated(scaled, 1, d_out)
            else:
                (y,) = self._explicit.project(f, {family: (d_out, variance)})
            products.append(y)
        return tuple(products)

    def _into_stream(self, f: Tensor, used: int) -> Tensor:
        """F [G, T], (B, r, c) -> (B, r, width): along the `used` directions, and c new ones."""
        n_networks, _, c = f.shape
        g = f.new_empty(n_networks, c, used).normal_(generator=self.generator)
        t = bartlett(n_networks, c, self.d_model - used, self.generator, f)
        return self.extend(f @ torch.cat([g, t], dim=-1))  # (B, r, c) @ (B, c, used + c)

    def _rotated(self, f: Tensor, n_heads: int, d_h: int, triangular: bool = True) -> Tensor:
        """F G up to a rotation of each head's space, (B, r, c) -> (B, r, h * min(c, d_h)).

        `triangular` picks the rotation that makes G triangular; otherwise it is one that does not
        depend on G, and what lies beyond the first c directions is left out.
        """
        n_networks, _, c = f.shape
        batch = n_networks * n_heads
        if triangular and c < d_h:
            g = bartlett(batch, c, d_h, self.generator, f)
        else:
            g = f.new_empty(batch, c, min(c, d_h)).normal_(generator=self.generator)
        # (B, h, c, columns) -> (B, c, h * columns)
        g = g.view(n_networks, n_heads, c, -1).transpose(1, 2).flatten(-2)
        return f @ g  # (B, r, c) @ (B, c, h * columns)


def _coordinates(x: Tensor, ones: Tensor) -> Tensor:
    """Coordinates of x (B, n, m) with the unit vector `ones` (m,) as the last direction.

    (B, n, n + 1), from a QR of [ones, X^T] with the tokens referred to token 0.
    """
    rows = torch.cat([ones.expand(x.shape[0], 1, -1), x], dim=1)  # (B, n + 1, m)
    return row_factor(rows, reference=1)[:, 1:]
