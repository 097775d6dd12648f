"""Exact Jacobian norms against torch.func.jacrev and against 60-digit arithmetic."""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from torch import Tensor
from torch.func import functional_call, jacrev
from torch.utils._python_dispatch import TorchDispatchMode

from sigprop.instruments import jacobian
from sigprop.instruments.jacobian import (
    attention_jacobian_norms,
    jacobian_norms_from_qkv,
    multihead_jacobian_norms,
)

PAGE = Path(__file__).parents[2] / "docs" / "jacobian-norms.md"


def normal(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def draw(seed: int, n: int, d: int, d_k: int, d_v: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scale = 1 / math.sqrt(d)
    w_q, w_k = (scale * normal(seed + s, d, d_k) for s in (1000, 2000))
    return normal(seed, n, d), w_q, w_k, scale * normal(seed + 3000, d, d_v)


def make_mask(kind: str, n: int, seed: int = 0) -> Tensor | None:
    if kind == "causal":
        return torch.ones(n, n, dtype=torch.bool).tril()
    if kind == "padding":
        return (torch.arange(n) < max(1, n - 2)).unsqueeze(0)
    if kind == "random":  # every row keeps at least one token
        keep = torch.rand(n, n, generator=torch.Generator().manual_seed(seed)) < 0.5
        return keep | torch.eye(n, dtype=torch.bool).roll(1, 0)
    return None


def attention(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, tau: float = 1.0, mask: Tensor | None = None
) -> Tensor:
    logits = tau / math.sqrt(w_q.shape[-1]) * (x @ w_q) @ (x @ w_k).mT
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf)
    return torch.softmax(logits, -1) @ (x @ w_v)


def by_jacrev(f: Callable[..., Tensor], *tensors: Tensor) -> dict[str, float]:
    """f(x, w_q, w_k, w_v)."""
    jacobians = jacrev(f, argnums=(1, 2, 3, 0))(*tensors)
    return {k: float(j.square().sum()) for k, j in zip("qkvx", jacobians, strict=True)}


def assert_close(
    value: dict[str, Tensor], expected: dict[str, float], rel: float, names: str = "qkvx"
) -> None:
    for name in names:
        floor = 1e-20 * expected.get("v", 1.0)  # an exact 0 against rounding
        assert float(value[name]) == pytest.approx(expected[name], rel=rel, abs=floor), name


# The reference for inputs where jacrev is not accurate enough: the chain rule entry by entry,
# dS_iv = sum_j (sum_l D_i,jl dM_il) T_jv + A_i . dT, in 60 digits.
def in_sixty_digits(
    x_: Tensor, w_q_: Tensor, w_k_: Tensor, w_v_: Tensor, tau: float, mask: Tensor | None = None
) -> dict[str, float]:
    mp.dps = 60
    x, w_q, w_k, w_v = ([[mpf(z) for z in r] for r in t.tolist()] for t in (x_, w_q_, w_k_, w_v_))
    (n, d), d_k, d_v = x_.shape, w_q_.shape[1], w_v_.shape[1]

    def product(a: list[list[mpf]], b: list[list[mpf]]) -> list[list[mpf]]:
        columns = list(zip(*b, strict=True))
        return [[mp.fsum(p * q for p, q in zip(r, s, strict=True)) for s in columns] for r in a]

    q, k, t = product(x, w_q), product(x, w_k), product(x, w_v)
    c = mpf(tau) / mp.sqrt(d_k)
    keep = [[True] * n] * n if mask is None else mask.expand(n, n).tolist()
    total = dict.fromkeys("qkvx", mpf(0))
    for i in range(n):
        logit = [c * mp.fsum(a * b for a, b in zip(q[i], k[j], strict=True)) for j in range(n)]
        e = [mp.exp(z) if keep[i][j] else mpf(0) for j, z in enumerate(logit)]
        a = [z / mp.fsum(e) for z in e]
        for v in range(d_v):
            t_bar = mp.fsum(a[j] * t[j][v] for j in range(n))
            dt = [a[j] * (t[j][v] - t_bar) for j in range(n)]  # sum_l D_i,lj T_lv, per dM_ij
            for m in range(d):
                for b in range(d_k):
                    dq = mp.fsum(dt[j] * c * x[i][m] * k[j][b] for j in range(n))
                    dk = mp.fsum(dt[j] * c * x[j][m] * q[i][b] for j in range(n))
                    total["q"] += dq**2
                    total["k"] += dk**2
                total["v"] += mp.fsum(a[j] * x[j][m] for j in range(n)) ** 2
                for token in range(n):  # dM_ij/dX_token,m = own (i == token) + other (j == token)
                    other = mp.fsum(q[i][b] * w_k[m][b] for b in range(d_k))
                    dx = c * dt[token] * other + a[token] * w_v[m][v]
                    if token == i:
                        own = [mp.fsum(w_q[m][b] * k[j][b] for b in range(d_k)) for j in range(n)]
                        dx += c * mp.fsum(dt[j] * own[j] for j in range(n))
                    total["x"] += dx**2
    return {name: float(z) for name, z in total.items()}


def test_golden_case() -> None:
    def r(a: int, b: int, s: int) -> Tensor:
        return (((torch.arange(a * b) * s) % 7 - 3).double() / 4).reshape(a, b)

    norms = attention_jacobian_norms(r(3, 4, 5), r(4, 2, 3), r(4, 2, 2), r(4, 3, 4), tau=1.5)
    expected = {"q": 1.65060515059, "k": 1.33224784559, "v": 2.63006035053, "x": 6.6475121119}
    assert_close(norms, expected, rel=1e-11)
    assert list(norms) == ["q", "k", "v", "x"]
    assert all(z.shape == () and z.dtype == torch.float64 for z in norms.values())


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(2, 11), min_size=4, max_size=4, unique=True),
    tau=st.sampled_from([0.5, 1.0, 2.5, 8.5]),
    kind=st.sampled_from(["none", "causal", "padding", "random"]),
    seed=st.integers(0, 999),
)
def test_equals_jacrev(sizes: list[int], tau: float, kind: str, seed: int) -> None:
    tensors = draw(seed, *sizes)
    mask = make_mask(kind, sizes[0], seed)
    norms = attention_jacobian_norms(*tensors, tau=tau, mask=mask)
    expected = by_jacrev(lambda *z: attention(*z, tau, mask), *tensors)
    assert_close(norms, expected, rel=1e-9)


