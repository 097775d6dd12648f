"""Settings of the closed-form phase diagrams (Cowsik et al. 2024). Imports no torch."""

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from sigprop.experiments.settings import Experiment, Factor, SettingsBlock

if TYPE_CHECKING:
    import numpy as np

Alpha = Annotated[float, Field(ge=0, le=0.999)]
Sigma = Annotated[float, Field(gt=0, le=50)]
Depth = Annotated[int, Field(ge=1, le=100_000)]
Tokens = Annotated[int, Field(ge=2, le=65536)] | Literal["inf"]
Mode = Literal["conv", "renorm", "unit"]
Variant = Literal["softmax", "shaped", "centered", "deepscale", "sigma_reparam"]
ReadOut = Literal["tied", "unit"]

_PER_BLOCK = ("lambda_a", "lambda_g", "lambda_g_star", "log_angle_factor", "log_backward_radius")
_POWERS = ("power_a", "power_g")
PlaneQuantity = Literal[
    "lambda_a",
    "lambda_g",
    "lambda_g_traj",
    "lambda_g_star",
    "log_angle_factor",
    "log_backward_radius",
    "q_collapsed",
    "power_a",
    "power_g",
]


class Axis(SettingsBlock):
    """`count` evenly spaced values from `low` to `high`."""

    low: float = Field(description="first value")
    high: float = Field(description="last value")
    count: int = Field(ge=2, le=2001, description="number of values")

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low={self.low} must lie below high={self.high}")
        return self


def values(axis: Axis | list[float]) -> "np.ndarray":
    """The numbers of an axis or of a list."""
    import numpy as np  # not at the top: Snakemake reads this module at every call

    if isinstance(axis, Axis):
        return np.linspace(axis.low, axis.high, axis.count)
    return np.array(axis, dtype=np.float64)


class Strengths(Axis):
    """An axis of residual strengths. Below 1, where the angle exponent is -infinity."""

    low: Alpha = Field(description="first value")
    high: Alpha = Field(description="last value")


class Scales(Axis):
    """An axis of sigma_w."""

    low: Sigma = Field(description="first value")
    high: Sigma = Field(description="last value")


class Plane(SettingsBlock):
    """Exponents over alpha_attn x alpha_ff x sigma_w."""

    variant: Factor[Variant] = Field(
        default=["softmax"],
        description="attention or parametrization: softmax (of the paper), or a later one",
    )
    mode: Factor[Mode] = Field(default=["conv"], description="skip and normalization of the stream")
    activation: Factor[Literal["tanh", "relu"]] = Field(default=["tanh"], description="of the MLP")
    read_out: Factor[ReadOut] = Field(
        default=["tied"], description="second MLP matrix: tied, sigma_w2 = sigma_w1; unit, 1"
    )
    alpha_attn: Strengths | Factor[Alpha] = Field(description="strength of the attention branch")
    alpha_ff: Strengths | Factor[Alpha] | None = Field(
        default=None, description="strength of the MLP branch; null means that of attention"
    )
    sigma_w: Scales | Factor[Sigma] = Field(description="first MLP matrix")
    n_tokens: Annotated[int, Field(ge=2, le=65536)] = Field(
        default=32, description="tokens; lambda_a and lambda_g do not depend on it"
    )
    depth: Depth = Field(default=24, description="blocks of lambda_g_traj, from q = 1, rho = 0")
    quantities: Factor[PlaneQuantity] = Field(description="what is kept")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        wrong = _PER_BLOCK if "unit" in self.mode else _POWERS
        for quantity in self.quantities:
            if quantity in wrong or (quantity == "q_collapsed" and "unit" in self.mode):
                raise ValueError(
                    f"quantities={quantity} does not exist in mode={self.mode}; mode unit has "
                    "power_a, power_g and lambda_g_traj, the others have exponents per block"
                )
        for name in ("deepscale", "sigma_reparam"):
            if name in self.variant and (self.mode, self.read_out) != (["conv"], ["tied"]):
                raise ValueError(
                    f"variant={name} sets the second MLP matrix itself; leave mode=conv and "
                    "read_out=tied"
                )
        return self


class CriticalLine(SettingsBlock):
    """Where lambda_a = 0: sigma_w by alpha, or, with `sigma_w` given, alpha_ff by alpha_attn."""

    mode: Factor[Mode] = Field(default=["conv"], description="skip and normalization of the stream")
    read_out: Factor[ReadOut] = Field(default=["tied"], description="second MLP matrix")
    alpha: Strengths | Factor[Alpha] = Field(
        description="strength of both branches or, with sigma_w, of attention"
    )
    sigma_w: Factor[Sigma] | None = Field(
        default=None, description="MLP matrices at which alpha_ff is sought; null: seek sigma_w"
    )


class TrainableAlpha(SettingsBlock):
    """Largest alpha of both branches with depth * max(|lambda_a|, |lambda_g|) <= budget."""

    mode: Factor[Literal["conv", "renorm"]] = Field(default=["conv"], description="as for planes")
    sigma_w: Factor[Sigma] = Field(description="both MLP matrices")
    depth: Factor[Depth] = Field(description="blocks")
    budget: float = Field(default=1.0, gt=0, description="bound on depth * |lambda|")


