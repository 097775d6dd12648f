"""Random networks behind one call: explicit weights, or products drawn exactly in law.

Both samplers answer `sampler.project(x, {family: (width, variance), ...})` with one product X W per
family, W having independent entries of mean zero and the given variance, fresh at every call. The
first dimension of x counts networks; dimensions between it and the tokens share the network's
weights, so that the rows of X are all tokens of all sequences of one network.

ExplicitSampler draws W (d_in, width) and multiplies: d_in * width random numbers per network.

LawSampler (derived here) never forms W. At initialization a Gaussian W enters only through X W.
Take any F (r, r) with F F^T = X X^T, for r rows. Then X = F Q^T with orthonormal columns Q, and
Q^T W has iid N(0, s^2) entries like W itself. With G (r, width) iid N(0, 1),

    X W  :=  s F G

has exactly the joint law of X W given X, for every width, depth and nonlinearity, provided that
each W is used once. It costs r * width random numbers and one factorization, shared by all families
of the call; the gain is about d_in / r.

Queries and keys go one step further: W^Q and W^K enter only through q k^T, q q^T and k k^T, which a
common rotation of head space leaves alone. So the stacked rows [G^K; G^Q] (2r, d_k) of a head are
replaced by the triangular factor T of their Gram matrix (Bartlett: T_ii^2 chi-squared with
d_k - i degrees of freedom, i = 0, 1, ..., iid N(0, 1) below the diagonal), and q, k come back with
2r columns instead of d_k.

`models.coordinates` goes on from here and keeps the residual stream itself without its d features.
"""

import math
from collections.abc import Mapping
from typing import Literal, Protocol

import torch
from torch import Tensor

from sigprop.models.attention import ATTENTION_VARIANTS, Preserved
from sigprop.models.schemes import check_name

Distribution = Literal["gaussian", "uniform"]
SamplerName = Literal["explicit", "law"]
DISTRIBUTIONS: tuple[Distribution, ...] = ("gaussian", "uniform")
SAMPLERS: tuple[str, ...] = ("auto", "explicit", "law")

Families = Mapping[str, tuple[int, float]]  # family -> (width, entry variance)

# Explicit weights are drawn and used in pieces of this size: small enough to stay in the cache.
CHUNK_BYTES = 2**23
# Features per panel of the QR in `row_factor`.
QR_PANEL = 2048
# "auto" draws in law below this ratio of rows to d_model: the measured crossover is near 0.45 for
# d from 32 to 512 (benchmarks/forward.py --crossover).
LAW_MAX_ROWS_PER_WIDTH = 0.4
# PyTorch's CPU normal_() turns 16 uniforms at a time into 16 normals.
_NORMAL_BLOCK = 16


class Sampler(Protocol):
    """What a block's `project` needs from a sampler of random networks."""

    name: SamplerName
    preserves: Preserved  # of the queries and keys of a head

    def project(self, x: Tensor, families: Families, n_heads: int = 1) -> tuple[Tensor, ...]:
        """X W for each family: (B, ..., n, d_in) -> one (B, ..., n, width) per family."""
        ...


