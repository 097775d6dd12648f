"""The variance at which equal tokens start, where settings ask for a stationary one."""

import numpy as np

from sigprop.experiments.geometry.settings import GeometrySettings, NetworkBatch
from sigprop.theory.mlp_moments import moments_at_one


def run(settings: GeometrySettings) -> list[np.ndarray]:
    """q of the input of every point of each batch."""
    return [start_variances(batch) for batch in settings.batches()]


def start_variances(batch: NetworkBatch) -> np.ndarray:
    """q of the input of every point (points,).

    With "stationary", the variance that equal tokens keep from block to block (derived here): 1 in
    mode renorm, and with c = 1 - alpha^2 and B = sigma_2^2 E phi(sigma_1 u)^2 in mode conv

        q = c_M (c_A q + alpha_A^2 sigma_V^2) + alpha_M^2 B .

    Raises ValueError for a point with both strengths 0, which keeps every variance.
    """
    if batch.q != "stationary":
        return np.full(len(batch.points), batch.q)
    if batch.mode == "renorm":
        return np.ones(len(batch.points))
    p = batch.columns()
    attn, mlp = p["alpha_attn"] ** 2, p["alpha_ff"] ** 2
    if not (attn + mlp > 0).all():
        raise ValueError("q=stationary needs a positive alpha_attn or alpha_ff, both are 0")
    power = p["sigma_w2"] ** 2 * moments_at_one(p["sigma_w1"], batch.activation)[0]  # B
    arriving = (1 - mlp) * attn * p["sigma_v"] ** 2 + mlp * power
    return arriving / (1 - (1 - attn) * (1 - mlp))
