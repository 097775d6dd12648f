"""Settings of the experiments on token geometry (Cowsik et al. 2024). Imports no torch."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from sigprop.experiments.schemes import OF_RECORDS, ModeRecords, records_of_modes, schemes_of
from sigprop.experiments.settings import Experiment, Factor, SettingsBlock
from sigprop.models.schemes import Scheme, Strength

if TYPE_CHECKING:
    import numpy as np

Alpha = Annotated[float, Field(ge=0, le=1)]
Sigma = Annotated[float, Field(gt=0, le=1e3)]
Depth = Annotated[int, Field(ge=1, le=100_000)]
Readout = Literal["none", "independent", "common"]
Quantity = Literal["q", "p", "q_minus_p", "token_norm", "pair_cosine", "g", "h", "g_minus_h"]

_GRADIENTS = ("g", "h", "g_minus_h")
_DISTRIBUTIONS = ("token_norm", "pair_cosine")


@dataclass(frozen=True)
class NetworkPoint:
    """What may differ between networks that run in one batch."""

    alpha_attn: float
    alpha_ff: float
    sigma_a: float
    sigma_v: float
    sigma_w1: float
    sigma_w2: float
    rho: float


@dataclass(frozen=True)
class NetworkBatch:
    """Settings of one grid whose networks have the same shape and run together.

    Attributes:
        scheme: of the mode; strengths and gains are those of the points.
        depth_power: power of 1/L that the strengths of the points contain.
        q: |x_i|^2 / d of the input, or "stationary".
        layers: kept, in ascending order.
    """

    grid: str
    scheme: Scheme
    mode: Literal["conv", "renorm", "unit"]
    activation: Literal["tanh", "relu"]
    n_tokens: int
    d_model: int
    depth: int
    depth_power: float
    q: float | Literal["stationary"]
    readout: Readout
    shared_weights: bool
    sampler: Literal["auto", "explicit", "law"]
    dtype: Literal["float32", "float64"]
    n_networks: int
    layers: tuple[int, ...]
    quantities: tuple[Quantity, ...]
    points: tuple[NetworkPoint, ...]

    @property
    def key(self) -> str:
        """A name of the batch's random streams, which all its points draw from."""
        return (
            f"{self.grid}|{self.mode}|{self.activation}|n{self.n_tokens}|d{self.d_model}"
            f"|L{self.depth}|{self.depth_power!r}|{self.readout}|{self.sampler}"
        )

    def factors(self) -> dict[str, Any]:
        """The factor columns that all rows of the batch share."""
        names = ("grid", "mode", "activation", "n_tokens", "d_model", "depth", "depth_power")
        return {name: getattr(self, name) for name in (*names, "readout")}

    def columns(self) -> "dict[str, np.ndarray]":
        """Field of `NetworkPoint` -> its value at every point."""
        import numpy as np  # not at the top: Snakemake reads this module at every call

        points = [asdict(point) for point in self.points]
        return {name: np.array([point[name] for point in points]) for name in points[0]}


