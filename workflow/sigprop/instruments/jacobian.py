r"""Squared Frobenius norms of the Jacobians of softmax attention, without the Jacobians.

Attention S = A X W^V, A = softmax(c X W^Q (X W^K)^T), c = tau / sqrt(d_k), row by row
(Noci et al. 2022, arXiv 2206.03126, eq. (1)). Write Q = X W^Q, K = X W^K, T = X W^V and
D_i = diag(A_i) - A_i A_i^T, the Jacobian of the softmax of row i. The chain rule gives blocks
(the paper's Lemmas A.2 and A.3, row i)

    dS_i/dW^Q = c X_i (x) (T^T D_i K)            dS_i/dW^K = c (T^T D_i X) (x) Q_i
    dS_i/dW^V = (A X)_i (x) I                    (x) is the Kronecker product
    dS_i/dX_m = delta_im T^T D_i H + (T^T D_i e_m) R_i + A_im W^V^T
                with H = c K W^Q^T, R = c Q W^K^T, both (n, d)

The norm of a Kronecker product is the product of the norms, so what remains is the squared norm
of a weighted covariance, and that needs only Gram matrices (derived here):

    g_i(T, K) = ||T^T D_i K||^2
              = A_i (GT*GK) A_i^T - 2 sum_j A_ij (A GT)_ij (A GK)_ij + (A GT A^T)_ii (A GK A^T)_ii
      GT = T T^T, GK = K K^T, * elementwise
    ||dS/dW^Q||^2 = c^2 sum_i ||X_i||^2 g_i(T, K)
    ||dS/dW^K||^2 = c^2 sum_i ||Q_i||^2 g_i(T, X)
    ||dS/dW^V||^2 = d_v ||A X||^2

Because D_i 1 = 0, any constant may be subtracted from the rows of T, K, X inside g_i. They are
centred over tokens BEFORE they are multiplied: near rank collapse the common part of the tokens is
then gone before it can swamp their differences, and equal tokens give exactly 0 for Q and K.
A mask sets A_ij = 0; D_i 1 = 0 still holds, so every formula stands, and the centring runs over
the tokens that at least one row attends to. Where the Gram form still cancels (attention saturated
on one token, or groups of tokens that collapsed to different points under a block mask), this is
seen from the sizes of its terms and those networks are computed row by row, at n^2 d_v d_k.

Cost: O(n^3 + n^2 (d + d_k + d_v) + n d (d_k + d_v)) operations and O(n^2 + n d) memory per network,
against n d_v backward passes and n d_v d (2 d_k + d_v) stored numbers for automatic
differentiation.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.linalg import vecdot

Attention = Literal["softmax", "uniform"]
Scaled = dict[str, tuple[float | Tensor, Tensor]]  # name: (factor, sum), the norm is their product

COVERS = ("dot_product",)  # attention variants, see `models.attention`
_NAMES = ("q", "k", "v", "x")
# inference_mode below is no_grad with less bookkeeping: 10% of the time of a small network.
# The Gram form subtracts terms as large as ||t_bar_i||^2 ||k_bar_i||^2. Beyond this ratio of terms
# to result it has lost more than ~1e-11 of relative accuracy and the rows are computed one by one.
_MAX_CANCELLATION = 1e5
_ROWS_BLOCK = 2**22  # float64 numbers held at once while rows are computed one by one


def attention_jacobian_norms(
    x: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    *,
    tau: float | Tensor = 1.0,
    mask: Tensor | None = None,
    attention: Attention = "softmax",
    which: Iterable[str] = _NAMES,
) -> dict[str, Tensor]:
    """Exact ||dS/dW^Q||^2, ||dS/dW^K||^2, ||dS/dW^V||^2, ||dS/dX||^2 of single-head attention.

    S = softmax(tau / sqrt(d_k) X W^Q (X W^K)^T) X W^V. The formulas are in the module docstring
    (Noci et al. 2022, arXiv 2206.03126, Lemmas A.2 and A.3; the Gram form is derived here).

    Args:
        x: tokens, (..., n_tokens, d_model), any float dtype. Leading dimensions (networks,
            settings) broadcast against those of the weights, the mask and tau.
        w_q, w_k: query and key weights, (..., d_model, d_k).
        w_v: value weights, (..., d_model, d_v).
        tau: inverse temperature, a number or a tensor of shape (...).
        mask: boolean, True = may attend, broadcasts to (..., n_tokens, n_tokens) with the query
            row first. A padding mask over keys is (..., 1, n_tokens).
        attention: "softmax", or "uniform": A_ij = 1/n (with a mask: 1 over the number of tokens
            row i may attend to) in the values and in the softmax Jacobian.
        which: the norms wanted, from "q", "k", "v", "x". "x" costs about as much as the others
            together.

    Returns:
        {name: squared Frobenius norm}, in the order of `which`, each of the broadcast leading
        shape (...), float64 on the device of x (which must support float64). All arithmetic is
        float64 whatever the input. In float32 the Q and K norms would be right to 1e-7 while
        attention is spread out, but only to 7% once every row gives 0.9995 of its weight to one
        token (measured). No gradient is recorded.

    Raises:
        ValueError: shapes that do not match, an empty dimension, a dtype that is not floating, a
            mask that is not boolean or hides every token from a row, non-finite values, an
            unknown name in `which` or `attention`.
    """
    names = _check_options(which, attention, tau)
    _check_tensors(x=x, w_q=w_q, w_k=w_k, w_v=w_v)
    _check_mask(mask, x.shape[-2])
    d_model, d_k = x.shape[-1], w_q.shape[-1]
    _check_size("w_q", w_q, -2, d_model, "d_model of x")
    _check_size("w_k", w_k, -2, d_model, "d_model of x")
    _check_size("w_v", w_v, -2, d_model, "d_model of x")
    _check_size("w_k", w_k, -1, d_k, "d_k of w_q")
    batch = _batch_shape(tau, x=x, w_q=w_q, w_k=w_k, w_v=w_v, mask=mask)
    with torch.inference_mode():
        gain = float(w_v.shape[-1])
        norms = _from_weights(x, w_q, w_k, w_v, gain, tau, mask, attention, names)
    return _checked(norms, names, batch, tau, mask, x=x, w_q=w_q, w_k=w_k, w_v=w_v)


def multihead_jacobian_norms(
    x: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
    *,
    tau: float | Tensor = 1.0,
    mask: Tensor | None = None,
    attention: Attention = "softmax",
    which: Iterable[str] = _NAMES,
) -> dict[str, Tensor]:
    """Exact squared Jacobian norms of each projected head O_i = softmax(...) X W^V_i W^O_i.

    The layer's output is sum_i O_i, and W^Q_i, W^K_i, W^V_i enter O_i alone, so the squared norms
    of the layer with respect to its fused weights are the sums over heads. The input X enters
    every head: the "x" norms are those of the single heads and do not add up.

    A norm does not see a rotation of the output, so W^O_i is replaced by the (d_h, d_h) factor L
    of W^O_i = L (orthonormal rows), and head i is single-head attention with values X W^V_i L.

    Args:
        x: tokens, (..., n_tokens, d_model).
        w_q, w_k: (..., n_heads, d_model, d_k).
        w_v: (..., n_heads, d_model, d_v).
        w_o: output weights per head, (..., n_heads, d_v, d_out). A fused (n_heads * d_v, d_out)
            matrix is `w_o.unflatten(-2, (n_heads, d_v))`; a fused (d_model, n_heads * d_k) is
            `w_q.unflatten(-1, (n_heads, d_k)).movedim(-2, -3)`.
        tau, mask: shared by the heads; shapes as in `attention_jacobian_norms`.
        attention, which: as in `attention_jacobian_norms`.

    Returns:
        {name: squared Frobenius norm}, each of shape (..., n_heads), float64.

    Raises:
        ValueError: as `attention_jacobian_norms`.
    """
    names = _check_options(which, attention, tau)
    _check_tensors(x=x, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o)
    _check_mask(mask, x.shape[-2])
    d_model, d_k, d_v = x.shape[-1], w_q.shape[-1], w_v.shape[-1]
    if w_q.ndim < 3:
        raise ValueError(
            f"w_q has shape {tuple(w_q.shape)}; pass per-head weights (..., n_heads, d_model, d_k)"
        )
    n_heads = w_q.shape[-3]
    _check_size("w_q", w_q, -2, d_model, "d_model of x")
    for name, w in (("w_k", w_k), ("w_v", w_v), ("w_o", w_o)):
        if w.ndim < 3 or w.shape[-3] != n_heads:
            raise ValueError(
                f"{name} has shape {tuple(w.shape)} but w_q has n_heads = {n_heads}; "
                f"pass {name} with n_heads = {n_heads} in its third dimension from the end"
            )
    _check_size("w_k", w_k, -2, d_model, "d_model of x")
    _check_size("w_v", w_v, -2, d_model, "d_model of x")
    _check_size("w_k", w_k, -1, d_k, "d_k of w_q")
    _check_size("w_o", w_o, -2, d_v, "d_v of w_v")

    heads = x.unsqueeze(-3)  # (..., 1, n, d)
    tau_h = tau.unsqueeze(-1) if isinstance(tau, Tensor) else tau
    mask_h = mask if mask is None or mask.ndim < 3 else mask.unsqueeze(-3)
    batch = _batch_shape(tau_h, x=heads, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o, mask=mask_h)
    with torch.inference_mode():
        factor, gain = _output_factor(w_o)
        w_vl = _double(w_v) @ factor  # (..., h, d, d_v)
        norms = _from_weights(heads, w_q, w_k, w_vl, gain, tau_h, mask_h, attention, names)
    return _checked(norms, names, batch, tau, mask, x=x, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o)


def jacobian_norms_from_qkv(
    x: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    w_o: Tensor | None = None,
    tau: float | Tensor = 1.0,
    mask: Tensor | None = None,
    attention: Attention = "softmax",
    which: Iterable[str] = ("q", "k", "v"),
) -> dict[str, Tensor]:
    """The same norms with respect to the weights, from queries, keys and values already computed.

    For a model of your own: x is what its projections read, q, k, v are what they return. Biases
    are allowed (they only shift q, k, v). For many heads pass q, k, v as (..., n_heads, n, d_h),
    x as x.unsqueeze(-3), and per-head output weights in `w_o`. Near rank collapse k and v carry
    the rounding of the projection that made them: the Q and K norms keep a relative accuracy of
    about (rounding unit of k and v) * (size of a token) / (spread of the tokens).

    Args:
        x: input of the projections, (..., n_tokens, d_model).
        q, k: queries and keys, (..., n_tokens, d_k), before the scale tau / sqrt(d_k).
        v: values, (..., n_tokens, d_v).
        w_o: optional output weights (..., d_v, d_out): the norms are then those of S W^O.
        tau, mask, attention: as in `attention_jacobian_norms`.
        which: from "q", "k", "v" ("x" needs the weights: use `attention_jacobian_norms`).

    Returns:
        {name: squared Frobenius norm}, each of the broadcast leading shape (...), float64.

    Raises:
        ValueError: as `attention_jacobian_norms`.
    """
    names = _check_options(which, attention, tau)
    if "x" in names:
        raise ValueError(f"which is {names}; 'x' needs weights: use attention_jacobian_norms")
    named = {"x": x, "q": q, "k": k, "v": v} | ({} if w_o is None else {"w_o": w_o})
    _check_tensors(**named)
    _check_mask(mask, x.shape[-2])
    for name in ("q", "k", "v"):
        _check_size(name, named[name], -2, x.shape[-2], "n_tokens of x")
    _check_size("k", k, -1, q.shape[-1], "d_k of q")
    if w_o is not None:
        _check_size("w_o", w_o, -2, v.shape[-1], "d_v of v")
    batch = _batch_shape(tau, mask=mask, **named)
    with torch.inference_mode():
        gain: float | Tensor = float(v.shape[-1])
        x, q, k, v = _double(x), _double(q), _double(k), _double(v)
        k_c, t_c = _centre(k, mask), _centre(v, mask)
        if w_o is not None:
            factor, gain = _output_factor(w_o)
            t_c = t_c @ factor
        c = _scale(tau, q.shape[-1])
        a = _attention_weights(q, k_c, c, mask, attention)
        x_c = _centre(x, mask) if "k" in names else x
        norms = _weight_norms(a, x, x_c, q, k_c, t_c, gain, c, names)
    return _checked(norms, names, batch, tau, mask, **named)


def _from_weights(
    x: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    gain: float | Tensor,
    tau: float | Tensor,
    mask: Tensor | None,
    attention: Attention,
    names: Sequence[str],
) -> Scaled:
    x, w_q, w_k, w_v = _double(x), _double(w_q), _double(w_k), _double(w_v)
    c = _scale(tau, w_q.shape[-1])
    x_c = _centre(x, mask)
    q = x @ w_q  # (..., n, d_k)
    k_c = x_c @ w_k  # (..., n, d_k)
    t_c = x_c @ w_v  # (..., n, d_v)
    a = _attention_weights(q, k_c, c, mask, attention)  # (..., n, n)
    if "x" not in names:
        return _weight_norms(a, x, x_c, q, k_c, t_c, gain, c, names)
    h = c * (k_c @ w_q.mT)  # (..., n, d)
    r = c * (q @ w_k.mT)  # (..., n, d)
    return _weight_norms(a, x, x_c, q, k_c, t_c, gain, c, names, (h, r, w_v))


def _weight_norms(
    a: Tensor,
    x: Tensor,
    x_c: Tensor,
    q: Tensor,
    k_c: Tensor,
    t_c: Tensor,
    gain: float | Tensor,
    c: float | Tensor,
    names: Sequence[str],
    for_input: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Scaled:
    """The norms in `names`. *_c are centred; gain is d_v, or ||W^O||^2 with an output weight."""
    norms: Scaled = {}
    inner = {"q": k_c, "k": x_c} if for_input is None else {"q": k_c, "k": x_c, "x": for_input[0]}
    inner = {name: z for name, z in inner.items() if name in names}
    outer = {name: z for name, z in (("q", x), ("k", q)) if name in names}
    if inner:
        gram_t, u, g, removed = _covariance_norms(a, t_c, list(inner.values()))  # (..., n, f)
        if for_input is not None:
            sq, cut = g[..., -1], removed[..., -1]
            norms["x"] = 1.0, _input_norm(a, t_c, gram_t, u, sq, cut, *for_input)
            g, removed = g[..., :-1], removed[..., :-1]
    if outer:
        c_sq = c * c if isinstance(c, float) else (c * c)[..., 0, 0]
        doubtful = _cancelled(g, removed)  # in some row: does it matter to the sum?
        for f, (name, z) in enumerate(outer.items()):
            weight = vecdot(z, z)  # (..., n)
            total = vecdot(weight, g[..., f])
            if doubtful:
                lost = vecdot(weight, removed[..., f]) > _MAX_CANCELLATION * total
                if lost.any():
                    g_f = _row_by_row(lost, a, t_c, inner[name], _square_of_covariance)
                    total = torch.where(lost, vecdot(weight, g_f), total)
            # rounding can leave a negative of order 1e-16 of the terms
            norms[name] = c_sq, total.relu_()
    if "v" in names:
        norms["v"] = gain, (a @ x).square().sum((-2, -1))
    return norms


def _covariance_norms(
    a: Tensor, t: Tensor, others: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """T T^T and A T T^T, both (..., n, n); then, for each of the f tensors K in `others`,
    g_i(T, K) and the largest term subtracted in it, both (..., n, f).
    """
    n, f = a.shape[-1], len(others)
    gram = _stack([z @ z.mT for z in (t, *others)], -2)  # (..., n, 1 + f, n)
    if any(n <= 2 * z.shape[-1] for z in (t, *others)):
        mean = a @ gram.flatten(-2)  # (..., n, (1 + f) n): A T T^T, A K K^T
        mean = mean.view(*mean.shape[:-1], 1 + f, n)
    else:  # the same in fewer operations
        mean = _stack([(a @ z) @ z.mT for z in (t, *others)], -2)
    u, w = mean[..., :1, :], mean[..., 1:, :]  # u_ij = t_bar_i . T_j, w_ij = k_bar_i . K_j
    product = gram[..., :1, :] * gram[..., 1:, :]  # (..., n, f, n), GT*GK
    p = a @ product.flatten(-2)
    p = p.view(*p.shape[:-1], f, n)
    a = a.unsqueeze(-2)  # (..., n, 1, n)
    sq = vecdot(a, mean)  # (..., n, 1 + f): ||t_bar_i||^2, ||k_bar_i||^2
    removed = sq[..., :1] * sq[..., 1:]
    g = vecdot(a, torch.addcmul(p, u, w, value=-2.0)) + removed
    return gram[..., 0, :], mean[..., 0, :], g, removed


def _cancelled(value: Tensor, removed: Tensor) -> bool:
    """Whether a removed term exceeds its result by too much, or either is not a number."""
    return not torch.sub(removed, value, alpha=_MAX_CANCELLATION).max().item() <= 0.0


def _square_of_covariance(index: tuple[Tensor, ...], cov: Tensor, spread: Tensor) -> Tensor:
    return cov.square().sum((-2, -1))


def _input_norm(
    a: Tensor,
    t: Tensor,
    gram_t: Tensor,
    u: Tensor,
    c_sq: Tensor,
    removed: Tensor,
    h: Tensor,
    r: Tensor,
    w_v: Tensor,
) -> Tensor:
    """||dS/dX||^2, shape (...). Block (i, m) is

        delta_im C_i + A_im [ (T_m - t_bar_i) R_i + W^V^T ],      C_i = T^T D_i H,  t_bar_i = A_i T

    so row i adds  ||C_i||^2 + sum_m A_im^2 ||(T_m - t_bar_i) R_i + W^V^T||^2
                   + 2 A_ii < C_i, (T_i - t_bar_i) R_i + W^V^T >.
    c_sq (..., n) is ||C_i||^2 and `removed` the largest term subtracted in it.
    """
    t_bar = a @ t  # (..., n, d_v)
    t_bar_sq = vecdot(t_bar, t_bar)  # (..., n)
    r_sq = vecdot(r, r)  # (..., n)
    r_v = r @ w_v  # (..., n, d_v)
    h_v = h @ w_v  # (..., n, d_v)
    a_sq = a.square()
    a_ii = a.diagonal(dim1=-2, dim2=-1)  # (..., n)
    # ||T_m - t_bar_i||^2 and (T_m - t_bar_i) . (R_i W^V), both (..., n, n) over (i, m)
    t_sq = gram_t.diagonal(dim1=-2, dim2=-1)
    spread_sq = torch.add(t_sq.unsqueeze(-2), u, alpha=-2.0) + t_bar_sq.unsqueeze(-1)
    along_v = r_v @ t.mT - vecdot(r_v, t_bar).unsqueeze(-1)
    own = vecdot(a_sq, torch.addcmul(2.0 * along_v, r_sq.unsqueeze(-1), spread_sq))
    # <C_i, (T_i - t_bar_i) R_i + W^V^T>
    #     = sum_j A_ij (T_j - t_bar_i) . [(T_i - t_bar_i) R_i . H_j + H_j W^V]
    t_ij = gram_t - u + (t_bar_sq - u.diagonal(dim1=-2, dim2=-1)).unsqueeze(-1)
    cross = vecdot(a, t_ij * (r @ h.mT) + vecdot(h_v, t).unsqueeze(-2) - t_bar @ h_v.mT)
    direct = a_sq.sum((-2, -1)) * w_v.square().sum((-2, -1))  # sum_im A_im^2 ||W^V||^2
    rest = (c_sq + own + 2.0 * a_ii * cross).sum(-1)
    removed = (removed + r_sq * t_bar_sq).sum(-1)

    def row_norm(index: tuple[Tensor, ...], cov: Tensor, spread: Tensor) -> Tensor:
        batch = rest.shape
        a_i, r_i = (z.expand(*batch, *z.shape[-2:])[index] for z in (a, r))  # (m, n), (m, d)
        w_i = w_v.expand(*batch, *w_v.shape[-2:])[index[:-1]]  # (m, d, d_v), or (d, d_v)
        s_v = (spread @ (r_i.unsqueeze(-2) @ w_i).mT).squeeze(-1)  # (m, n)
        s_r = vecdot(spread, spread) * vecdot(r_i, r_i).unsqueeze(-1)  # (m, n)
        own_i = vecdot(a_i.square(), s_r + 2.0 * s_v)
        i = index[-1].unsqueeze(-1)  # (m, 1)
        s_i = spread.take_along_dim(i.unsqueeze(-1), -2)  # (m, 1, d_v)
        cross_i = (s_i @ cov @ r_i.unsqueeze(-1)).flatten() + (cov * w_i.mT).sum((-2, -1))
        return cov.square().sum((-2, -1)) + own_i + 2.0 * a_i.take_along_dim(i, -1)[:, 0] * cross_i

    if _cancelled(rest + direct, removed):
        lost = removed > _MAX_CANCELLATION * (rest + direct)
        rest = torch.where(lost, _row_by_row(lost, a, t, h, row_norm).sum(-1), rest)
    return (rest + direct).clamp_(min=0.0)


def _row_by_row(
    lost: Tensor,
    a: Tensor,
    t: Tensor,
    k: Tensor,
    row_norm: Callable[[tuple[Tensor, ...], Tensor, Tensor], Tensor],
) -> Tensor:
    """row_norm of every row of the networks in `lost`, shape (..., n); 0 in the other networks.

    Used where the Gram form cancels: attention saturated on one token, on copies of one token, or
    (block masks) on groups of tokens that collapsed to different points. Row i is centred on the
    token it attends to most, and then its covariance

        cov_i = sum_j A_ij (T_j - T_top)(K_j - K_top)^T - (t_bar_i - T_top)(k_bar_i - K_top)^T

    has no large terms left. Rows with one non-zero weight have D_i = 0 and are left at 0.
    """
    n = a.shape[-1]
    a, t, k = (z.expand(*lost.shape, *z.shape[-2:]) for z in (a, t, k))
    rows = lost.unsqueeze(-1) & ((a > 0.0).sum(-1) > 1)  # (..., n)
    g = a.new_zeros(rows.shape)
    numbers = n * (t.shape[-1] + k.shape[-1]) + t.shape[-1] * k.shape[-1]
    for index in _blocks(rows.nonzero(as_tuple=True), max(1, _ROWS_BLOCK // numbers)):
        a_i = a[index].unsqueeze(-2)  # (m, 1, n)
        top = (*index[:-1], a[index].argmax(-1))
        t_i = t[index[:-1]] - t[top].unsqueeze(-2)  # (m, n, d_v)
        k_i = k[index[:-1]] - k[top].unsqueeze(-2)  # (m, n, d_k)
        t_bar = a_i @ t_i  # (m, 1, d_v)
        cov = t_i.mT @ (a_i.mT * k_i) - t_bar.mT @ (a_i @ k_i)  # (m, d_v, d_k)
        g[index] = row_norm(index, cov, t_i - t_bar)
    return g


def _blocks(index: tuple[Tensor, ...], size: int) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(i.split(size) for i in index), strict=True)


def _attention_weights(
    q: Tensor, k: Tensor, c: float | Tensor, mask: Tensor | None, attention: Attention
) -> Tensor:
    """A, (..., n, n). A constant shift of the keys does not change it, so centred keys serve."""
    if attention == "uniform":
        allowed = q.new_ones(q.shape[-2], q.shape[-2]) if mask is None else mask.to(q.dtype)
        allowed = allowed.expand(*allowed.shape[:-2], q.shape[-2], q.shape[-2])
        return allowed / allowed.sum(-1, keepdim=True)
    logits = c * (q @ k.mT)  # (..., n, n)
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf)
    return torch.softmax(logits, -1)


def _centre(x: Tensor, mask: Tensor | None) -> Tensor:
    """Rows of x (..., n, p) minus their mean over the tokens some row attends to; 0 elsewhere.

    One token is subtracted before the mean, so that equal tokens give exactly 0.
    """
    if mask is None:
        y = x - x[..., :1, :]
        return torch.sub(y, y.sum(-2, keepdim=True), alpha=1.0 / y.shape[-2])
    x, attended = torch.broadcast_tensors(x, mask.any(-2).unsqueeze(-1))  # (..., n, p)
    first = attended.to(torch.uint8).argmax(-2, keepdim=True)  # (..., 1, p)
    y = torch.where(attended, x - x.gather(-2, first), 0.0)
    mean = y.sum(-2, keepdim=True) / attended.sum(-2, keepdim=True)
    return torch.where(attended, y - mean, 0.0)


def _stack(tensors: Sequence[Tensor], dim: int) -> Tensor:
    if len(tensors) == 1:
        return tensors[0].unsqueeze(dim)
    if any(t.shape != tensors[0].shape for t in tensors):
        tensors = torch.broadcast_tensors(*tensors)
    return torch.stack(tuple(tensors), dim)


def _double(t: Tensor) -> Tensor:
    return t if t.dtype == torch.float64 else t.to(torch.float64)


def _scale(tau: float | Tensor, d_k: int) -> float | Tensor:
    """c = tau / sqrt(d_k); a tensor tau (...) becomes (..., 1, 1)."""
    if isinstance(tau, Tensor):
        return _double(tau)[..., None, None] / math.sqrt(d_k)
    return tau / math.sqrt(d_k)


def _output_factor(w_o: Tensor) -> tuple[Tensor, Tensor]:
    """L with W^O = L (orthonormal rows), (..., d_v, min(d_v, d_out)), and ||W^O||^2."""
    w_o = _double(w_o)
    return torch.linalg.qr(w_o.mT, mode="r").R.mT, w_o.square().sum((-2, -1))


def _check_options(which: Iterable[str], attention: str, tau: float | Tensor) -> tuple[str, ...]:
    names = tuple(which)
    if not names or not set(names) <= set(_NAMES):
        raise ValueError(f"which is {names}; pass one or more of 'q', 'k', 'v', 'x'")
    if attention not in ("softmax", "uniform"):
        raise ValueError(f"attention is {attention!r}; pass 'softmax' or 'uniform'")
    if not isinstance(tau, Tensor) and not math.isfinite(tau):
        raise ValueError(f"tau is {tau}; pass a finite inverse temperature")
    return names


def _check_tensors(**tensors: Tensor) -> None:
    for name, t in tensors.items():
        if not isinstance(t, Tensor):
            raise ValueError(f"{name} is a {type(t).__name__}; pass a floating-point torch tensor")
        if not t.is_floating_point():
            raise ValueError(
                f"{name} has dtype {t.dtype}; pass a floating-point tensor, e.g. {name}.double()"
            )
        if t.ndim < 2:
            raise ValueError(
                f"{name} has shape {tuple(t.shape)}; pass at least two dimensions (..., rows, cols)"
            )
        if t.numel() == 0:
            raise ValueError(f"{name} has shape {tuple(t.shape)}; pass no dimension of size 0")


def _check_mask(mask: Tensor | None, n_tokens: int) -> None:
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        found = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"mask has type {found}; pass a boolean tensor, True = may attend")
    if mask.ndim < 2 or mask.shape[-1] != n_tokens or mask.shape[-2] not in (1, n_tokens):
        raise ValueError(
            f"mask has shape {tuple(mask.shape)} but x has n_tokens = {n_tokens}; "
            f"pass (..., {n_tokens}, {n_tokens}), or (..., 1, {n_tokens}) for padding"
        )


def _check_size(name: str, t: Tensor, dim: int, size: int, of: str) -> None:
    if t.shape[dim] != size:
        raise ValueError(
            f"{name} has shape {tuple(t.shape)} but {of} is {size}; "
            f"make dimension {dim} of {name} equal to {size}"
        )


def _batch_shape(tau: float | Tensor, **tensors: Tensor | None) -> tuple[int, ...]:
    leading = {name: t.shape[:-2] for name, t in tensors.items() if t is not None}
    if isinstance(tau, Tensor):
        leading["tau"] = tau.shape
    if not any(leading.values()):
        return ()
    try:
        return tuple(torch.broadcast_shapes(*leading.values()))
    except RuntimeError:
        shown = ", ".join(f"{name} {tuple(shape)}" for name, shape in leading.items())
        raise ValueError(f"leading dimensions do not broadcast: {shown}; match them") from None


def _checked(
    scaled: Scaled,
    names: tuple[str, ...],
    batch: tuple[int, ...],
    tau: float | Tensor,
    mask: Tensor | None,
    **inputs: Tensor,
) -> dict[str, Tensor]:
    """The norms in the order asked for and in full batch shape, or why they are not finite.

    A NaN, an infinity or a hidden row always reaches a norm it can affect, so the inputs are
    searched only when a norm is not finite: the check costs nothing on good input.
    """
    # multiplied outside inference mode, so the results are ordinary tensors
    norms = {name: scaled[name][0] * scaled[name][1] for name in names}
    if not all(math.isfinite(z.sum() if z.ndim else z) for z in norms.values()):
        if isinstance(tau, Tensor):
            inputs["tau"] = tau
        for name, t in inputs.items():
            bad = int((~torch.isfinite(t)).sum())
            if bad:
                raise ValueError(
                    f"{name} has {bad} NaN or infinite value(s) out of {t.numel()}; remove them"
                )
        if mask is not None and not mask.any(-1).all():
            row = (~mask.any(-1)).nonzero()[0].tolist()
            raise ValueError(
                f"mask hides every token from row {row}; let each row attend to at least one token"
            )
        largest = max(inputs, key=lambda name: float(inputs[name].abs().max()))
        raise ValueError(
            f"{largest} has values up to {float(inputs[largest].abs().max()):.3g} and the norms "
            f"overflow float64; rescale {largest}"
        )
    return {name: z if z.shape == batch else z.expand(batch).clone() for name, z in norms.items()}
