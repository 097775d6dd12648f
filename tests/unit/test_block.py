"""The block against a second implementation in numpy, written head by head and token by token."""

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from sigprop.models.block import BlockOutput, attend, block, layer_norm
from sigprop.models.schemes import SCHEMES, Scheme, Strength

N, D, D_FF, DEPTH = 5, 6, 9, 7


def draw_weights(n_heads: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"q": (D, D), "k": (D, D), "v": (D, D), "ff1": (D, D_FF), "ff2": (D_FF, D)}
    if n_heads > 1:
        shapes["o"] = (D, D)
    return {f: torch.randn(*s, generator=generator, dtype=torch.float64) for f, s in shapes.items()}


class Projection:
    """`project` as a closure over explicit weights, which also notes what it was asked for."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.weights = weights
        self.calls: list[tuple[tuple[int, ...], dict[str, int]]] = []

    def __call__(self, x: Tensor, widths: Mapping[str, int]) -> tuple[Tensor, ...]:
        self.calls.append((tuple(x.shape), dict(widths)))
        assert all(self.weights[f].shape[1] == width for f, width in widths.items())
        return tuple(x @ self.weights[f] for f in widths)


def draw_x(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def reference_norm(x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    for k, token in enumerate(x):
        centred = token - token.mean()
        out[k] = centred * math.sqrt(len(token)) / np.linalg.norm(centred)
    return out


def reference_attention(
    x: np.ndarray, w: dict[str, np.ndarray], tau: float, n_heads: int, kind: str, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    n, d = x.shape
    d_h = d // n_heads
    heads, probabilities = [], []
    for i in range(n_heads):
        columns = slice(i * d_h, (i + 1) * d_h)
        q, k, v = (x @ w[f][:, columns] for f in ("q", "k", "v"))
        a = np.zeros((n, n))
        for row in range(n):
            seen = [j for j in range(n) if mask[row, j]]
            for j in seen:
                a[row, j] = 1.0 if kind == "uniform" else math.exp(tau * q[row] @ k[j] / d_h**0.5)
            a[row] /= a[row].sum()
        heads.append(a @ v)
        probabilities.append(a)
    s = np.concatenate(heads, axis=1)
    return (s @ w["o"] if n_heads > 1 else s), np.stack(probabilities)


def reference_block(
    x: np.ndarray,
    w: dict[str, np.ndarray],
    scheme: Scheme,
    n_heads: int,
    activation: str,
    kind: str,
    mask: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    mask = np.ones((len(x), len(x)), dtype=bool) if mask is None else mask
    pre = reference_norm if scheme.norm == "pre" else (lambda z: z)
    post = reference_norm if scheme.norm == "post" else (lambda z: z)
    alpha = DEPTH**-0.5 if scheme.name.endswith("scaled") else 1.0
    s, a = reference_attention(pre(x), w, scheme.tau, n_heads, kind, mask)
    z = post(x + alpha * s)
    hidden = pre(z) @ w["ff1"]
    if activation == "relu":
        hidden = hidden * (hidden > 0)
    return post(z + alpha * (hidden @ w["ff2"])), a


def run(x: Tensor, weights: dict[str, Tensor], scheme: Scheme, **options: object) -> BlockOutput:
    return block(x, Projection(weights), scheme, DEPTH, d_ff=D_FF, **options)


# The schemes that the reference writes out.
PLAIN = [f"{norm}_ln{scaled}" for norm in ("post", "pre", "no") for scaled in ("", "_scaled")]


@pytest.mark.parametrize(
    ("name", "activation", "kind", "n_heads"),
    list(itertools.product(PLAIN, ("relu", "linear"), ("softmax", "uniform"), (1, 3))),
)
def test_block_equals_the_reference(name: str, activation: str, kind: str, n_heads: int) -> None:
    weights = draw_weights(n_heads)
    x = draw_x(2, 4, N, D)
    w = {f: y.numpy() for f, y in weights.items()}
    out = run(
        x,
        weights,
        SCHEMES[name],
        n_heads=n_heads,
        activation=activation,
        attention=kind,
        keep_attention=True,
    )
    assert out.x.shape == x.shape
    assert out.attention is not None
    assert out.attention.shape == (2, 4, n_heads, N, N)
    for index in np.ndindex(2, 4):
        expected, a = reference_block(x[index].numpy(), w, SCHEMES[name], n_heads, activation, kind)
        np.testing.assert_allclose(out.x[index].numpy(), expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(out.attention[index].numpy(), a, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "n_heads", "tau"),
    list(itertools.product(("softmax", "uniform"), (1, 2), (1.0, 8.5))),
)
def test_masks_and_temperature(kind: str, n_heads: int, tau: float) -> None:
    weights = draw_weights(n_heads)
    x = draw_x(3, N, D)
    causal = torch.ones(N, N, dtype=torch.bool).tril()
    padding = torch.tensor([[[1, 1, 1, 1, 1]], [[1, 1, 1, 0, 0]], [[1, 0, 1, 1, 0]]]) > 0  # (3,1,n)
    scheme = Scheme("no_ln", "tempered", "none", tau=tau)
    for mask in (causal, padding):
        out = run(
            x,
            weights,
            scheme,
            n_heads=n_heads,
            attention=kind,
            mask=mask,
            keep_attention=True,
        )
        for i in range(3):
            full = mask.expand(3, N, N)[i].numpy()
            w = {f: y.numpy() for f, y in weights.items()}
            expected, a = reference_block(x[i].numpy(), w, scheme, n_heads, "relu", kind, full)
            np.testing.assert_allclose(out.x[i].numpy(), expected, rtol=1e-10, atol=1e-10)
            np.testing.assert_allclose(out.attention[i].numpy(), a, rtol=1e-9, atol=1e-12)


def test_causal_blocks_do_not_look_ahead() -> None:
    weights = draw_weights(1)
    mask = torch.ones(N, N, dtype=torch.bool).tril()
    x = draw_x(1, N, D)
    changed = x.clone()
    changed[:, 3:] += 1.0
    a, b = (run(y, weights, SCHEMES["post_ln"], mask=mask).x for y in (x, changed))
    torch.testing.assert_close(a[:, :3], b[:, :3], rtol=0, atol=1e-13)
    assert (a[:, 3:] - b[:, 3:]).abs().min() > 1e-6


def test_tokens_permute_through() -> None:
    weights = draw_weights(2)
    x = draw_x(1, N, D)
    order = torch.tensor([3, 0, 4, 1, 2])
    a = run(x, weights, SCHEMES["pre_ln"], n_heads=2).x
    b = run(x[:, order], weights, SCHEMES["pre_ln"], n_heads=2).x
    torch.testing.assert_close(a[:, order], b, rtol=0, atol=1e-12)


def test_what_is_asked_of_project() -> None:
    x = draw_x(2, N, D)
    softmax = Projection(draw_weights(1))
    block(x, softmax, SCHEMES["no_ln"], DEPTH, d_ff=D_FF)
    assert softmax.calls == [
        ((2, N, D), {"q": D, "k": D, "v": D}),
        ((2, N, D), {"ff1": D_FF}),
        ((2, N, D_FF), {"ff2": D}),
    ]
    # Uniform attention needs no queries or keys and projects only the mean token.
    uniform = Projection(draw_weights(3))
    out = block(x, uniform, SCHEMES["no_ln"], DEPTH, d_ff=D_FF, n_heads=3, attention="uniform")
    assert uniform.calls[:2] == [((2, 1, D), {"v": D}), ((2, 1, D), {"o": D})]
    assert out.attention is None


def test_narrow_queries_and_keys_keep_the_softmax_scale() -> None:
    weights = draw_weights(1)
    x = draw_x(1, N, D)
    factor = torch.linalg.qr(torch.randn(D, D, dtype=torch.float64)).Q
    padded = {f: torch.cat([w @ factor, 0 * w], dim=1) for f, w in weights.items() if f in "qk"}

    def project(z: Tensor, widths: Mapping[str, int]) -> tuple[Tensor, ...]:
        return tuple(z @ {**weights, **padded}[f] for f in widths)

    a = run(x, weights, SCHEMES["no_ln"]).x
    b = block(x, project, SCHEMES["no_ln"], DEPTH, d_ff=D_FF).x
    torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def test_layer_norm_is_scale_free() -> None:
    x = draw_x(3, N, 64)
    for scale in (1e-3, 1.0, 1e3):
        y = layer_norm(scale * x)
        torch.testing.assert_close(y.mean(-1), torch.zeros(3, N, dtype=y.dtype), rtol=0, atol=1e-12)
        torch.testing.assert_close(
            y.square().sum(-1), torch.full((3, N), 64.0, dtype=y.dtype), rtol=1e-5, atol=0
        )


@pytest.mark.parametrize("activation", ["relu", "linear"])
def test_gradients_flow_to_trained_parameters(activation: str) -> None:
    weights = {f: w.requires_grad_() for f, w in draw_weights(2).items()}
    gain = torch.ones(2, D, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor([1.0, 1.0], dtype=torch.float64, requires_grad=True)
    x = draw_x(1, N, D)

    def loss(gain: Tensor, alpha: Tensor, *values: Tensor) -> Tensor:
        out = block(
            x,
            Projection(dict(zip(weights, values, strict=True))),
            SCHEMES["post_ln"],
            DEPTH,
            n_heads=2,
            d_ff=D_FF,
            activation=activation,
            norm=lambda z, branch: layer_norm(z) * gain[int(branch == "feed_forward")],
            strengths={"attention": alpha[0], "feed_forward": alpha[1]},
        )
        return out.x.square().sum(dim=(-2, -1)) + out.x.pow(3).sum(dim=(-2, -1))

    assert torch.autograd.gradcheck(loss, (gain, alpha, *weights.values()))


def test_strengths_follow_the_depth() -> None:
    weights = draw_weights(1)
    x = draw_x(1, N, D)
    scheme = Scheme("mine", "mine", "none", Strength(0.0), Strength(2.0, 1.0))
    out = run(x, weights, scheme, activation="linear").x
    expected = x + 2.0 / DEPTH * (x @ weights["ff1"] @ weights["ff2"])
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


def test_bad_arguments() -> None:
    x, weights = draw_x(1, N, D), draw_weights(1)
    with pytest.raises(ValueError, match="attention 'sofmax' is unknown: did you mean 'softmax'"):
        run(x, weights, SCHEMES["no_ln"], attention="sofmax")
    with pytest.raises(ValueError, match="activation 'rel' is unknown: did you mean 'relu'"):
        run(x, weights, SCHEMES["no_ln"], activation="rel")
    with pytest.raises(ValueError, match="n_heads must divide d_model = 6, got 4"):
        attend(x, Projection(weights), n_heads=4)
