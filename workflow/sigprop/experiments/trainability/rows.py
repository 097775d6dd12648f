"""Rows that simulation and theory of trainability share."""

from dataclasses import asdict

import numpy as np
import pandas as pd

from sigprop.experiments.frames import tidy
from sigprop.experiments.trainability.settings import Group, TrainabilitySettings


def group_frame(
    group: Group,
    settings: TrainabilitySettings,
    quantity: str,
    values: np.ndarray,
    seed: int | None = None,
) -> pd.DataFrame:
    """Rows of one quantity, values (points,), but for those not finite; theory has no seed."""
    points = pd.DataFrame([asdict(point) for point in group.points])
    frame = tidy(
        TrainabilitySettings,
        dict(points) | settings.factors() | {"mode": group.mode, "depth": group.depth},
        seed=None if seed is None else [seed] * len(values),
        quantity=quantity,
        value=values,
        source="theory" if seed is None else "simulation",
    )
    return frame[np.isfinite(values)]