class FixedPoints(SettingsBlock):
    """Stable simplex (q*, rho*) by sigma_w, and the sigma_w of its two transitions."""

    mode: Factor[Literal["conv", "renorm"]] = Field(default=["conv"], description="as for planes")
    alpha: Factor[Alpha] = Field(description="strength of both branches")
    sigma_w: Scales | Factor[Sigma] = Field(description="both MLP matrices")
    n_tokens: Factor[Tokens] = Field(description="tokens, or inf")


class Edges(SettingsBlock):
    """Stable rho* at the sigma_w where lambda_a has a given small value; infinitely many tokens."""

    mode: Factor[Literal["conv", "renorm"]] = Field(default=["conv"], description="as for planes")
    alpha: Factor[Alpha] = Field(description="strength of both branches")
    lambda_a: Factor[Annotated[float, Field(ge=-0.05, le=0.05)]] = Field(
        description="angle exponent, near 0"
    )


class UpdateMap(SettingsBlock):
    """rho after attention and after the whole block, by rho before it."""

    mode: Factor[Literal["conv", "renorm"]] = Field(default=["conv"], description="as for planes")
    alpha: Factor[Alpha] = Field(description="strength of both branches")
    sigma_w: Factor[Sigma] = Field(description="both MLP matrices")
    n_tokens: Factor[Tokens] = Field(description="tokens, or inf")
    n_points: int = Field(ge=3, le=2001, description="values of rho, from 0 to 1")


class Scaling(SettingsBlock):
    """DeepScaleLM: exponents at alpha^2 = k / depth with branches of unit output variance."""

    k: Factor[Annotated[float, Field(gt=0, le=100)]] = Field(description="alpha^2 * depth")
    depth: Factor[Depth] = Field(description="blocks")
    sigma_w: Factor[Sigma] = Field(description="first MLP matrix")

    @model_validator(mode="after")
    def _below_one(self) -> Self:
        if max(self.k) > 0.998 * min(self.depth):
            raise ValueError(
                f"k={max(self.k)} gives alpha near or above 1 at depth={min(self.depth)}; "
                "use k below depth"
            )
        return self


class PhasesSettings(Experiment):
    """Grids of closed forms by name; names must differ across all groups."""

    # lambda_*: per block; lambda_g: coherent mode at rho = 1, lambda_g_traj: along `depth` blocks
    # from (q, rho) = (1, 0), lambda_g_star: at the stable fixed point. log_angle_factor: of
    # (1-rho')/(1-rho) in the block's map at rho = 1; log_backward_radius: of its backward matrix
    # there. power_*: mode unit. sigma_c, alpha_ff_c: lambda_a = 0, exact or to leading order in
    # alpha^2; balance: alpha_M^2 (G - B) / (alpha_A^2 sigma_V^2) at sigma_c, 1 to leading order.
    # rho_stable_least: least rho of all stable fixed points, found by a scan; rho_star is searched
    # for from the collapsed one. sigma_orthogonal: where rho* reaches 0 at n = inf. rho_attention,
    # rho_block: after the sub-block and after the block, from `rho` and the norm q that the block
    # keeps there.
    QUANTITIES = {
        "lambda_a": "1",
        "lambda_g": "1",
        "lambda_g_traj": "1",
        "lambda_g_star": "1",
        "log_angle_factor": "1",
        "log_backward_radius": "1",
        "power_a": "1",
        "power_g": "1",
        "q_collapsed": "coordinate^2",
        "q_star": "coordinate^2",
        "rho_star": "1",
        "rho_stable_least": "1",
        "sigma_c": "1",
        "sigma_c_leading": "1",
        "balance": "1",
        "alpha_ff_c": "1",
        "alpha_ff_c_leading": "1",
        "alpha_max": "1",
        "sigma_orthogonal": "1",
        "q": "coordinate^2",
        "rho_attention": "1",
        "rho_block": "1",
    }
    # n_tokens: inf for infinitely many. depth: 0 where the quantity has none.
    FACTORS = {
        "grid": "str",
        "variant": "str",
        "mode": "str",
        "activation": "str",
        "read_out": "str",
        "n_tokens": "float64",
        "depth": "int64",
        "alpha_attn": "float64?",
        "alpha_ff": "float64?",
        "sigma_w1": "float64?",
        "sigma_w2": "float64?",
        "sigma_a": "float64",
        "sigma_v": "float64",
        "rho": "float64?",
    }
    CLOSED_FORM = True
    THEORY = False

    experiment: Literal["phases"] = Field(default="phases", description="kind of experiment")

    planes: dict[str, Plane] = Field(default={}, description="exponents over strengths and sigma_w")
    lines: dict[str, CriticalLine] = Field(default={}, description="where lambda_a = 0")
    trainable: dict[str, TrainableAlpha] = Field(default={}, description="largest alpha by depth")
    fixed_points: dict[str, FixedPoints] = Field(default={}, description="stable rho* and q*")
    edges: dict[str, Edges] = Field(default={}, description="rho* close to the transition")
    maps: dict[str, UpdateMap] = Field(default={}, description="update of rho by one block")
    scaling: dict[str, Scaling] = Field(default={}, description="exponents at alpha^2 = k / depth")

    @model_validator(mode="after")
    def _distinct_names(self) -> Self:
        groups = (self.planes, self.lines, self.trainable, self.fixed_points, self.edges)
        names = [name for group in (*groups, self.maps, self.scaling) for name in group]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{twice[0]} names two grids; give each its own name")
        if not names:
            raise ValueError(
                "no grid is given; name at least one under planes, lines, ..., scaling"
            )
        return self
