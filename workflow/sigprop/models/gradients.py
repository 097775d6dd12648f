"""Random networks with a backward pass: weight gradients of whole encoders, exact in law.

Both samplers answer `project` like those of `models.samplers`, are differentiable in x, and note
during the backward pass the squared gradient norms of the weights that they never hand out. Write
D = dLoss/d(X W) for one product. Then

    dLoss/dW = X^T D          dLoss/dX = D W^T , summed over the products that share X

ExplicitGradients keeps every W (d_in, width) from the forward to the backward pass.

LawGradients (derived here) has no object of that size. Take a QR factorization X^T = Q [R; 0] with
all of Q (d_in, d_in), a product of r reflections for r rows. Then W = s Q [G; H] with independent
N(0, 1) entries in G (r, width) and H (d_in - r, width), and

    X W      = s R^T G
    D W^T    = s [ D G^T | D H^T ] Q^T

H does not enter the forward pass, so it is independent of D, which sees W only through G. Given D,
the sum of s_f D_f H_f^T over the products f that share X has iid columns N(0, K), and may be drawn
as such:

    K = sum_f s_f^2 D_f D_f^T = T^T T       sum_f s_f D_f H_f^T  :=  T^T N ,   N (r, d_in - r) iid

Products, dLoss/dX and ||X^T D||^2 together have exactly the law that explicit weights give them,
provided that each W is used once and that there is one backward pass.

Queries and keys keep only 2r columns per head, see `models.samplers`: the rows [G^K; G^Q] of a head
are B O with B (2r, 2r), and O (2r, d_k) of orthonormal rows independent of B. The loss sees q k^T;
with M its cotangent, D^Q = M k and D^K = M^T q carry the same O on their right, so that D G^T and
D D^T, which is all that the backward pass asks for, do not contain it.

Nearly equal tokens keep their differences: the factorization refers rows to row 0 (see
`samplers.row_factor`), and so does ||X^T D||^2, because the rows of D^K add up to zero.
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from sigprop.models.attention import ATTENTION_VARIANTS, Preserved
from sigprop.models.encoder import EncoderConfig
from sigprop.models.gradient_coordinates import CoordinateGradients, gradient_coordinates_fit
from sigprop.models.gradient_record import GradientRecord, referred, squared_norm, triangle
from sigprop.models.samplers import (
    Distribution,
    ExplicitSampler,
    Families,
    SamplerName,
    bartlett,
    choose_sampler,
)


class GradientSampler(Protocol):
    """A sampler whose products can be differentiated in x, once."""

    name: SamplerName
    preserves: Preserved
    generator: torch.Generator
    record: GradientRecord

    def project(self, x: Tensor, families: Families, n_heads: int = 1) -> tuple[Tensor, ...]:
        """X W for each family, see `samplers.Sampler.project`."""
        ...


class ExplicitGradients(ExplicitSampler):
    """Draws every weight matrix and keeps it for the backward pass.

    The same random numbers as `ExplicitSampler`. Memory: all weights of all products between the
    forward and the backward pass.

    Args:
        generator, distribution: as for `ExplicitSampler`.
        record: where to note gradient norms; None makes a new record.
    """

    def __init__(
        self,
        generator: torch.Generator,
        distribution: Distribution = "gaussian",
        record: GradientRecord | None = None,
    ) -> None:
        super().__init__(generator, distribution)
        self.record = GradientRecord() if record is None else record

    def project(self, x: Tensor, families: Families, n_heads: int = 1) -> tuple[Tensor, ...]:
        """X W with explicit weights; see `Sampler.project`. `n_heads` changes nothing here."""
        rows = _rows(x)  # (B, r, d_in)
        w = {
            family: self._draw(len(rows), rows.shape[-1], width, rows)
            for family, (width, _) in families.items()
        }
        products = _ExplicitProducts.apply(rows, w, _scales(families), self.record)
        return tuple(y.view(*x.shape[:-1], y.shape[-1]) for y in products)


class LawGradients:
    """Draws the products and their gradients in law, for Gaussian weights; see the module's head.

    Calls with as many rows as features (r >= d_in), where nothing is gained, draw explicit weights:
    same law. Memory: n_tokens * (d_in + sum of widths) numbers per product.

    Args:
        generator: seeded by the caller, on the device of x; serves both passes.
    """

    name: SamplerName = "law"
    preserves: Preserved = "gram"

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.record = GradientRecord()
        self._explicit = ExplicitGradients(generator, record=self.record)

    def project(self, x: Tensor, families: Families, n_heads: int = 1) -> tuple[Tensor, ...]:
        """X W in law, jointly over families; see `Sampler.project`.

        Queries and keys come back with 2r columns per head where that is fewer than d_k; the joint
        law of q k^T, q q^T and k k^T and of all gradients is unchanged.
        """
        rows = _rows(x)  # (B, r, d_in)
        if rows.shape[1] >= rows.shape[2]:
            return self._explicit.project(x, families, n_heads)
        g = self._draw(rows, families, n_heads)
        products = _LawProducts.apply(rows, g, _scales(families), self.generator, self.record)
        return tuple(y.view(*x.shape[:-1], y.shape[-1]) for y in products)

    def _draw(self, x: Tensor, families: Families, n_heads: int) -> dict[str, Tensor]:
        """G of every family, (B, r, width), or (B, r, h * 2r) for short queries and keys."""
        n_networks, r, _ = x.shape
        g: dict[str, Tensor] = {}
        if {"q", "k"} <= families.keys() and 2 * r < (d_k := families["k"][0] // n_heads):
            t = bartlett(n_networks * n_heads, 2 * r, d_k, self.generator, x)
            # (B, h, k | q, r, 2r) -> (k | q, B, r, h * 2r)
            t = t.view(n_networks, n_heads, 2, r, 2 * r).permute(2, 0, 3, 1, 4).flatten(-2)
            g["k"], g["q"] = t
        for family, (width, _) in families.items():
            if family not in g:
                g[family] = x.new_empty(n_networks, r, width).normal_(generator=self.generator)
        return {family: g[family] for family in families}


def make_gradient_sampler(
    config: EncoderConfig,
    generator: torch.Generator,
    name: str = "auto",
    variant: str = "dot_product",
) -> GradientSampler:
    """The sampler called `name` for networks of this shape, see `samplers.choose_sampler`.

    Draws in law keep stream and gradients in coordinates when d_model has room for them and the
    attention `variant` allows it.
    """
    n, d = config.n_tokens, config.d_model
    if choose_sampler(name, n, d, config.distribution, variant) == "explicit":
        return ExplicitGradients(generator, config.distribution)
    covered = not ATTENTION_VARIANTS[variant].missing(CoordinateGradients.preserves)
    if covered and gradient_coordinates_fit(n, d):
        return CoordinateGradients(
            generator, n, d, config.n_heads, config.activation, config.hidden
        )
    return LawGradients(generator)


class _ExplicitProducts(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Mapping[str, Tensor],
        scales: Mapping[str, float],
        record: GradientRecord,
    ) -> tuple[Tensor, ...]:
        r_x = triangle(referred(x).mT)  # (B, min(d_in, r), r)
        ctx.save_for_backward(r_x, *w.values())
        ctx.scales, ctx.record = scales, record
        ctx.places = {family: record.open(family) for family in w}
        # (B, r, d_in) @ (B, d_in, width)
        return tuple((scales[family] * x) @ w[family] for family in w)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        r_x, *w = ctx.saved_tensors
        terms = []
        for (family, place), d, w_f in zip(ctx.places.items(), cotangents, w, strict=True):
            ctx.record.fill(family, place, squared_norm(r_x, triangle(d.mT)))
            terms.append((ctx.scales[family] * d) @ w_f.mT)  # (B, r, width) @ (B, width, d_in)
        return sum(terms[1:], terms[0]), None, None, None


class _LawProducts(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        g: Mapping[str, Tensor],
        scales: Mapping[str, float],
        generator: torch.Generator,
        record: GradientRecord,
    ) -> tuple[Tensor, ...]:
        a = referred(x).mT  # (B, d_in, r)
        tau = x.new_empty(a.shape[0], a.shape[2])
        torch.geqrf(a, out=(a, tau))  # in place: R above the diagonal, the reflections below
        ctx.save_for_backward(a, tau, *g.values())
        ctx.scales, ctx.generator, ctx.record = scales, generator, record
        ctx.places = {family: record.open(family) for family in g}
        # X = F (first r columns of Q)^T; the order of columns is reversed, see samplers.row_factor.
        f = a[:, : a.shape[2]].triu().mT
        f[:, 1:, 0] += f[:, :1, 0]
        f = f.flip(-1)
        return tuple((scales[family] * f) @ g[family] for family in g)  # (B, r, r) @ (B, r, width)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        a, tau, *g = ctx.saved_tensors
        n_networks, d_in, r = a.shape
        r_x = a[:, :r].triu()
        inside = a.new_zeros(n_networks, r, r)  # sum_f s_f D_f G_f^T
        triangles = []
        for (family, place), d, g_f in zip(ctx.places.items(), cotangents, g, strict=True):
            s, t = ctx.scales[family], triangle(d.mT)  # (B, min(width, r), r)
            ctx.record.fill(family, place, squared_norm(r_x, t))
            triangles.append(s * t)
            inside = torch.baddbmm(inside, d, g_f.mT, alpha=s)
        # T^T T = sum_f s_f^2 D_f D_f^T
        t = triangles[0] if len(triangles) == 1 else triangle(torch.cat(triangles, dim=1))
        fresh = a.new_empty(n_networks, t.shape[1], d_in - r).normal_(generator=ctx.generator)
        z = torch.cat([inside.flip(-1), t.mT @ fresh], dim=-1)  # (B, r, d_in)
        return torch.ormqr(a, tau, z.mT).mT, None, None, None, None


def _scales(families: Families) -> dict[str, float]:
    return {family: math.sqrt(variance) for family, (_, variance) in families.items()}


def _rows(x: Tensor) -> Tensor:
    """(B, ..., n, d) -> (B, r, d), all rows of a network together."""
    if x.ndim < 3:
        raise ValueError(f"x must be (networks, ..., tokens, d), got shape {tuple(x.shape)}")
    return x.reshape(x.shape[0], -1, x.shape[-1])
