"""Configurations near the edge of chaos, chosen by the exponents of the theory."""

from dataclasses import replace

import numpy as np

from sigprop.artifacts.errors import UserError
from sigprop.experiments.trainability.settings import Configuration, Edge, TrainabilitySettings
from sigprop.theory.cowsik2024 import tied
from sigprop.theory.cowsik2024_phases import lambda_a, lambda_g


def run(settings: TrainabilitySettings) -> dict[int, list[Configuration]]:
    """The configurations at each depth; only the design `edge` asks for them."""
    assert settings.edge is not None
    return {depth: near_the_edge(settings.edge, depth) for depth in settings.depth}


def near_the_edge(edge: Edge, depth: int) -> list[Configuration]:
    """The configurations at one depth: the group of larger lambda_g, then the other.

    In the order of the candidates, kept are the first `n_points` with L |lambda_a| < `near` and
    L lambda_g >= `split`, then the first `n_points` with L |lambda_a| < `near` and
    L lambda_g < `split`.

    Raises UserError when the candidates do not fill a group.
    """
    candidates = edge.candidates()
    attn, mlp, sigma_w, sigma_v = (
        np.array([getattr(point, name) for point in candidates])
        for name in ("alpha_attn", "alpha_ff", "sigma_w", "sigma_v")
    )
    model = tied(attn, mlp, sigma_w, sigma_v=sigma_v)
    near, growing = np.abs(depth * lambda_a(model)) < edge.near, depth * lambda_g(model)
    chosen: list[int] = []
    for group in (near & (growing >= edge.split), near & (growing < edge.split)):
        first = np.flatnonzero(group)[: edge.n_points]
        if len(first) < edge.n_points:
            raise UserError(
                f"edge: the ranges have {len(first)} of n_points={edge.n_points} configurations"
                f" with L|lambda_a| < {edge.near:g} on one side of L lambda_g = {edge.split:g}"
                f" at depth {depth}; widen them, or move near or split"
            )
        chosen += first.tolist()
    return [replace(candidates[index], config=i) for i, index in enumerate(chosen)]
