"""Settings of the trainability experiments (Cowsik et al. 2024). Imports no torch."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from sigprop.experiments.schemes import OF_RECORDS, ModeRecords, records_of_modes, schemes_of
from sigprop.experiments.settings import Experiment, Factor, SettingsBlock
from sigprop.experiments.training import Training
from sigprop.models.schemes import Scheme
from sigprop.training.settings import TrainSettings

Mode = Literal["conv", "renorm", "unit"]
Alpha = Annotated[float, Field(ge=0, le=1)]
Sigma = Annotated[float, Field(gt=0, le=1e3)]
AlphaRange = Annotated[list[Alpha], Field(min_length=2, max_length=2)]
SigmaRange = Annotated[list[Sigma], Field(min_length=2, max_length=2)]

# Configurations among which the design `edge` chooses.
CANDIDATES = 2**13
# Of a network whose loss is not a number.
DIVERGED_LOSS = 2.0


@dataclass(frozen=True)
class Configuration:
    """One configuration: what its networks do not share with the others of the design."""

    config: int
    alpha_attn: float
    alpha_ff: float
    sigma_w: float
    sigma_v: float = 1.0
    sigma_a: float = 1.0


@dataclass(frozen=True)
class Group:
    """Configurations that train side by side on the same random numbers."""

    scheme: Scheme
    mode: Mode
    depth: int
    seed: int
    points: tuple[Configuration, ...]


class Diagonal(SettingsBlock):
    """Every alpha with every sigma_w; both branches have the same strength."""

    alpha: Factor[Annotated[float, Field(ge=0)]] = Field(
        description="alpha_attn = alpha_ff = alpha * L^-depth_power"
    )
    depth_power: float = Field(default=0.0, ge=0, le=4, description="see alpha")
    sigma_w: Factor[Sigma] = Field(description="both MLP matrices: entry sd times sqrt(d)")

    @property
    def size(self) -> int:
        """Number of configurations at one depth."""
        return len(self.alpha) * len(self.sigma_w)

    def points(self, depth: int) -> list[Configuration]:
        """The configurations at one depth, in a fixed order."""
        crossed = itertools.product(self.alpha, self.sigma_w)
        scale = depth**-self.depth_power
        return [
            Configuration(i, a * scale, a * scale, sigma) for i, (a, sigma) in enumerate(crossed)
        ]


class Hypercube(SettingsBlock):
    """A Latin hypercube, uniform in every range; ranges not given stay at 1."""

    n_points: int = Field(ge=2, le=1_000_000, description="configurations")
    design_seed: int = Field(ge=0, lt=2**63, description="of the hypercube alone")
    alpha_attn: AlphaRange = Field(description="strength of the attention branch, low and high")
    alpha_ff: AlphaRange = Field(description="strength of the MLP branch")
    sigma_w: SigmaRange = Field(description="both MLP matrices: entry sd times sqrt(d)")
    sigma_v: SigmaRange | None = Field(default=None, description="values: entry sd times sqrt(d)")
    sigma_a: SigmaRange | None = Field(default=None, description="sd of a logit at |x|^2 = d")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for name, (low, high) in self._ranges().items():
            if not low < high:
                raise ValueError(f"{name}=[{low:g}, {high:g}] is empty; give low < high")
        return self

    def _ranges(self) -> dict[str, list[float]]:
        names = ("alpha_attn", "alpha_ff", "sigma_w", "sigma_v", "sigma_a")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def size(self) -> int:
        """Number of configurations at one depth."""
        return self.n_points

    def points(self, depth: int) -> list[Configuration]:
        """The configurations; the same at every depth."""
        from scipy.stats import qmc

        unit = qmc.LatinHypercube(len(self._ranges()), rng=self.design_seed)
        return self._scaled(unit.random(self.n_points))

    def _scaled(self, unit: Any) -> list[Configuration]:
        """Points of the unit cube, (N, ranges), as configurations."""
        from scipy.stats import qmc

        ranges = self._ranges()
        scaled = qmc.scale(unit, *zip(*ranges.values(), strict=True))
        rows = (dict(zip(ranges, map(float, row), strict=True)) for row in scaled)
        return [Configuration(i, **row) for i, row in enumerate(rows)]


class Edge(Hypercube):
    """Two groups near lambda_a = 0, on both sides of one L lambda_g; ranges as in a hypercube.

    Exponents are those of mode conv, from theory: they choose the configurations before anything is
    trained, and nothing else does, see `design`.
    """

    n_points: int = Field(ge=2, le=CANDIDATES, description="configurations in each group")
    near: float = Field(default=3.0, gt=0, le=100, description="L |lambda_a| is below it")
    split: float = Field(default=7.0, gt=0, le=100, description="L lambda_g between the groups")

    @property
    def size(self) -> int:
        """Number of configurations at one depth."""
        return 2 * self.n_points

    def points(self, depth: int) -> list[Configuration]:
        raise ValueError("theory chooses the configurations of edge, see trainability.design")

    def candidates(self) -> list[Configuration]:
        """A scrambled Sobol sequence, uniform in every range."""
        from scipy.stats import qmc

        unit = qmc.Sobol(len(self._ranges()), rng=self.design_seed).random(CANDIDATES)
        return self._scaled(unit)


class Schedule(Training):
    """How the networks of a design train; a network whose loss is not a number is left behind."""

    milestones: list[Annotated[float, Field(gt=0, lt=1)]] = Field(
        default=[0.4, 0.8], description="of steps: fractions of the run at which lr falls"
    )
    decay: float = Field(default=0.1, gt=0, le=1, description="of steps: factor at each milestone")

    def train_settings(self) -> TrainSettings:
        """The same thing as the loop knows it."""
        own: dict[str, Any] = self.model_dump(exclude={"beta1", "beta2", "milestones"})
        return TrainSettings(
            betas=(self.beta1, self.beta2),
            milestones=tuple(self.milestones),
            on_nonfinite="freeze",
            **own,
        )


class TrainabilitySettings(Experiment):
    """Trainings of small deep transformers over a design of initializations."""

    # Losses after the last update: of the test batch and of the last training batch; a network
    # whose loss is not a number has `DIVERGED_LOSS` and diverged = 1. grad0: squared norm of the
    # gradient of the embedding before the first update. `lambda_*`: theory, per block, see
    # theory.cowsik2024.
    QUANTITIES = {
        "test_loss": "nat",
        "train_loss": "nat",
        "accuracy": "1",
        "diverged": "1",
        "grad0": "nat^2",
        "lambda_a": "1",
        "lambda_g": "1",
        "lambda_g_traj": "1",
        "lambda_g_star": "1",
    }
    # alpha_*: strengths at this depth. config: index of the configuration in its design.
    FACTORS = {
        "design": "str",
        "mode": "str",
        "optimizer": "str",
        "depth": "int64",
        "n_tokens": "int64",
        "d_model": "int64",
        "config": "int64",
        "alpha_attn": "float64",
        "alpha_ff": "float64",
        "sigma_w": "float64",
        "sigma_v": "float64",
        "sigma_a": "float64",
    }
    TRAINS = True

    experiment: Literal["trainability"] = Field(
        default="trainability", description="kind of experiment"
    )

    grid: Diagonal | None = Field(default=None, description="the design: one of grid, lhs, edge")
    lhs: Hypercube | None = Field(default=None, description="the design: one of grid, lhs, edge")
    edge: Edge | None = Field(default=None, description="the design: one of grid, lhs, edge")
    mode: Factor[Mode] = Field(
        default=["conv"],
        description="conv: skip sqrt(1 - alpha^2); renorm: LN at block outputs; unit: plain PRE-LN",
    )
    records: ModeRecords = Field(
        default_factory=lambda data: records_of_modes(data["mode"]), description=OF_RECORDS
    )
    depth: Factor[Annotated[int, Field(ge=1, le=1000)]] = Field(description="blocks, L")
    n_tokens: int = Field(default=16, ge=2, le=65536, description="symbols in a sequence")
    n_symbols: int = Field(default=8, ge=2, le=65536, description="size of the alphabet")
    d_model: int = Field(default=32, ge=2, le=65536, description="width, also that of the MLP")
    readout: float = Field(
        default=0.1, gt=0, le=1e3, description="readout weights: entry sd times sqrt(d)"
    )
    n_seeds: int = Field(ge=1, le=10_000, description="trainings of each configuration")
    ensemble: int = Field(
        ge=1,
        le=100_000,
        description="networks trained side by side in one program; decides speed, not results",
    )
    training: Schedule
    test_sequences: int = Field(ge=1, le=100_000, description="in the one fixed test batch")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if sum(each is not None for each in (self.grid, self.lhs, self.edge)) != 1:
            raise ValueError("give one design, grid or lhs or edge")
        for depth in self.depth:
            largest = max(p.alpha_attn for p in self.grid.points(depth)) if self.grid else 0
            if largest > 1:
                raise ValueError(f"grid.alpha reaches {largest:g} at depth {depth}; at most 1")
        if self.edge and self.mode != ["conv"]:
            raise ValueError(f"mode={'/'.join(self.mode)}; the edge is that of conv")
        return self

    @property
    def design(self) -> str | None:
        return self._module("design") if self.edge else None

    @property
    def shape(self) -> str:
        """Name of the design: grid, lhs or edge."""
        return "grid" if self.grid else "lhs" if self.lhs else "edge"

    def points(
        self, depth: int, edge: dict[int, list[Configuration]] | None = None
    ) -> list[Configuration]:
        """The configurations at one depth; `edge` has those that theory chose, by depth."""
        points: list[Configuration] = (
            edge[depth] if edge else getattr(self, self.shape).points(depth)
        )
        return points

    def groups(self, edge: dict[int, list[Configuration]] | None = None) -> Iterator[Group]:
        """Everything to train, at most `ensemble` configurations at a time, in a fixed order."""
        schemes = schemes_of(self.records)
        for mode, depth, seed in itertools.product(self.mode, self.depth, range(self.n_seeds)):
            points, scheme = self.points(depth, edge), schemes[f"cowsik_{mode}"]
            for start in range(0, len(points), self.ensemble):
                yield Group(scheme, mode, depth, seed, tuple(points[start : start + self.ensemble]))

    @property
    def n_runs(self) -> int:
        """Of how many groups the table is made."""
        groups = math.ceil(getattr(self, self.shape).size / self.ensemble)
        return len(self.mode) * len(self.depth) * self.n_seeds * groups

    def factors(self) -> dict[str, Any]:
        """The factor columns that all rows share."""
        return {
            "design": self.shape,
            "optimizer": self.training.optimizer,
            "n_tokens": self.n_tokens,
            "d_model": self.d_model,
        }
