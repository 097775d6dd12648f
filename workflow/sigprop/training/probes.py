"""Measurements that only training makes possible: gradients, and what Adam turns them into.

All take weights by family with shape (E, L, ...), such as `TrainedEncoder.weights`, and return one
value per member and layer.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import ParameterDict
from torch.optim import Optimizer

from sigprop.instruments.propagation import measure

Weights = Mapping[str, Tensor] | ParameterDict


def gradient_power(weights: Weights) -> dict[str, Tensor]:
    """grad_<family>: ||dLoss/dW||_F^2 by layer, (E, L) float64. ValueError without gradients."""
    power = {}
    for family, w in weights.items():
        if w.grad is None:
            raise ValueError(f"weights {family!r} have no gradient: measure after backward()")
        power[f"grad_{family}"] = w.grad.double().square().flatten(2).sum(-1)
    return power


def effective_rates(optimizer: Optimizer, weights: Weights, lr: float) -> dict[str, Tensor]:
    """log_rate_<family>: median over entries of ln eta_eff, by layer, (E, L) float64.

        eta_eff = lr / ( sqrt(v_hat) + eps ) ,   v_hat = v / (1 - beta_2^t)

    is Adam's step per unit of averaged gradient (Noci et al. 2022, arXiv 2206.03126, Figure 6).
    ValueError for an optimizer that is not Adam, and before the first update.
    """
    rates = {}
    for family, w in weights.items():
        state = optimizer.state.get(w, {})
        if "exp_avg_sq" not in state:
            raise ValueError(f"weights {family!r}: effective rates need Adam and one update")
        group = next(g for g in optimizer.param_groups if any(p is w for p in g["params"]))
        corrected = state["exp_avg_sq"].double() / (1 - group["betas"][1] ** float(state["step"]))
        log_rate = (lr / (corrected.sqrt() + group["eps"])).log()
        rates[f"log_rate_{family}"] = log_rate.flatten(2).quantile(0.5, dim=-1)
    return rates


def token_correlation(states: Sequence[Tensor]) -> dict[str, Tensor]:
    """cos_mean of X^0, ..., X^L, mean over sequences: L + 1 tensors (E, B, n, d) -> (E, L + 1)."""
    return {"cos_mean": torch.stack([measure(x)["cos_mean"].mean(1) for x in states], 1)}