class ExplicitSampler:
    """Draws every weight matrix. Any distribution, any number of rows; differentiable in x.

    Args:
        generator: seeded by the caller, on the device of x. The numbers drawn depend on the shapes
            alone, not on `CHUNK_BYTES` (on the CPU).
        distribution: "gaussian", or "uniform" on (-sqrt(3 variance), sqrt(3 variance)).

    Raises ValueError for an unknown distribution.
    """

    name: SamplerName = "explicit"
    preserves: Preserved = "features"

    def __init__(self, generator: torch.Generator, distribution: Distribution = "gaussian") -> None:
        check_name("distribution", distribution, DISTRIBUTIONS)
        self.generator = generator
        self.distribution = distribution

    def project(self, x: Tensor, families: Families, n_heads: int = 1) -> tuple[Tensor, ...]:
        """X W with explicit weights; see `Sampler.project`. `n_heads` changes nothing here."""
        rows = _rows(x)  # (B, r, d_in)
        return tuple(
            self._multiply(math.sqrt(variance) * rows, width).view(*x.shape[:-1], width)
            for width, variance in families.values()
        )

    def _multiply(self, x: Tensor, width: int) -> Tensor:
        """X W for W of unit variance, (B, r, d_in) -> (B, r, width), with CHUNK_BYTES of W."""
        n_networks, r, d_in = x.shape
        bytes_per_row = width * x.element_size()
        chunk = CHUNK_BYTES // (d_in * bytes_per_row)
        if chunk >= n_networks:
            return x @ self._draw(n_networks, d_in, width, x)  # (B, r, d_in) @ (B, d_in, width)

        y = x.new_empty(n_networks, r, width)
        if chunk >= 1:  # some networks at a time
            for k in range(0, n_networks, chunk):
                part = x[k : k + chunk]
                y[k : k + chunk] = part @ self._draw(len(part), d_in, width, x)
            return y

        # One network at a time, its W in blocks of rows whose products add up.
        block = max(1, CHUNK_BYTES // (bytes_per_row * _NORMAL_BLOCK)) * _NORMAL_BLOCK
        for k in range(n_networks):
            total = x.new_zeros(r, width)
            for part in x[k].split(block, dim=-1):  # (r, block)
                total = torch.addmm(total, part, self._draw(1, part.shape[-1], width, x)[0])
            y[k] = total
        return y

    def _draw(self, n_networks: int, d_in: int, width: int, like: Tensor) -> Tensor:
        """Weights of unit variance, (n_networks, d_in, width)."""
        size = d_in * width
        # Whole blocks per network, so that splitting over networks leaves the stream unchanged.
        padded = math.ceil(size / _NORMAL_BLOCK) * _NORMAL_BLOCK
        w = like.new_empty(n_networks, padded)
        if self.distribution == "gaussian":
            w.normal_(generator=self.generator)
        else:
            w.uniform_(-math.sqrt(3), math.sqrt(3), generator=self.generator)
        return w[:, :size].view(n_networks, d_in, width)


class LawSampler:
    """Draws the products X W in law, for Gaussian weights; see the head of this module.

    Calls with as many rows as features (r >= d_in), where nothing is gained, draw explicit weights:
    same law. Forward pass only: the products carry no gradient.

    Args:
        generator: seeded by the caller, on the device of x.
    """

    name: SamplerName = "law"
    preserves: Preserved = "gram"

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self._explicit = ExplicitSampler(generator)

    def project(self, x: Tensor, families: Families, n_heads: int = 1) -> tuple[Tensor, ...]:
        """X W in law, jointly over families; see `Sampler.project`.

        When both "q" and "k" are asked for and 2r < d_k, they are returned with 2r columns per head
        instead of d_k; the joint law of q k^T, q q^T and k k^T is unchanged. `n_heads` is the
        number of heads that the widths of q and k split into.
        """
        if torch.is_grad_enabled() and x.requires_grad:
            raise ValueError("sampler 'law' has no gradient: use torch.no_grad() or 'explicit'")
        rows = _rows(x)  # (B, r, d_in)
        n_networks, r, d_in = rows.shape
        if r >= d_in:
            return self._explicit.project(x, families, n_heads)
        f = row_factor(rows).view(*x.shape[:-1], r)  # (B, ..., n, r): F in place of X

        if not {"q", "k"} <= families.keys() or 2 * r >= families["k"][0] // n_heads:
            return self._explicit.project(f, families)
        d_k = families["k"][0] // n_heads
        t = bartlett(n_networks * n_heads, 2 * r, d_k, self.generator, x)
        # (B, h, k | q, r, 2r) -> (k | q, B, r, h * 2r)
        t = t.view(n_networks, n_heads, 2, r, 2 * r).permute(2, 0, 3, 1, 4).flatten(-2)
        rest = {family: size for family, size in families.items() if family not in ("q", "k")}
        products = dict(zip(rest, self._explicit.project(f, rest), strict=True))
        for family, g in (("k", t[0]), ("q", t[1])):
            y = math.sqrt(families[family][1]) * f.view(n_networks, r, r) @ g
            products[family] = y.view(*x.shape[:-1], -1)
        return tuple(products[family] for family in families)


def row_factor(x: Tensor, reference: int = 0) -> Tensor:
    """A factor F with F F^T = X X^T, (B, r, d) -> (B, r, r) for r <= d, same dtype.

    Rows are referred to row 0, Y_0 = X_0 and Y_i = X_i - X_0, and F is read off a QR of Y^T:

        Y = R^T Q^T ,   F_0 = (R^T)_0 ,   F_i = (R^T)_0 + (R^T)_i ,   (R^T)_0 = (+-|X_0|, 0, ..., 0)

    Householder QR is backward stable column by column, whatever the rank, so rounding errors are
    relative to the spread of the tokens and not to their norm: nearly equal rows keep their
    differences and equal rows stay equal. Columns come in reverse order, so that a product F G adds
    the large common term last and rounds it once.

    Rows before `reference` stand for themselves, and the rows after it are referred to it. Row 0
    has only its last coordinate.
    """
    first = reference + 1
    triangles = []
    for part in x.split(QR_PANEL, dim=-1):  # panels of features fit in the cache
        y = part - part[:, reference:first]
        y[:, :first] = part[:, :first]
        triangles.append(_triangle(y.mT))
    # Stacking the triangles of all panels keeps the Gram matrix: sum_p R_p^T R_p = Y Y^T.
    t = triangles[0] if len(triangles) == 1 else _triangle(torch.cat(triangles, dim=1))
    f = t.mT  # (B, r, r)
    f[:, first:, :first] += f[:, reference:first, :first]
    return f.flip(-1)


def _triangle(a: Tensor) -> Tensor:
    """R of a QR factorization, without forming Q, (B, p, r) -> (B, min(p, r), r); overwrites a."""
    tau = a.new_empty(a.shape[0], min(a.shape[1:]))
    torch.geqrf(a, out=(a, tau))  # in place: R goes to the upper triangle
    return a[:, : a.shape[2]].triu()


def bartlett(
    batch: int, size: int, degrees: int, generator: torch.Generator, like: Tensor
) -> Tensor:
    """Lower triangular T (batch, size, size) with T T^T ~ Wishart(degrees), for degrees >= size.

    T is the triangular factor of a (size, degrees) matrix of iid N(0, 1) entries.
    """
    t = like.new_empty(batch, size, size).normal_(generator=generator).tril_(-1)
    freedom = torch.arange(degrees, degrees - size, -1, dtype=torch.float64, device=like.device)
    # chi-squared with k degrees of freedom is twice a Gamma(k / 2).
    chi_squared = 2 * torch._standard_gamma(
        (freedom / 2).expand(batch, size).contiguous(), generator=generator
    )
    t.diagonal(dim1=-2, dim2=-1).copy_(chi_squared.sqrt())
    return t


def choose_sampler(
    name: str,
    rows: int,
    d_model: int,
    distribution: Distribution = "gaussian",
    variant: str = "dot_product",
) -> SamplerName:
    """The sampler to use: "auto" takes the cheaper of the valid ones.

    Args:
        name: "auto", "explicit" or "law".
        rows: tokens per network, n_tokens times the sequences that share its weights.
        d_model: width of the residual stream.
        distribution: of the weight entries; drawing in law needs "gaussian".
        variant: of the attention; one that needs all features of a head needs "explicit".

    Raises ValueError for an unknown name, and for "law" where it does not hold.
    """
    check_name("sampler", name, SAMPLERS)
    check_name("distribution", distribution, DISTRIBUTIONS)
    gaussian = distribution == "gaussian"
    drawable = gaussian and not ATTENTION_VARIANTS[variant].missing(LawSampler.preserves)
    if name == "law" and not gaussian:
        raise ValueError(
            f"sampler 'law' needs distribution 'gaussian', got {distribution!r}: "
            "use sampler 'explicit' or 'auto'"
        )
    if name == "law" and not drawable:
        raise ValueError(
            f"sampler 'law' does not draw single features of queries and keys, which attention "
            f"{variant!r} needs: use sampler 'explicit' or 'auto'"
        )
    if name == "auto":
        return "law" if drawable and rows < LAW_MAX_ROWS_PER_WIDTH * d_model else "explicit"
    return "law" if name == "law" else "explicit"


def _rows(x: Tensor) -> Tensor:
    """(B, ..., n, d) -> (B, r, d), all rows of a network together."""
    if x.ndim < 3:
        raise ValueError(f"x must be (networks, ..., tokens, d), got shape {tuple(x.shape)}")
    return x.reshape(x.shape[0], -1, x.shape[-1])
