"""Theory alongside the trainability tables: the exponents of every configuration."""

from collections.abc import Iterator
from dataclasses import asdict

import pandas as pd

from sigprop.experiments.context import Context, chosen
from sigprop.experiments.trainability.rows import group_frame
from sigprop.experiments.trainability.settings import Group, TrainabilitySettings
from sigprop.theory.cowsik2024 import Architecture, lambda_g_traj, tied
from sigprop.theory.cowsik2024_phases import lambda_a, lambda_g, lambda_g_star


def run(settings: TrainabilitySettings, context: Context) -> pd.DataFrame:
    """lambda_a, lambda_g, lambda_g_star and lambda_g_traj per block; mode unit has the last only.

    The trajectory starts at the embedding's variance 1 and at the mean correlation 1 / n_symbols
    of two positions, which hold the same symbol that often. Strength 1, where lambda_a = -inf in
    mode conv, has no row for it.
    """
    groups = [group for group in settings.groups(chosen(settings)) if group.seed == 0]
    return pd.concat([f for group in groups for f in _frames(group, settings)], ignore_index=True)


def architecture(group: Group, settings: TrainabilitySettings) -> Architecture:
    """The configurations of a group as the theory knows them, arrays of shape (points,)."""
    p = pd.DataFrame([asdict(point) for point in group.points])
    return tied(
        p["alpha_attn"].to_numpy(),
        p["alpha_ff"].to_numpy(),
        p["sigma_w"].to_numpy(),
        sigma_a=p["sigma_a"].to_numpy(),
        sigma_v=p["sigma_v"].to_numpy(),
        n_tokens=settings.n_tokens,
        mode=group.mode,
    )


def _frames(group: Group, settings: TrainabilitySettings) -> Iterator[pd.DataFrame]:
    model = architecture(group, settings)
    found = {"lambda_g_traj": lambda_g_traj(model, group.depth, rho=1 / settings.n_symbols)}
    if group.mode != "unit":
        found |= {"lambda_a": lambda_a(model), "lambda_g": lambda_g(model)}
        found |= {"lambda_g_star": lambda_g_star(model)}
    for quantity, values in found.items():
        yield group_frame(group, settings, quantity, values)
