"""Settings of the trainability experiment near the edge of chaos. Imports no torch."""

from dataclasses import replace
from typing import Self

from pydantic import Field, model_validator

from sigprop.artifacts.errors import UserError
from sigprop.experiments.trainability_settings import (
    Diagonal,
    Hypercube,
    Point,
    TrainabilitySettings,
)

_CANDIDATES = 2**13


class Edge(Hypercube):
    """Two groups near lambda_a = 0, on both sides of one L lambda_g; ranges as in a hypercube.

    Candidates are a scrambled Sobol sequence, uniform in every range. In its order, kept are the
    first `n_points` with L |lambda_a| < `near` and L lambda_g >= `split`, then the first `n_points`
    with L |lambda_a| < `near` and L lambda_g < `split`. Exponents are those of mode conv, from
    theory: they choose the configurations before anything is trained, and nothing else does.
    """

    n_points: int = Field(ge=2, le=_CANDIDATES, description="configurations in each group")
    near: float = Field(default=3.0, gt=0, le=100, description="L |lambda_a| is below it")
    split: float = Field(default=7.0, gt=0, le=100, description="L lambda_g between the groups")

    @property
    def size(self) -> int:
        """Number of configurations at one depth."""
        return 2 * self.n_points

    def points(self, depth: int) -> list[Point]:
        """The configurations at one depth: the group of larger lambda_g, then the other.

        Raises UserError when the candidates do not fill a group.
        """
        import numpy as np
        from scipy.stats import qmc

        from sigprop.theory.cowsik2024 import tied
        from sigprop.theory.cowsik2024_phases import lambda_a, lambda_g

        unit = qmc.Sobol(len(self._ranges()), rng=self.design_seed).random(_CANDIDATES)
        candidates = self._scaled(unit)
        attn, mlp, sigma_w, sigma_v = (
            np.array([getattr(point, name) for point in candidates])
            for name in ("alpha_attn", "alpha_mlp", "sigma_w", "sigma_v")
        )
        model = tied(attn, mlp, sigma_w, sigma_v=sigma_v)
        near, growing = np.abs(depth * lambda_a(model)) < self.near, depth * lambda_g(model)
        chosen: list[int] = []
        for group in (near & (growing >= self.split), near & (growing < self.split)):
            first = np.flatnonzero(group)[: self.n_points]
            if len(first) < self.n_points:
                raise UserError(
                    f"edge: the ranges have {len(first)} of n_points={self.n_points} configurations"
                    f" with L|lambda_a| < {self.near:g} on one side of L lambda_g = {self.split:g}"
                    f" at depth {depth}; widen them, or move near or split"
                )
            chosen += first.tolist()
        return [replace(candidates[index], config=i) for i, index in enumerate(chosen)]


class TrainabilityEdgeSettings(TrainabilitySettings):
    """Trainings of small deep transformers whose lambda_a is near 0."""

    edge: Edge = Field(description="the design")

    @model_validator(mode="after")
    def _one_mode(self) -> Self:
        if self.mode != ["conv"]:
            raise ValueError(f"mode={'/'.join(self.mode)}; the edge is that of conv")
        return self

    def designs(self) -> dict[str, Diagonal | Hypercube]:
        """The designs that are given, by name; valid settings have one."""
        return super().designs() | {"edge": self.edge}
