"""The Jacobian-norm instrument against automatic differentiation, and at exactly equal tokens."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from sigprop.artifacts.seeds import seed_stream, torch_seed
from sigprop.experiments.context import Context
from sigprop.experiments.frames import tidy
from sigprop.experiments.jacobian.settings import ExactSettings

_FAMILIES = ("q", "k", "v", "x")


def run(settings: ExactSettings, context: Context) -> pd.DataFrame:
    """Three checks of the instrument in float64, one seed per draw.

    `jacrev`: at random shapes with n, d, d_k, d_v all different, the relative difference between
    the instrument and the squared norm of the Jacobian that `torch.func.jacrev` forms.
    `equal_tokens`: at X = 1 x^T, the query and key norms relative to the value norm (Theorem 3.1
    says 0), and the value norm against d_v n ||x||^2.
    `temperature`: under uniform attention, same weights, the query norm at tau over tau^2 times
    that at 1, and the value norm over that at 1.
    """
    rng = np.random.default_rng(seed_stream(context.seed, context.table))
    rows: list[dict[str, Any]] = []
    for check, count, measure in (
        ("jacrev", settings.n_shapes, _against_jacrev),
        ("equal_tokens", settings.n_draws, _at_equal_tokens),
        ("temperature", settings.n_draws, _at_two_temperatures),
    ):
        for seed in range(count):
            sizes = rng.choice(np.arange(2, 1 + settings.largest), size=4, replace=False)
            n, d, d_k, d_v = (int(size) for size in sizes)
            tau = float(rng.choice(settings.tau))
            stream = seed_stream(context.seed, context.table, check, str(seed))
            factors = {"check": check, "n_tokens": n, "d_model": d, "d_k": d_k, "d_v": d_v}
            factors |= {"tau": tau, "seed": seed}
            measured = measure(torch_seed(stream), n, d, d_k, d_v, tau)
            rows += [factors | {"quantity": name, "value": v} for name, v in measured.items()]
    table = pd.DataFrame(rows)
    return tidy(ExactSettings, table, seed=table["seed"], value=table["value"], source="simulation")


def _draw(seed: int, n: int, d: int, d_k: int, d_v: int) -> tuple[Any, Any, Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, generator=generator, dtype=torch.float64)

    return (
        normal(n, d),
        normal(d, d_k) / d_k**0.5,
        normal(d, d_k) / d_k**0.5,
        normal(d, d_v) / d_v**0.5,
    )


def _against_jacrev(seed: int, n: int, d: int, d_k: int, d_v: int, tau: float) -> dict[str, float]:
    import torch

    from sigprop.instruments.jacobian import attention_jacobian_norms

    x, w_q, w_k, w_v = _draw(seed, n, d, d_k, d_v)

    def attention(w_q: Any, w_k: Any, w_v: Any, x: Any) -> Any:
        logits = tau / d_k**0.5 * (x @ w_q) @ (x @ w_k).T
        return torch.softmax(logits, -1) @ (x @ w_v)

    jacobian: Callable[..., Any] = torch.func.jacrev(attention, argnums=(0, 1, 2, 3))
    formed = jacobian(w_q, w_k, w_v, x)
    ours = attention_jacobian_norms(x, w_q, w_k, w_v, tau=tau)
    return {
        f"relative_difference_{family}": abs(float(ours[family] / block.square().sum()) - 1)
        for family, block in zip(_FAMILIES, formed, strict=True)
    }


def _at_equal_tokens(seed: int, n: int, d: int, d_k: int, d_v: int, tau: float) -> dict[str, float]:
    from sigprop.instruments.jacobian import attention_jacobian_norms

    x, w_q, w_k, w_v = _draw(seed, n, d, d_k, d_v)
    ours = attention_jacobian_norms(x[:1].expand(n, d), w_q, w_k, w_v, tau=tau, which="qkv")
    value, closed = float(ours["v"]), d_v * n * float(x[0] @ x[0])
    return {
        "ratio_to_value_q": float(ours["q"]) / value,
        "ratio_to_value_k": float(ours["k"]) / value,
        "relative_difference_closed_form_v": abs(value / closed - 1),
    }


def _at_two_temperatures(
    seed: int, n: int, d: int, d_k: int, d_v: int, tau: float
) -> dict[str, float]:
    from sigprop.instruments.jacobian import attention_jacobian_norms

    tensors = _draw(seed, n, d, d_k, d_v)
    one, at_tau = (
        attention_jacobian_norms(*tensors, tau=value, attention="uniform", which="qv")
        for value in (1.0, tau)
    )
    return {
        "relative_difference_tau_squared_q": abs(float(at_tau["q"] / one["q"]) / tau**2 - 1),
        "relative_difference_tau_v": abs(float(at_tau["v"] / one["v"]) - 1),
    }
