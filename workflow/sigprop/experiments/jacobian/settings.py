"""Settings of the attention-Jacobian experiments. Imports no torch."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from sigprop.experiments.settings import Experiment, Factor, SettingsBlock

Size = Annotated[int, Field(ge=1, le=1_000_000)]


@dataclass(frozen=True)
class Cell:
    """One cell: everything that fixes the law of one batch of attention layers."""

    grid: str
    attention: Literal["softmax", "uniform"]
    n_tokens: int
    d_model: int
    d_k: int
    d_v: int
    sigma_x: float
    rho: float
    tau: float
    n_networks: int
    fixed_input: bool
    families: tuple[str, ...]

    @property
    def key(self) -> str:
        """A name of the cell that does not depend on the rest of the sweep."""
        return "|".join(f"{k}{v!r}" for k, v in self.factors().items())

    def factors(self) -> dict[str, Any]:
        """The factor columns of this cell's rows."""
        names = ("grid", "attention", "n_tokens", "d_model", "d_k", "d_v")
        return {name: getattr(self, name) for name in (*names, "sigma_x", "rho", "tau")}


class CellGrid(SettingsBlock):
    """Attention layers at every combination of the lists below."""

    attention: Factor[Literal["softmax", "uniform"]] = Field(
        default=["softmax"], description="softmax: the real thing; uniform: every weight 1/n"
    )
    n_tokens: Factor[Annotated[int, Field(ge=2, le=65536)]] = Field(description="tokens")
    d_model: Factor[Size] = Field(description="width")
    d_k: Size | None = Field(default=None, description="query and key size; null means d_model")
    d_v: Size | None = Field(default=None, description="value size; null means d_model")
    sigma_x: Factor[Annotated[float, Field(gt=0, le=1e6)] | Literal["1/sqrt(d)"]] = Field(
        description="standard deviation of an input coordinate, or the word 1/sqrt(d)"
    )
    rho: Factor[Annotated[float, Field(ge=-1, le=1)]] = Field(description="token correlation")
    tau: Factor[Annotated[float, Field(gt=0, le=1e6)] | Literal["balance"]] = Field(
        default=[1.0],
        description="inverse temperature; balance: where theory equates query and value norms",
    )
    fixed_input: bool = Field(
        default=False, description="true: one input for all networks of a cell, as in Lemma 3.1"
    )
    families: Factor[Literal["q", "k", "v", "x"]] = Field(
        default=["q", "k", "v"], description="Jacobians with respect to W^Q, W^K, W^V, X"
    )
    n_networks: int = Field(ge=2, le=10_000_000, description="random layers of each cell")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        lowest = -1 / (max(self.n_tokens) - 1)
        for rho in self.rho:
            if rho < lowest:
                raise ValueError(
                    f"rho={rho} is below -1/(n_tokens-1)={lowest:.6g}, the least correlation "
                    f"that {max(self.n_tokens)} tokens can share"
                )
        return self

    def cells(self, name: str) -> Iterator[Cell]:
        """Every cell of the grid, in a fixed order; tau 0 stands for `balance`."""
        for attention, n, d, sigma, rho, tau in itertools.product(
            self.attention, self.n_tokens, self.d_model, self.sigma_x, self.rho, self.tau
        ):
            yield Cell(
                grid=name,
                attention=attention,
                n_tokens=n,
                d_model=d,
                d_k=d if self.d_k is None else self.d_k,
                d_v=d if self.d_v is None else self.d_v,
                sigma_x=d**-0.5 if sigma == "1/sqrt(d)" else float(sigma),
                rho=rho,
                tau=0.0 if tau == "balance" else float(tau),
                n_networks=self.n_networks,
                fixed_input=self.fixed_input,
                families=tuple(self.families),
            )


class JacobianSettings(Experiment):
    """Grids of attention layers by name."""

    # Squared Frobenius norms of dS/dW and dS/dX; "given_x": Lemma 3.1 at the simulated inputs;
    # "independent": equation (17) without the finite-size factor that the paper's assumption drops.
    QUANTITIES = {
        "jacobian_q": "coordinate^6",
        "jacobian_k": "coordinate^6",
        "jacobian_v": "coordinate^2",
        "jacobian_x": "1",
        "jacobian_q_given_x": "coordinate^6",
        "jacobian_k_given_x": "coordinate^6",
        "jacobian_v_given_x": "coordinate^2",
        "jacobian_x_given_x": "1",
        "jacobian_x_bound_given_x": "1",
        "jacobian_q_independent": "coordinate^6",
        "sum_sq_norm": "coordinate^2",
        "gram_sq_norm": "coordinate^4",
        "spread_sq_norm": "coordinate^2",
        "mean_sq_norm": "coordinate^2",
    }
    FACTORS = {
        "grid": "str",
        "attention": "str",
        "n_tokens": "int64",
        "d_model": "int64",
        "d_k": "int64",
        "d_v": "int64",
        "sigma_x": "float64",
        "rho": "float64",
        "tau": "float64",
    }
    THEORY_READS_SIMULATION = True

    experiment: Literal["jacobian"] = Field(default="jacobian", description="kind of experiment")

    grids: dict[str, CellGrid] = Field(min_length=1, description="each grid crosses its own lists")

    @property
    def design(self) -> str | None:
        balanced = any("balance" in grid.tau for grid in self.grids.values())
        return self._module("design") if balanced else None

    def cells(self) -> Iterator[Cell]:
        """Every cell of every grid."""
        for name, grid in self.grids.items():
            yield from grid.cells(name)


class ExactSettings(Experiment):
    """Checks of the instrument itself: how many random shapes and draws, from which ranges."""

    QUANTITIES = {
        **{f"relative_difference_{family}": "1" for family in "qkvx"},
        "ratio_to_value_q": "1",
        "ratio_to_value_k": "1",
        "relative_difference_closed_form_v": "1",
        "relative_difference_tau_squared_q": "1",
        "relative_difference_tau_v": "1",
    }
    FACTORS = {
        "check": "str",
        "n_tokens": "int64",
        "d_model": "int64",
        "d_k": "int64",
        "d_v": "int64",
        "tau": "float64",
    }
    THEORY = False

    experiment: Literal["jacobian_exact"] = Field(
        default="jacobian_exact", description="kind of experiment"
    )

    n_shapes: int = Field(ge=1, le=10_000, description="random shapes compared with jacrev")
    n_draws: int = Field(ge=1, le=100_000, description="draws at exactly equal tokens")
    largest: int = Field(ge=5, le=64, description="largest of n_tokens, d_model, d_k, d_v")
    tau: Factor[Annotated[float, Field(gt=0, le=1e3)]] = Field(
        description="inverse temperatures to draw from"
    )

    @property
    def simulation(self) -> str:
        return self._module("exact")
