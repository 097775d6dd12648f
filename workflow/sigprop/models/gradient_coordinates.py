"""Backward passes in coordinates: gradients in law without any (n, d) object in the stream.

Derived here. The forward pass is that of `models.coordinates`: within a block the stream (n, d) is
kept as coordinates along 3p directions, p = n + 1,

    [ p: V, the rows of the input and e | p: attention | p: feed-forward ].

A gradient dLoss/dX has a part outside of them, of which only the Gram matrix matters; so it takes
at most n more columns, in which the stream is zero. Three facts carry it through a block.

1. A product Y = s F [G, T], X = F Q^T, with cotangent D. As in `models.gradients`, the rows of W
outside of Q are fresh and

    dLoss/dX  =  s D [G, T]^T Q^T  +  T_D^T N ,    T_D^T T_D = sum_f s_f^2 D_f D_f^T ,

N with iid N(0, 1) coordinates along every direction orthogonal to Q. Those that already have a
column get numbers. The others, d - u of them for u columns, give n columns more, as N [.., L] with
Bartlett's factor L (n, n) with d - u degrees of freedom. Each of the calls for ff1 and for q, k, v
adds n columns.

2. Spaces inside of a branch that matter up to a rotation (values of several heads, a linear hidden
layer) have c columns for the products, and n for the part of the gradient beyond them, with
Bartlett's factor likewise. Queries and keys keep 2c columns per head, because the gradient of the
keys sees all of q q^T. A ReLU or tanh hidden layer has all its d_F columns.

3. From X^l as input of block l + 1 to X^l as output of block l. Both frames contain V, the rows of
X^l and e; the change of frame there is the reflections Q of `compress`. Beyond V, weights of later
blocks know no direction from another, so that dLoss/dX^l is S Theta^T there: S S^T its Gram matrix
and Theta (d - p, n) uniform on the Stiefel manifold, independent of S and of block l. Theta =
Z R^-1 with Z iid N(0, 1) and R^T R = Z^T Z. With Z_1 (2p, n) along the other directions of block l
and Bartlett's L L^T in place of Z_2^T Z_2 for the d - 3p directions beyond,

    S Theta^T  =  S R^-T [ Z_1^T , L ]     with     R^T R = Z_1^T Z_1 + L L^T .

The gradient at the output is an iid readout, which has the form S Theta^T from the start. In all,
u = 3p + 3n columns hold stream and gradients; only a ReLU or tanh hidden layer is wider.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable
from torch.nn import functional

from sigprop.models.attention import Preserved
from sigprop.models.coordinates import CoordinateSampler
from sigprop.models.gradient_record import GradientRecord, referred, squared_norm, triangle
from sigprop.models.samplers import Families, SamplerName, bartlett
from sigprop.models.schemes import Activation, Branch


def gradient_coordinates_fit(n_tokens: int, d_model: int) -> bool:
    """Whether d_model has room for 3 (n_tokens + 1) + 3 n_tokens directions."""
    return d_model >= 6 * n_tokens + 3


class Frame(NamedTuple):
    """Reflections a (B, 3p, p), tau (B, p) from the directions of a block to those of the next."""

    a: Tensor
    tau: Tensor


class _Space(NamedTuple):
    """Columns of the input of a product, of every head alike.

    The first `used` span the input. It is zero in `known` further columns, where the fresh part of
    the gradient is iid N(0, 1), and in the rest, which hold its part in `freedom` more dimensions.
    """

    heads: int
    used: int
    known: int
    freedom: int


class CoordinateGradients:
    """Draws products and gradients in law, with stream and gradients in coordinates.

    For Gaussian weights and one sequence per network, and with a readout drawn by `readout`. See
    the head of this module. Memory: 3 n d_ff + O(n^2) numbers per block.

    Args:
        generator: seeded by the caller, on the device of x; serves both passes.
        n_tokens, d_model, n_heads, activation, d_ff: those of the model; None takes d_model.

    Raises ValueError for d_model < 6 n_tokens + 3 and for an unknown activation.
    """

    name: SamplerName = "law"
    preserves: Preserved = "logits"  # Gram matrices too, but not the scale of d_k

    def __init__(
        self,
        generator: torch.Generator,
        n_tokens: int,
        d_model: int,
        n_heads: int = 1,
        activation: Activation = "relu",
        d_ff: int | None = None,
    ) -> None:
        if not gradient_coordinates_fit(n_tokens, d_model):
            raise ValueError(
                f"d_model must be at least 6 n_tokens + 3 = {6 * n_tokens + 3} to keep gradients "
                f"in coordinates, got {d_model}: use LawGradients"
            )
        self.generator = generator
        self.record = GradientRecord()
        self.n_tokens = n_tokens
        self.d_model = d_model
        self.d_ff = d_model if d_ff is None else d_ff
        self.activation = activation
        self.size = n_tokens + 1  # p
        self.width = math.ceil((3 * self.size + 3 * n_tokens) / n_heads) * n_heads
        self._stream = CoordinateSampler(generator, n_tokens, d_model, n_heads, activation)

    # -------------------------------------------------------------- from block to block

    def enter(self, x: Tensor) -> Tensor:
        """Coordinates of tokens, (B, n, d_model) -> (B, n, width). ValueError for other shapes."""
        return self._extend(self._stream.enter(x))

    def norm(self, x: Tensor, branch: Branch | None = None) -> Tensor:
        """LN in coordinates, (B, n, width), see `CoordinateSampler.norm`."""
        return self._stream.norm(x, branch)

    def compress(self, x: Tensor) -> tuple[Tensor, Frame]:
        """Output of a block as input of the next, (B, n, width) twice, and the change of frame.

        The tokens are referred to token 0 as in `samplers.row_factor`.
        """
        p = self.size
        ones = x.new_zeros(x.shape[0], 1, 3 * p)
        ones[..., p - 1] = 1
        rows = torch.cat([ones, referred(x[..., : 3 * p])], dim=1)  # (B, p, 3p)
        a, tau = _reflections(rows)
        f = a[:, :p].triu().mT  # (B, p, p)
        f[:, 2:, :2] += f[:, 1:2, :2]
        return self._extend(f[:, 1:].flip(-1)), Frame(a, tau)

    def readout(self, n_networks: int, like: Tensor) -> Tensor:
        """R / sqrt(n d) (B, n, width) for R (n, d) with iid N(0, 1) entries: dLoss/dX^L."""
        n, used = self.n_tokens, 3 * self.size
        along = like.new_empty(n_networks, n, used).normal_(generator=self.generator)
        beyond = bartlett(n_networks, n, self.d_model - used, self.generator, like)
        return self._extend(torch.cat([along, beyond], dim=-1)) / math.sqrt(n * self.d_model)

    def back(self, gradient: Tensor, frame: Frame) -> Tensor:
        """dLoss/dX^l from the frame of block l + 1 to that of block l, (B, n, width) twice."""
        n, p = self.n_tokens, self.size
        s = triangle(gradient[..., p:].mT).mT  # (B, n, n)
        z = s.new_empty(len(s), n, 2 * p).normal_(generator=self.generator)  # Z_1^T
        rest = bartlett(len(s), n, self.d_model - 3 * p, self.generator, s)
        z = torch.cat([z, rest], dim=-1)  # (B, n, 2p + n)
        factor = torch.linalg.cholesky(z @ z.mT)  # R^T
        beyond = s @ torch.linalg.solve_triangular(factor, z, upper=False)
        inside = torch.cat([gradient[..., :p].flip(-1), beyond[..., : 2 * p]], dim=-1)
        inside = _reflect(frame, inside)  # (B, n, 3p)
        return self._extend(torch.cat([inside, beyond[..., 2 * p :]], dim=-1))

    def _extend(self, x: Tensor) -> Tensor:
        return _widened(x, self.width)

    # -------------------------------------------------------------- products

    def project(self, x: Tensor, families: Families, n_heads: int = 1) -> tuple[Tensor, ...]:
        """X W in law, jointly over families, differentiable in x once.

        Args:
            x: (B, r, width), the stream or a mean token, for q, k, v and ff1; what came out of the
                branch's hidden part for o and ff2.
            families: (d_out, variance) by family, with the model's d_out.
            n_heads: h.

        Returns, with c <= n + 1 columns of F:
            v of one head, o and ff2: (B, r, width), coordinates in the stream.
            q and k: (B, r, h * min(2c, d_k)), with the law of q k^T, q q^T and k k^T.
            v of several heads: (B, r, h * min(2c, d_h)).
            ff1: (B, r, d_ff), for a linear activation (B, r, min(2c, d_ff)).
        """
        space = self._space(x, families, n_heads)
        r, used = x.shape[-2], space.heads * space.used
        c = r if used > r + 1 else used
        g: dict[str, Tensor] = {}
        if {"q", "k"} <= families.keys() and 2 * c < (d_k := families["k"][0] // n_heads):
            t = bartlett(len(x) * n_heads, 2 * c, d_k, self.generator, x)
            # (B, h, k | q, c, 2c) -> (k | q, B, c, h * 2c)
            t = t.view(len(x), n_heads, 2, c, 2 * c).permute(2, 0, 3, 1, 4).flatten(-2)
            g["k"], g["q"] = t
        for family, (d_out, _) in families.items():
            if family in g:
                continue
            if _into_stream(family, n_heads):
                along = 2 * self.size if family == "ff2" else self.size
                new = bartlett(len(x), c, self.d_model - along, self.generator, x)
                g[family] = torch.cat([self._normal(x, c, along), new], dim=-1)
            elif family == "v":
                g[family] = self._rotated(x, c, n_heads, d_out // n_heads)
            elif family == "ff1" and self.activation == "linear":
                g[family] = self._rotated(x, c, 1, d_out)
            else:
                g[family] = self._normal(x, c, d_out)
        g = {family: g[family] for family in families}
        scales = {family: math.sqrt(variance) for family, (_, variance) in families.items()}
        # What goes into the stream takes all of its columns, for the sake of its cotangent.
        widths = {
            family: self.width if _into_stream(family, n_heads) else g[family].shape[-1]
            for family in g
        }
        return _Products.apply(x, g, widths, scales, space, self.generator, self.record)

    def _space(self, x: Tensor, families: Families, n_heads: int) -> _Space:
        n, p = self.n_tokens, self.size
        if families.keys() & {"o", "ff2"}:
            heads, d_h = (1, self.d_ff) if "ff2" in families else (n_heads, self.d_model // n_heads)
            columns = x.shape[-1] // heads
            # As many columns as dimensions, or c for the products and c more, see `_rotated`.
            used = d_h if columns == d_h else columns // 2
            return _Space(heads, used, 0, d_h - used)
        used = 2 * p if "ff1" in families else p
        # Beyond the frame: what came from later blocks (n) and, before ff1, from ff1 (n).
        known = 3 * p + n if "ff1" in families else 3 * p + 2 * n
        return _Space(1, used, known - used, self.d_model - known)

    def _rotated(self, like: Tensor, c: int, n_heads: int, d_h: int) -> Tensor:
        """G of each head up to a rotation of its space, (B, c, h * min(2c, d_h)).

        Triangular in c columns, then zeros for gradients, where that is shorter than d_h.
        """
        if 2 * c >= d_h:
            return self._normal(like, c, n_heads * d_h)
        t = bartlett(len(like) * n_heads, c, d_h, self.generator, like)
        t = functional.pad(t, (0, c)).view(len(like), n_heads, c, 2 * c)
        return t.transpose(1, 2).flatten(-2)  # (B, h, c, 2c) -> (B, c, h * 2c)

    def _normal(self, like: Tensor, rows: int, columns: int) -> Tensor:
        return like.new_empty(len(like), rows, columns).normal_(generator=self.generator)


class _Products(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        g: Mapping[str, Tensor],
        widths: Mapping[str, int],
        scales: Mapping[str, float],
        space: _Space,
        generator: torch.Generator,
        record: GradientRecord,
    ) -> tuple[Tensor, ...]:
        # (B, r, h * used), the columns that the input lies in
        f = x.unflatten(-1, (space.heads, -1))[..., : space.used].flatten(-2)
        y = referred(f)
        saved: tuple[Tensor, ...]
        if f.shape[-1] <= f.shape[-2] + 1:  # F = X: one column more than rows is not worth a QR
            saved = (y.mT,)
        else:
            saved = _reflections(y)
            f = saved[0][:, : y.shape[1]].triu().mT
            f[:, 1:, 0] += f[:, :1, 0]
            f = f.flip(-1)  # see samplers.row_factor
        ctx.save_for_backward(*saved, *g.values())
        ctx.scales, ctx.space, ctx.columns = scales, space, x.shape[-1]
        ctx.generator, ctx.record = generator, record
        ctx.places = {family: record.open(family) for family in g}
        return tuple(
            _widened((scales[family] * f) @ g_f, widths[family])  # (B, r, c) @ (B, c, m)
            for family, g_f in g.items()
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        heads, used, known, freedom = ctx.space
        saved = ctx.saved_tensors
        g = saved[-len(ctx.places) :]
        frame = Frame(*saved[:2]) if len(saved) > len(g) + 1 else None
        y_t = frame.a[:, : frame.a.shape[2]].triu() if frame else saved[0]  # R with R^T R = Y Y^T
        n_networks, r = y_t.shape[0], y_t.shape[2]
        # T^T T = sum_f s_f^2 D_f D_f^T
        places, scales = list(ctx.places.items()), list(ctx.scales.values())
        if len(cotangents) == 1:
            t = _gram_factor(cotangents[0])  # (B, k, r)
            ctx.record.fill(*places[0], squared_norm(y_t, t))
            t = scales[0] * t
        else:
            for place, d in zip(places, cotangents, strict=True):
                ctx.record.fill(*place, squared_norm(y_t, d.mT))
            scaled = [s * d for s, d in zip(scales, cotangents, strict=True)]
            t = _gram_factor(torch.cat(scaled, dim=-1))
        t, k = t.mT, t.shape[1]  # (B, r, k)
        inside = y_t.new_zeros(n_networks, r, g[0].shape[1])  # sum_f s_f D_f G_f^T, (B, r, c)
        for s, d, g_f in zip(scales, cotangents, g, strict=True):
            inside = torch.baddbmm(inside, d[..., : g_f.shape[-1]], g_f.mT, alpha=s)

        def fresh(columns: int) -> Tensor:
            return t @ t.new_empty(n_networks, k, columns).normal_(generator=ctx.generator)

        if frame:
            # The first c columns are drawn in vain: cheaper than to put the two parts together.
            z = fresh(heads * used)
            z[..., : inside.shape[-1]] = inside.flip(-1)
            inside = _reflect(frame, z)
        if not known and not freedom:
            return inside, None, None, None, None, None, None
        parts = [inside.unflatten(-1, (heads, used))]
        if known:
            parts.append(fresh(known).unsqueeze(-2))
        if freedom:
            rest = bartlett(n_networks * heads, k, freedom, ctx.generator, t)
            # (B, h, k, k) -> (B, k, h * k)
            rest = rest.view(n_networks, heads, k, k).transpose(1, 2).flatten(-2)
            parts.append((t @ rest).unflatten(-1, (heads, k)))
        dx = torch.cat(parts, dim=-1)  # (B, r, h, used + known + k)
        dx = _widened(dx, ctx.columns // heads)
        return dx.flatten(-2), None, None, None, None, None, None


def _into_stream(family: str, n_heads: int) -> bool:
    return family in ("o", "ff2") or (family == "v" and n_heads == 1)


def _reflections(rows: Tensor) -> Frame:
    """QR of rows^T, (B, r, m) with r <= m: R above the diagonal of a (B, m, r), Q below and tau."""
    a = rows.mT  # LAPACK's order, overwritten
    tau = a.new_empty(a.shape[0], a.shape[2])
    torch.geqrf(a, out=(a, tau))
    return Frame(a, tau)


def _reflect(frame: Frame, z: Tensor) -> Tensor:
    """Z Q^T for all m columns of Q, (B, n, m) -> (B, n, m); overwrites z."""
    return torch.ormqr(frame.a, frame.tau, z.mT, out=z.mT).mT


def _gram_factor(d: Tensor) -> Tensor:
    """T (B, k, r) with T^T T = D D^T up to rounding errors of the norm of D D^T, d (B, r, m).

    What is drawn with this covariance needs no more than a Cholesky factor, which is faster than a
    QR for many columns. Gram matrices that are singular, overflow or underflow take the QR.
    """
    if d.shape[-1] > 8 * d.shape[-2]:
        gram = d @ d.mT  # (B, r, m) @ (B, m, r)
        factor, failed = torch.linalg.cholesky_ex(gram)
        info = torch.finfo(d.dtype)
        if not failed.any() and gram.diagonal(dim1=-2, dim2=-1).amin() > info.tiny / info.eps:
            return factor.mT
    return triangle(d.mT)


def _widened(x: Tensor, columns: int) -> Tensor:
    """Zeros to the right of x (..., m), up to `columns`."""
    return functional.pad(x, (0, columns - x.shape[-1])) if x.shape[-1] < columns else x
