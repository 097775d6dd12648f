"""The random networks of Cowsik et al. 2024 (arXiv 2403.02579) as schemes of the common block.

    Y  = s_A X + alpha_A Attn(LN(X)) ,     X' = s_M Y + alpha_M MLP(LN(Y)) ,
    MLP(x) = W2 phi(W1 x) ,  phi = tanh

One head of width d. Entry variances sigma_A/d for queries and keys, so that logits of tokens with
|x|^2 = d have variance sigma_A^2; sigma_V^2/d for values, sigma_1^2/d and sigma_2^2/d for the MLP.
The paper does not fix how skip connections and normalization combine, so there are three modes:

    conv      s = sqrt(1 - alpha^2)     the variance of the stream relaxes to a fixed point
    renorm    s = 1                     and LN at every block output
    unit      s = 1                     plain PRE-LN, the variance grows with depth

The names of the modes are ours; each is a record of config/schemes.yaml, `cowsik_conv` and so on.
"""

from dataclasses import replace
from typing import Literal, TypeVar

from torch import Tensor

from sigprop.models.schemes import SCHEMES, Family, Scheme, Strength, check_name

Mode = Literal["conv", "renorm", "unit"]
MODES: tuple[Mode, ...] = ("conv", "renorm", "unit")

Gain = TypeVar("Gain", float, Tensor)


def cowsik_gains(
    sigma_a: Gain, sigma_v: Gain, sigma_w1: Gain, sigma_w2: Gain
) -> dict[Family, Gain]:
    """Factor on the entry variance 1/d by family, numbers or tensors of one shape."""
    return {
        "q": sigma_a,
        "k": sigma_a,
        "v": sigma_v * sigma_v,
        "ff1": sigma_w1 * sigma_w1,
        "ff2": sigma_w2 * sigma_w2,
    }


def cowsik_scheme(
    alpha_attn: float | Strength,
    alpha_ff: float | Strength,
    *,
    sigma_a: float = 1.0,
    sigma_v: float = 1.0,
    sigma_w1: float = 1.0,
    sigma_w2: float = 1.0,
    mode: Mode = "conv",
) -> Scheme:
    """The scheme of one setting, to be used with one head, d_ff = d_model and a tanh (or ReLU).

    Args:
        alpha_attn, alpha_ff: branch strengths, or rules alpha(L).
        sigma_a: standard deviation of a logit at |x|^2 = d.
        sigma_v, sigma_w1, sigma_w2: entry standard deviation times sqrt(d).
        mode: "conv", "renorm" or "unit", see the head of this module.

    Raises:
        ValueError: unknown mode, a sigma that is not positive, or a strength outside [0, 1] in
            mode "conv".
    """
    check_name("mode", mode, MODES)
    for name, sigma in (
        ("sigma_a", sigma_a),
        ("sigma_v", sigma_v),
        ("sigma_w1", sigma_w1),
        ("sigma_w2", sigma_w2),
    ):
        if not sigma > 0:
            raise ValueError(f"{name} must be positive, got {sigma}")
    return replace(
        SCHEMES[f"cowsik_{mode}"],
        alpha_attn=_rule(alpha_attn),
        alpha_ff=_rule(alpha_ff),
        gains=tuple(cowsik_gains(sigma_a, sigma_v, sigma_w1, sigma_w2).items()),
    )


def _rule(alpha: float | Strength) -> Strength:
    return alpha if isinstance(alpha, Strength) else Strength(alpha)