@pytest.mark.parametrize("kind", ["none", "causal", "padding", "random"])
def test_uniform_attention_equals_jacrev_at_uniform_weights(kind: str) -> None:
    """A softmax at logits of value 0 whose derivatives are those of the true logits."""
    n, d, d_k, d_v = 6, 7, 3, 4
    tensors = draw(1, n, d, d_k, d_v)
    mask = make_mask(kind, n)
    allowed = torch.ones(n, n).bool() if mask is None else mask.expand(n, n)

    def expanded(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
        logits = 1.7 / math.sqrt(d_k) * (x @ w_q) @ (x @ w_k).mT
        logits = logits - logits.detach()  # value 0, derivative kept
        return torch.softmax(logits.masked_fill(~allowed, -math.inf), -1) @ (x @ w_v)

    norms = attention_jacobian_norms(*tensors, tau=1.7, mask=mask, attention="uniform")
    assert_close(norms, by_jacrev(expanded, *tensors), rel=1e-12)


def test_uniform_attention_closed_forms() -> None:
    """Noci et al. 2022, proof of Lemma 3.1: dS/dW^Q = (c/n) X (x) (W^V^T G W^K), G = X^T P X."""
    n, d, d_k, d_v, tau = 7, 5, 4, 3, 2.0
    x, w_q, w_k, w_v = draw(2, n, d, d_k, d_v)
    norms = attention_jacobian_norms(x, w_q, w_k, w_v, tau=tau, attention="uniform")
    centred = x - x.mean(0)
    g = centred.mT @ centred
    q = tau**2 / d_k / n**2 * x.square().sum() * (w_v.mT @ g @ w_k).square().sum()
    assert float(norms["q"]) == pytest.approx(float(q), rel=1e-12)
    assert float(norms["v"]) == pytest.approx(d_v * n * float(x.mean(0).square().sum()), rel=1e-12)


@pytest.mark.parametrize("tau", [1.0, 8.5])
def test_equal_tokens_give_no_query_or_key_gradient(tau: float) -> None:
    n, d, d_k, d_v, draws = 7, 12, 5, 4, 50
    token = 3.0 * normal(3, draws, 1, d)
    w_q, w_k, w_v = (normal(s, draws, d, e) for s, e in ((4, d_k), (5, d_k), (6, d_v)))
    x = token.expand(draws, n, d)
    norms = attention_jacobian_norms(x, w_q, w_k, w_v, tau=tau)
    assert torch.all(norms["q"] == 0.0)
    assert torch.all(norms["k"] == 0.0)
    torch.testing.assert_close(
        norms["v"], d_v * n * token.square().sum((-2, -1)), rtol=1e-12, atol=0.0
    )
    # A is 1/n and its derivative does not reach S: n^2 blocks W^V / n
    torch.testing.assert_close(norms["x"], w_v.square().sum((-2, -1)), rtol=1e-12, atol=0.0)
    # given the projections of the tokens instead, rounding may leave less than 1e-20 of V
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    given = jacobian_norms_from_qkv(x, q, k, v, tau=tau)
    assert torch.all(given["q"] <= 1e-20 * given["v"])
    assert torch.all(given["k"] <= 1e-20 * given["v"])


def test_rank_one_with_unequal_tokens_keeps_its_gradient() -> None:
    _, w_q, w_k, w_v = draw(7, 5, 6, 3, 4)
    x = normal(8, 5, 1) * normal(9, 1, 6)
    norms = attention_jacobian_norms(x, w_q, w_k, w_v)
    assert_close(norms, by_jacrev(attention, x, w_q, w_k, w_v), rel=1e-9)
    assert float(norms["q"]) > 1e-3 * float(norms["v"])


@pytest.mark.parametrize("kind", ["none", "causal", "padding"])
def test_accuracy_near_rank_collapse(kind: str) -> None:
    """Token spread 1e-6, where jacrev is off by 1e-6 or more."""
    n, d, d_k, d_v, tau = 4, 3, 2, 3, 1.5
    x, w_q, w_k, w_v = draw(10, n, d, d_k, d_v)
    x = normal(11, 1, d) + 1e-6 * x
    mask = make_mask(kind, n)
    expected = in_sixty_digits(x, w_q, w_k, w_v, tau, mask)
    norms = attention_jacobian_norms(x, w_q, w_k, w_v, tau=tau, mask=mask)
    assert_close(norms, expected, rel=1e-13)
    q, k, v = x @ w_q, x @ w_k, x @ w_v  # these carry a rounding of 1e-16 / 1e-6
    assert_close(
        jacobian_norms_from_qkv(x, q, k, v, tau=tau, mask=mask), expected, rel=1e-8, names="qkv"
    )


Case = tuple[tuple[Tensor, ...], Tensor | None]


def own_token(strength: float) -> tuple[Tensor, ...]:
    """Four tokens whose queries and keys sit on a circle: each attends to itself most."""
    x, *_, w_v = draw(12, 4, 3, 2, 3)
    angle = torch.tensor([0.0, 1.5, 3.2, 4.6], dtype=torch.float64)
    x[:, 0], x[:, 1] = angle.cos(), angle.sin()
    w = strength * torch.eye(3, dtype=torch.float64)[:, :2]
    return x, w, w, w_v


def saturated() -> Case:
    """At tau = 0.7, 1, 2 every row keeps about 1e-6, 1e-8, 1e-17 for the other tokens."""
    return own_token(5.5), None


def copies() -> Case:
    """Attention saturated on two copies of one token."""
    x, *weights = own_token(4.5)
    return (torch.cat([x, x]), *weights), None


def near_copies() -> Case:
    """Large weights, and pairs of tokens so close that a row still attends to both of its pair."""
    x, *weights = own_token(300.0)
    return (torch.cat([x, x + 1e-6 * normal(13, 4, 3)]), *weights), None


def packed() -> Case:
    """Two sequences in one, each collapsed to its own point, under a block-diagonal mask."""
    x, w_q, w_k, w_v = draw(13, 5, 3, 2, 3)
    group = torch.tensor([0, 0, 0, 1, 1])
    return (normal(14, 2, 3)[group] + 1e-5 * x, w_q, w_k, w_v), group[:, None] == group


def far_padding() -> Case:
    """Padding tokens far away from collapsed tokens; nobody attends to them."""
    x, w_q, w_k, w_v = draw(16, 5, 3, 2, 3)
    x = normal(17, 1, 3) + 1e-6 * x
    x[3:] = 40.0
    return (x, w_q, w_k, w_v), make_mask("padding", 5)


@pytest.mark.parametrize("case", [saturated, copies, near_copies, packed, far_padding])
@pytest.mark.parametrize("tau", [0.7, 1.0, 2.0])
def test_accuracy_where_the_gram_form_cancels(case: Callable[[], Case], tau: float) -> None:
    (x, w_q, w_k, w_v), mask = case()
    expected = in_sixty_digits(x, w_q, w_k, w_v, tau, mask)
    norms = attention_jacobian_norms(x, w_q, w_k, w_v, tau=tau, mask=mask)
    assert_close(norms, expected, rel=1e-9)
    # many networks, of which some cancel
    others = draw(18, *x.shape, 2, 3)
    stacked = [torch.stack([a, b]) for a, b in zip((x, w_q, w_k, w_v), others, strict=True)]
    both = attention_jacobian_norms(*stacked, tau=tau, mask=mask)
    assert_close({name: z[0] for name, z in both.items()}, expected, rel=1e-9)
    other = by_jacrev(lambda *z: attention(*z, tau, mask), *others)
    assert_close({name: z[1] for name, z in both.items()}, other, rel=1e-9)


def test_row_by_row_equals_gram_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two ways to the same covariances, in blocks of one row and of many."""
    tensors = [
        normal(19 + s, 3, *shape) for s, shape in enumerate([(6, 5), (5, 4), (5, 4), (5, 2)])
    ]
    mask = make_mask("causal", 6)
    gram = attention_jacobian_norms(*tensors, mask=mask)
    monkeypatch.setattr(jacobian, "_MAX_CANCELLATION", 0.0)
    for block in (1, 100, 10**6):
        monkeypatch.setattr(jacobian, "_ROWS_BLOCK", block)
        rows = attention_jacobian_norms(*tensors, mask=mask)
        for name in "qkvx":
            torch.testing.assert_close(rows[name], gram[name], rtol=1e-11, atol=0.0)


def test_attention_on_one_token_only() -> None:
    """Exactly one-hot rows: D = 0, S is a selection of value rows."""
    x, w_q, w_k, w_v = draw(20, 5, 4, 3, 2)
    alone = torch.eye(5, dtype=torch.bool).roll(2, 0)
    for norms in (
        attention_jacobian_norms(x, w_q, w_k, w_v, mask=alone),
        attention_jacobian_norms(x, 1e4 * w_q, 1e4 * w_k, w_v),
    ):
        assert float(norms["q"]) == 0.0
        assert float(norms["k"]) == 0.0
        assert float(norms["x"]) == pytest.approx(5 * float(w_v.square().sum()), rel=1e-12)
    single = attention_jacobian_norms(x[:1], w_q, w_k, w_v)
    assert float(single["q"]) == float(single["k"]) == 0.0
    assert float(single["v"]) == pytest.approx(2 * float(x[0].square().sum()), rel=1e-12)


HEADS = {"h": 3, "n": 5, "d": 6, "d_k": 2, "d_v": 4, "d_out": 7}


def draw_heads() -> tuple[Tensor, ...]:
    h, n, d, d_k, d_v, d_out = HEADS.values()
    shapes = [(n, d), (h, d, d_k), (h, d, d_k), (h, d, d_v), (h, d_v, d_out)]
    return tuple(normal(30 + s, *shape) / 2 for s, shape in enumerate(shapes))


@pytest.mark.parametrize("kind", ["none", "causal", "padding", "random"])
@pytest.mark.parametrize("d_out", [2, 7])
def test_each_head_equals_jacrev(kind: str, d_out: int) -> None:
    x, w_q, w_k, w_v, w_o = draw_heads()
    w_o = w_o[..., :d_out]
    mask = make_mask(kind, HEADS["n"])
    norms = multihead_jacobian_norms(x, w_q, w_k, w_v, w_o, tau=2.5, mask=mask)
    assert all(z.shape == (HEADS["h"],) for z in norms.values())
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    given = jacobian_norms_from_qkv(
        x.unsqueeze(-3), q, k, v, w_o=w_o, tau=2.5, mask=mask, which="qkv"
    )
    for i in range(HEADS["h"]):

        def head(x: Tensor, a: Tensor, b: Tensor, v: Tensor, i: int = i) -> Tensor:
            return attention(x, a, b, v, 2.5, mask) @ w_o[i]

        expected = by_jacrev(head, x, w_q[i], w_k[i], w_v[i])
        assert_close({name: z[i] for name, z in norms.items()}, expected, rel=1e-9)
        assert_close({name: z[i] for name, z in given.items()}, expected, rel=1e-9, names="qkv")


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_heads_of_a_real_module_add_up_to_its_fused_weights() -> None:
    """torch.nn.MultiheadAttention with biases: q, k, v as the module computes them."""
    n, d, h = 5, 6, 2
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(d, h, batch_first=True).double()
    torch.nn.init.normal_(layer.in_proj_bias)
    x = normal(40, n, d)

    def forward(in_proj_weight: Tensor) -> Tensor:
        weights = {"in_proj_weight": in_proj_weight}
        output, _ = functional_call(layer, weights, (x, x, x), {"need_weights": False})
        return output

    fused = jacrev(forward)(layer.in_proj_weight)  # (n, d, 3 d, d)
    expected = [float(z.square().sum()) for z in fused.detach().chunk(3, 2)]
    projected = torch.nn.functional.linear(x, layer.in_proj_weight, layer.in_proj_bias)
    q, k, v = (z.unflatten(-1, (h, d // h)).movedim(-2, -3) for z in projected.chunk(3, -1))
    w_o = layer.out_proj.weight.mT.unflatten(-2, (h, d // h))
    norms = jacobian_norms_from_qkv(x.unsqueeze(-3), q, k, v, w_o=w_o)
    assert [float(norms[name].sum()) for name in "qkv"] == pytest.approx(expected, rel=1e-10)
    assert not norms["q"].requires_grad


def test_batch_equals_loop() -> None:
    """Leading dimensions broadcast: 2 inputs with their masks, 3 networks with their tau."""
    n, d, d_k, d_v = 5, 4, 3, 6
    x = normal(50, 2, 1, n, d)
    w_q, w_k, w_v = normal(51, 3, d, d_k), normal(52, d, d_k), normal(53, 3, d, d_v)
    tau = torch.tensor([0.5, 1.0, 3.0])
    mask = torch.stack([make_mask(kind, n) for kind in ("causal", "random")]).unsqueeze(1)
    norms = attention_jacobian_norms(x, w_q, w_k, w_v, tau=tau, mask=mask)
    heads = multihead_jacobian_norms(
        x[:, 0], w_q, w_k.expand(3, -1, -1), w_v, torch.eye(d_v).expand(3, -1, -1), mask=mask[:, 0]
    )
    for a in range(2):
        for b in range(3):
            one = attention_jacobian_norms(
                x[a, 0], w_q[b], w_k, w_v[b], tau=float(tau[b]), mask=mask[a, 0]
            )
            head = attention_jacobian_norms(x[a, 0], w_q[b], w_k, w_v[b], mask=mask[a, 0])
            for name in "qkvx":
                torch.testing.assert_close(norms[name][a, b], one[name], rtol=1e-12, atol=0.0)
                torch.testing.assert_close(heads[name][a, b], head[name], rtol=1e-11, atol=0.0)


def test_tau_per_setting_over_many_heads() -> None:
    x, *weights = draw_heads()
    tau = torch.tensor([0.5, 8.5])
    norms = multihead_jacobian_norms(x, *weights, tau=tau)
    for s in range(2):
        one = multihead_jacobian_norms(x, *weights, tau=float(tau[s]))
        for name in "qkvx":
            torch.testing.assert_close(norms[name][s], one[name], rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("attention_kind", ["softmax", "uniform"])
@pytest.mark.parametrize("n", [5, 15])  # 15 > 2 d: the other order of the products
def test_many_networks_on_one_input(attention_kind: str, n: int) -> None:
    tensors = [normal(54 + s, *shape) for s, shape in enumerate([(n, 4), (3, 4, 2), (3, 4, 2)])]
    w_v = normal(57, 3, 4, 3)
    norms = attention_jacobian_norms(*tensors, w_v, attention=attention_kind)
    assert all(z.shape == (3,) for z in norms.values())
    for b in range(3):
        one = (tensors[0], tensors[1][b], tensors[2][b], w_v[b])
        alone = attention_jacobian_norms(*one, attention=attention_kind)
        for name in "qkvx":
            torch.testing.assert_close(norms[name][b], alone[name], rtol=1e-12, atol=0.0)
        if attention_kind == "softmax":
            assert_close(alone, by_jacrev(attention, *one), rel=1e-9)


def test_which_selects_and_orders() -> None:
    tensors = draw(60, 5, 4, 3, 6)
    everything = attention_jacobian_norms(*tensors)
    for which in ("x", "vq", ["k"], ("x", "k"), ("v",)):
        norms = attention_jacobian_norms(*tensors, which=which)
        assert list(norms) == list(which)
        for name in which:
            torch.testing.assert_close(norms[name], everything[name], rtol=1e-13, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_input_is_computed_in_float64(dtype: torch.dtype) -> None:
    tensors = [z.to(dtype) for z in draw(61, 6, 5, 3, 4)]
    norms = attention_jacobian_norms(*tensors)
    exact = by_jacrev(attention, *(z.double() for z in tensors))
    assert_close(norms, exact, rel=1e-12)
    assert all(z.dtype == torch.float64 for z in norms.values())


def test_float32_tokens_near_collapse() -> None:
    """Spread 1e-4 in float32: the norms of exactly these tokens, not of their rounding."""
    x, w_q, w_k, w_v = (z.float() for z in draw(62, 4, 3, 2, 3))
    x = (normal(63, 1, 3) + 1e-4 * x).float()
    expected = in_sixty_digits(x, w_q, w_k, w_v, 1.0)
    assert_close(attention_jacobian_norms(x, w_q, w_k, w_v), expected, rel=1e-11)


def test_result_is_an_ordinary_tensor_without_history() -> None:
    tensors = [z.requires_grad_() for z in draw(64, 5, 4, 3, 2)]
    norms = attention_jacobian_norms(*tensors)
    assert not any(z.requires_grad or z.is_inference() for z in norms.values())
    factor = torch.ones((), dtype=torch.float64, requires_grad=True)
    (factor * norms["q"]).backward()
    assert float(factor.grad) == float(norms["q"])
    with torch.no_grad():
        assert float(attention_jacobian_norms(*tensors)["x"]) == float(norms["x"])
    transposed = [z.detach().mT.contiguous().mT for z in tensors]  # other strides
    for name, z in attention_jacobian_norms(*transposed).items():
        torch.testing.assert_close(z, norms[name], rtol=1e-13, atol=0.0)


class LargestTensor(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> object:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.numbers = max(self.numbers, out.numel())
        return out


def test_nothing_larger_than_four_token_matrices_is_stored() -> None:
    n, d = 40, 30
    with LargestTensor() as seen:
        attention_jacobian_norms(*draw(65, n, d, d, d), mask=make_mask("causal", n))
    assert 3 * n * n <= seen.numbers <= 4 * n * n  # (n, n, d) would be 48000, the Jacobian 1e6


def swap(position: int, tensor: object) -> list[object]:
    tensors: list[object] = list(draw(70, 4, 5, 3, 2))
    tensors[position] = tensor
    return tensors


def with_nan(*shape: int) -> Tensor:
    t = normal(71, *shape)
    t.view(-1)[1] = math.nan
    return t


BAD = {
    "w_q rows": (
        swap(1, normal(1, 4, 3)),
        {},
        r"w_q has shape \(4, 3\) but d_model of x is 5; make",
    ),
    "w_k rows": (
        swap(2, normal(1, 4, 3)),
        {},
        r"w_k has shape \(4, 3\) but d_model of x is 5; make",
    ),
    "w_v rows": (
        swap(3, normal(1, 4, 3)),
        {},
        r"w_v has shape \(4, 3\) but d_model of x is 5; make",
    ),
    "w_k columns": (
        swap(2, normal(1, 5, 2)),
        {},
        r"w_k has shape \(5, 2\) but d_k of w_q is 3; make",
    ),
    "d_k = 0": (
        swap(1, normal(1, 5, 0)),
        {},
        r"w_q has shape \(5, 0\); pass no dimension of size 0",
    ),
    "empty batch": (swap(0, normal(1, 0, 4, 5)), {}, r"x has shape \(0, 4, 5\); pass no dimension"),
    "batches": (
        [normal(1, 2, 4, 5), normal(2, 3, 5, 3), *swap(0, 0)[2:]],
        {},
        r"leading dimensions do not broadcast: x \(2,\), w_q \(3,\)",
    ),
    "tau batch": (
        swap(0, normal(1, 2, 4, 5)),
        {"tau": torch.ones(3)},
        r"leading dimensions do not broadcast: .*tau \(3,\); match them",
    ),
    "vector": (swap(0, normal(1, 5)), {}, r"x has shape \(5,\); pass at least two dimensions"),
    "integers": (swap(0, torch.ones(4, 5).long()), {}, r"x has dtype torch.int64; pass a floating"),
    "list": (swap(3, [[1.0]]), {}, r"w_v is a list; pass a floating-point torch tensor"),
    "NaN": (swap(3, with_nan(5, 2)), {}, r"w_v has 1 NaN or infinite value\(s\) out of 10; remove"),
    "infinite": (swap(0, math.inf * normal(1, 4, 5)), {}, r"x has 20 NaN or infinite value\(s\)"),
    "overflow": (swap(0, 1e200 * normal(1, 4, 5)), {}, r"x has values up to .*overflow.*rescale x"),
    "tau": (swap(0, normal(1, 4, 5)), {"tau": math.nan}, r"tau is nan; pass a finite"),
    "tau tensor": (
        swap(0, normal(1, 4, 5)),
        {"tau": torch.tensor(math.inf)},
        r"tau has 1 NaN or infinite value\(s\) out of 1; remove",
    ),
    "which": (swap(0, normal(1, 4, 5)), {"which": ("q", "z")}, r"which is \('q', 'z'\); pass one"),
    "no which": (swap(0, normal(1, 4, 5)), {"which": ()}, r"which is \(\); pass one or more of"),
    "attention": (swap(0, normal(1, 4, 5)), {"attention": "hard"}, r"attention is 'hard'; pass"),
    "float mask": (
        swap(0, normal(1, 4, 5)),
        {"mask": torch.ones(4, 4)},
        r"mask has type torch.float",
    ),
    "mask shape": (
        swap(0, normal(1, 4, 5)),
        {"mask": torch.ones(4, 5).bool()},
        r"mask has shape \(4, 5\) but x has n_tokens = 4; pass \(\.\.\., 4, 4\)",
    ),
    "hidden row": (
        swap(0, normal(1, 4, 5)),
        {"mask": torch.ones(4, 4).bool().tril(-1)},
        r"mask hides every token from row \[0\]; let each row attend to at least one token",
    ),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_clear_line(case: tuple[list, dict, str]) -> None:
    tensors, options, message = case
    with pytest.raises(ValueError, match=message) as error:
        attention_jacobian_norms(*tensors, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("attention", ["softmax", "uniform"])
@pytest.mark.parametrize("which", ["q", "k", "v", "x"])
def test_hidden_row_and_nan_are_found_whatever_is_measured(attention: str, which: str) -> None:
    tensors = list(draw(72, 4, 5, 3, 2))
    hidden = torch.ones(4, 4).bool().tril(-1)
    with pytest.raises(ValueError, match="mask hides"):
        attention_jacobian_norms(*tensors, mask=hidden, attention=attention, which=which)
    tensors[0] = with_nan(4, 5)
    with pytest.raises(ValueError, match="x has 1 NaN"):
        attention_jacobian_norms(*tensors, attention=attention, which=which)


def test_bad_heads_and_bad_projections() -> None:
    x, w_q, w_k, w_v, w_o = draw_heads()
    with pytest.raises(ValueError, match=r"w_q has shape \(6, 2\); pass per-head weights"):
        multihead_jacobian_norms(x, w_q[0], w_k, w_v, w_o)
    with pytest.raises(ValueError, match=r"w_o has shape \(2, 4, 7\) but w_q has n_heads = 3"):
        multihead_jacobian_norms(x, w_q, w_k, w_v, w_o[:2])
    with pytest.raises(ValueError, match=r"w_o has shape \(3, 3, 7\) but d_v of w_v is 4"):
        multihead_jacobian_norms(x, w_q, w_k, w_v, w_o[:, :3])
    q, k, v = x @ w_q[0], x @ w_k[0], x @ w_v[0]
    with pytest.raises(ValueError, match=r"'x' needs weights: use attention_jacobian_norms"):
        jacobian_norms_from_qkv(x, q, k, v, which="qx")
    with pytest.raises(ValueError, match=r"k has shape \(4, 2\) but n_tokens of x is 5"):
        jacobian_norms_from_qkv(x, q, k[:4], v)
    with pytest.raises(ValueError, match=r"k has shape \(5, 1\) but d_k of q is 2"):
        jacobian_norms_from_qkv(x, q, k[:, :1], v)
    with pytest.raises(ValueError, match=r"w_o has shape \(3, 7\) but d_v of v is 4"):
        jacobian_norms_from_qkv(x, q, k, v, w_o=w_o[0, :3])


def python_blocks() -> Iterator[str]:
    yield from re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_examples_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = list(python_blocks())
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert "'q'" in capsys.readouterr().out
