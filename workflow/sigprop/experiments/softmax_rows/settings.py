"""Settings of the Monte Carlo of random softmax rows. Imports no torch."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from sigprop.experiments.settings import Experiment, Factor, SettingsBlock

# Of the logits of one row; that of theory.softmax_moments.
_LARGEST_VARIANCE = 150.0


@dataclass(frozen=True)
class Rows:
    """Rows of attention matrices that are drawn from the same random numbers.

    Attributes:
        d_k: query-key width of a real layer; 0 means exactly Gaussian logits.
        points: (sigma_a, rho, beta) of the settings; beta is nan unless sigma_a comes from it.
    """

    grid: str
    n_tokens: int
    n_rows: int
    d_k: int
    n_batches: int
    batch_size: int
    points: tuple[tuple[float, float, float], ...]

    @property
    def key(self) -> str:
        """A name of the random stream, which all points draw from."""
        return f"{self.grid}|n{self.n_tokens}|k{self.d_k}"

    def factors(self, i: int) -> dict[str, Any]:
        """The factor columns of point i."""
        sigma_a, rho, beta = self.points[i]
        sizes = {"grid": self.grid, "n_tokens": self.n_tokens, "n_rows": self.n_rows}
        return sizes | {"d_k": self.d_k, "sigma_a": sigma_a, "rho": rho, "beta": beta}


class RowGrid(SettingsBlock):
    """Random attention at every combination of the lists below."""

    n_tokens: Factor[Annotated[int, Field(ge=2, le=1_000_000)]] = Field(description="columns")
    d_k: Factor[Annotated[int, Field(ge=0, le=100_000)]] = Field(
        default=[0], description="query-key width of a real layer; 0: exactly Gaussian logits"
    )
    rho: Factor[Annotated[float, Field(ge=-1, le=1)]] = Field(
        default=[0.0], description="cosine of every pair of tokens"
    )
    sigma_a: Factor[Annotated[float, Field(gt=0, le=12)]] | None = Field(
        default=None, description="standard deviation of a logit at unit token variance"
    )
    beta: Factor[Annotated[float, Field(gt=0, le=3.6)]] | None = Field(
        default=None, description="instead of sigma_a: sigma_a^2 = beta^2 ln n_tokens"
    )
    n_rows: int = Field(
        default=8, ge=2, le=64, description="rows drawn of each matrix, at most n_tokens"
    )
    n_batches: int = Field(ge=2, le=100_000, description="independent batches")
    batch_size: int = Field(ge=1, le=1_000_000, description="matrices whose mean makes a value")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.sigma_a is None) == (self.beta is None):
            raise ValueError("sigma_a or beta must be given, and not both")
        lowest = -1 / (max(self.n_tokens) - 1)
        if min(self.rho) < lowest:
            raise ValueError(
                f"rho={min(self.rho)} is below -1/(n_tokens-1)={lowest:.6g}, the least correlation "
                f"that {max(self.n_tokens)} tokens can share"
            )
        if self.beta is not None:
            largest = max(self.beta) * math.log(max(self.n_tokens)) ** 0.5
            if largest > 12:
                raise ValueError(
                    f"beta={max(self.beta)} means sigma_a={largest:.3g} at "
                    f"n_tokens={max(self.n_tokens)}, above 12; use a smaller beta or n_tokens"
                )
        else:
            largest = max(self.sigma_a or [])
        variance = largest**2 * (1 - min(self.rho))
        if variance > _LARGEST_VARIANCE:
            raise ValueError(
                f"sigma_a={largest:.3g} and rho={min(self.rho)} give logits of variance "
                f"{variance:.4g}, for which the integrals do not converge; keep "
                f"sigma_a^2 (1 - rho) at most {_LARGEST_VARIANCE:g}"
            )
        return self

    def cases(self, name: str) -> Iterator[Rows]:
        """Every set of matrices of the grid, in a fixed order."""
        for n in self.n_tokens:
            if self.beta is None:
                scales = [(sigma_a, float("nan")) for sigma_a in self.sigma_a or []]
            else:
                scales = [(float(beta * math.log(n) ** 0.5), beta) for beta in self.beta]
            points = tuple((s, rho, beta) for s, beta in scales for rho in self.rho)
            for d_k in self.d_k:
                yield Rows(
                    grid=name,
                    n_tokens=n,
                    n_rows=min(n, self.n_rows),
                    d_k=d_k,
                    n_batches=self.n_batches,
                    batch_size=self.batch_size,
                    points=points,
                )


class SoftmaxRowsSettings(Experiment):
    """Grids of random attention by name."""

    # Of rows A_i, A_k of the attention matrix: s = E sum_j A_ij^2, r = E sum_j A_ij A_kj, a3 = E
    # sum_j A_ij^3, tq = E |J_i|_F^2 and tr = E tr J_i J_k with the softmax Jacobian J_i = diag A_i
    # - A_i A_i^T, and the row's entropy. Theory only: `_leading` to leading order at many tokens,
    # s_limit as n -> inf at fixed beta.
    QUANTITIES = {
        "s": "1",
        "r": "1",
        "a3": "1",
        "tq": "1",
        "tr": "1",
        "entropy": "nat",
        "s_leading": "1",
        "r_leading": "1",
        "entropy_leading": "nat",
        "s_limit": "1",
    }
    # d_k: 0 for exactly Gaussian logits. beta: null where sigma_a is given. seed: the batch.
    FACTORS = {
        "grid": "str",
        "n_tokens": "int64",
        "n_rows": "int64",
        "d_k": "int64",
        "sigma_a": "float64",
        "rho": "float64",
        "beta": "float64?",
    }

    experiment: Literal["softmax_rows"] = Field(
        default="softmax_rows", description="kind of experiment"
    )

    grids: dict[str, RowGrid] = Field(min_length=1, description="each grid crosses its own lists")

    def cases(self) -> Iterator[Rows]:
        """Every case of every grid."""
        for name, grid in self.grids.items():
            yield from grid.cases(name)