class NetworkGrid(SettingsBlock):
    """Random networks at every combination of the lists below."""

    mode: Factor[Literal["conv", "renorm", "unit"]] = Field(
        default=["conv"],
        description="conv: skip sqrt(1 - alpha^2); renorm: LN at block outputs; unit: plain PRE-LN",
    )
    activation: Factor[Literal["tanh", "relu"]] = Field(default=["tanh"], description="of the MLP")
    n_tokens: Factor[Annotated[int, Field(ge=2, le=65536)]] = Field(description="tokens")
    d_model: Factor[Annotated[int, Field(ge=2, le=10_000_000)]] = Field(
        description="width, also that of the MLP"
    )
    depth: Factor[Depth] = Field(description="blocks, L")
    alpha_attn: Factor[Alpha] = Field(description="strength of the attention branch, at depth 1")
    alpha_ff: Factor[Alpha] | None = Field(
        default=None, description="strength of the MLP branch; null means that of attention"
    )
    depth_power: Factor[Annotated[float, Field(ge=0, le=4)]] = Field(
        default=[0.0], description="strengths are multiplied by L^-depth_power"
    )
    sigma_a: Factor[Sigma] = Field(
        default=[1.0], description="standard deviation of a logit at unit token variance"
    )
    sigma_v: Factor[Sigma] = Field(default=[1.0], description="values: entries sigma_v / sqrt(d)")
    sigma_w1: Factor[Sigma] = Field(description="first MLP matrix: entries sigma_w1 / sqrt(d)")
    sigma_w2: Factor[Sigma] | None = Field(
        default=None, description="second MLP matrix; null means that of the first"
    )
    q: Annotated[float, Field(gt=0, le=1e6)] | Literal["stationary"] = Field(
        default=1.0,
        description="token variance of the input; stationary: where equal tokens keep theirs",
    )
    rho: Factor[Annotated[float, Field(ge=-1, le=1)]] = Field(
        default=[0.0], description="cosine of every pair of input tokens"
    )
    readout: Readout = Field(
        default="none",
        description="gradient at the last layer: none, independent by token, or common to all",
    )
    layers: Literal["all", "last"] | Annotated[list[int], Field(min_length=1)] = Field(
        default="all", description="layers kept: all, last, or a list; 0 is the input"
    )
    quantities: Factor[Quantity] = Field(
        default=["q", "p", "q_minus_p"], description="what is kept of each network and layer"
    )
    n_networks: int = Field(ge=2, le=10_000_000, description="random networks of each setting")
    shared_weights: bool = Field(
        default=False,
        description="true: network k has the same weights, up to their scale, at every setting",
    )
    sampler: Literal["auto", "explicit", "law"] = Field(
        default="auto", description="how random weights are drawn; auto: the cheaper valid one"
    )
    dtype: Literal["float32", "float64"] = Field(
        default="float32", description="of the simulation; measurements are float64 always"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        lowest = -1 / (max(self.n_tokens) - 1)
        if min(self.rho) < lowest:
            raise ValueError(
                f"rho={min(self.rho)} is below -1/(n_tokens-1)={lowest:.6g}, the least correlation "
                f"that {max(self.n_tokens)} tokens can share"
            )
        if max(self.n_tokens) > min(self.d_model):
            raise ValueError(
                f"n_tokens={max(self.n_tokens)} is above d_model={min(self.d_model)}; tokens "
                "with exact inner products need at least as many dimensions"
            )
        if self.q == "stationary" and "unit" in self.mode:
            raise ValueError("q=stationary does not exist in mode=unit; give a number")
        still = 0 in self.alpha_attn and 0 in (self.alpha_ff or self.alpha_attn)
        if self.q == "stationary" and "conv" in self.mode and still:
            raise ValueError(
                "q=stationary does not exist with alpha_attn=0 and alpha_ff=0, which keep every "
                "variance; give a number, or a positive strength"
            )
        if isinstance(self.layers, list) and not 0 <= min(self.layers) <= max(self.layers) <= min(
            self.depth
        ):
            raise ValueError(f"layers={self.layers} must lie in 0 to depth={min(self.depth)}")
        if self.shared_weights and self.sampler == "law":
            raise ValueError(
                "sampler=law draws no weights to share; use sampler=auto or shared_weights=false"
            )
        for quantity in self.quantities:
            if quantity in _GRADIENTS and self.readout == "none":
                raise ValueError(
                    f"quantities={quantity} needs a gradient; use readout=independent or common"
                )
            if quantity in _DISTRIBUTIONS and self.readout != "none":
                raise ValueError(f"quantities={quantity} is measured forward; use readout=none")
        return self

    def batches(self, name: str, schemes: Mapping[str, Scheme]) -> Iterator[NetworkBatch]:
        """Every batch of the grid, in a fixed order."""
        for mode, activation, n, d, depth, power in itertools.product(
            self.mode, self.activation, self.n_tokens, self.d_model, self.depth, self.depth_power
        ):
            yield NetworkBatch(
                grid=name,
                scheme=schemes[f"cowsik_{mode}"],
                mode=mode,
                activation=activation,
                n_tokens=n,
                d_model=d,
                depth=depth,
                depth_power=power,
                q=self.q,
                readout=self.readout,
                shared_weights=self.shared_weights,
                sampler=self.sampler,
                dtype=self.dtype,
                n_networks=self.n_networks,
                layers=self._layers(depth),
                quantities=tuple(self.quantities),
                points=tuple(self._points(depth, power)),
            )

    def _layers(self, depth: int) -> tuple[int, ...]:
        if self.layers == "all":
            return tuple(range(depth + 1))
        return (depth,) if self.layers == "last" else tuple(sorted(set(self.layers)))

    def _points(self, depth: int, power: float) -> Iterator[NetworkPoint]:
        same: list[None] = [None]
        for attn, mlp, a, v, w1, w2, rho in itertools.product(
            self.alpha_attn,
            self.alpha_ff or same,
            self.sigma_a,
            self.sigma_v,
            self.sigma_w1,
            self.sigma_w2 or same,
            self.rho,
        ):
            yield NetworkPoint(
                alpha_attn=Strength(attn, power).at(depth),
                alpha_ff=Strength(attn if mlp is None else mlp, power).at(depth),
                sigma_a=a,
                sigma_v=v,
                sigma_w1=w1,
                sigma_w2=w1 if w2 is None else w2,
                rho=rho,
            )


class GeometrySettings(Experiment):
    """Grids of random networks by name."""

    # Token moments per dimension of the stream: q = mean |x_i|^2 / d, p = mean x_i.x_k / d.
    # Gradients of a loss without unit: g = mean |delta_i|^2, h = mean delta_i.delta_k. `lambda_*`:
    # theory, per block, see theory.cowsik2024.
    QUANTITIES = {
        "q": "coordinate^2",
        "p": "coordinate^2",
        "q_minus_p": "coordinate^2",
        "token_norm": "coordinate^2",
        "pair_cosine": "1",
        "g": "coordinate^-2",
        "h": "coordinate^-2",
        "g_minus_h": "coordinate^-2",
        "lambda_a": "1",
        "lambda_g": "1",
        "lambda_g_traj": "1",
        "lambda_g_star": "1",
    }
    # alpha_*: strengths at this depth. q0, rho0: of the input. item: token of `token_norm` or pair
    # of `pair_cosine` within its network, 0 for everything else. sampler: empty for theory.
    FACTORS = {
        "grid": "str",
        "mode": "str",
        "activation": "str",
        "n_tokens": "int64",
        "d_model": "int64",
        "depth": "int64",
        "depth_power": "float64",
        "readout": "str",
        "alpha_attn": "float64",
        "alpha_ff": "float64",
        "sigma_a": "float64",
        "sigma_v": "float64",
        "sigma_w1": "float64",
        "sigma_w2": "float64",
        "q0": "float64",
        "rho0": "float64",
        "sampler": "str",
        "layer": "int64",
        "item": "int64",
    }

    experiment: Literal["geometry"] = Field(default="geometry", description="kind of experiment")

    grids: dict[str, NetworkGrid] = Field(
        min_length=1, description="each grid crosses its own lists"
    )
    records: ModeRecords = Field(
        default_factory=lambda data: records_of_modes(
            {mode for grid in data["grids"].values() for mode in grid.mode}
        ),
        description=OF_RECORDS,
    )

    @property
    def design(self) -> str | None:
        stationary = any(grid.q == "stationary" for grid in self.grids.values())
        return self._module("design") if stationary else None

    def batches(self) -> Iterator[NetworkBatch]:
        """Every batch of every grid."""
        for name, grid in self.grids.items():
            yield from grid.batches(name, schemes_of(self.records))
