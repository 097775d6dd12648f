"""Settings of the experiments on random encoders, forward and backward. Imports no torch."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from sigprop.experiments.schemes import OfSchemes, Residual, SchemeName
from sigprop.experiments.settings import Factor
from sigprop.models.attention import ATTENTION_VARIANTS, check_head_size
from sigprop.models.schemes import Scheme, resolved


@dataclass(frozen=True)
class EncoderCase:
    """One point of the sweep: everything that fixes the law of one batch of random networks."""

    scheme: Scheme
    activation: Literal["relu", "linear"]
    attention: Literal["softmax", "uniform"]
    weights: Literal["gaussian", "uniform"]
    sampler: Literal["auto", "explicit", "law"]
    n_tokens: int
    d_model: int
    n_heads: int
    d_ff: int
    depth: int
    sigma_x: float
    rho: float
    n_networks: int

    @property
    def key(self) -> str:
        """A name that is the same for the same physics, whatever else the sweep holds."""
        return (
            f"{self.scheme.name}|{self.scheme.alpha_attn.key}|{self.scheme.alpha_ff.key}|tau{self.scheme.tau!r}|{self.scheme.init}"
            f"|he{self.scheme.he}|{self.activation}|{self.attention}|{self.weights}|{self.sampler}"
            f"|n{self.n_tokens}|d{self.d_model}|h{self.n_heads}|f{self.d_ff}|L{self.depth}"
            f"|sx{self.sigma_x!r}|rho{self.rho!r}"
        )

    def shape(self) -> dict[str, Any]:
        """The arguments of the `EncoderConfig` of this case's networks."""
        return {
            "n_tokens": self.n_tokens,
            "d_model": self.d_model,
            "depth": self.depth,
            "n_heads": self.n_heads,
            "d_ff": self.d_ff,
            "activation": self.activation,
            "attention": self.attention,
            "distribution": self.weights,
        }

    def factors(self) -> dict[str, Any]:
        """The factor columns of this case's rows (the sampler is added by the experiment)."""
        return {
            "scheme": self.scheme.identity,
            "alpha_rule": self.scheme.rule,
            "alpha_attn": self.scheme.alpha_attn.at(self.depth),
            "alpha_ff": self.scheme.alpha_ff.at(self.depth),
            "activation": self.activation,
            "attention": self.attention,
            "tau": self.scheme.tau,
            "n_tokens": self.n_tokens,
            "d_model": self.d_model,
            "n_heads": self.n_heads,
            "d_ff": self.d_ff,
            "depth": self.depth,
            "sigma_x": self.sigma_x,
            "rho": self.rho,
        }


class EncoderSettings(OfSchemes):
    """A sweep over random encoders: the product of all the lists below."""

    scheme: Factor[SchemeName] = Field(description="block schemes, see `sigprop list schemes`")
    activation: Factor[Literal["relu", "linear"]] = Field(description="of the feed-forward")
    attention: Factor[Literal["softmax", "uniform"]] = Field(
        description="softmax: the real thing; uniform: every weight 1/n (Assumption 3.1)"
    )
    tau: float | None = Field(
        default=None,
        gt=0,
        le=1e3,
        description="inverse temperature in the softmax; null: each scheme's own",
    )
    init: Literal["fan_in", "xavier"] | None = Field(
        default=None,
        description="weight variances: 1/fan_in, or 2/(fan_in + fan_out); null: each scheme's own",
    )
    he: bool | None = Field(
        default=None,
        description="fan_in only: double the variance after a ReLU (He et al. 2015); null: each "
        "scheme's own",
    )
    weights: Literal["gaussian", "uniform"] = Field(
        default="gaussian", description="distribution of the entries; uniform needs explicit draws"
    )
    sampler: Factor[Literal["auto", "explicit", "law"]] = Field(
        default=["auto"], description="how random weights are drawn; auto: the cheaper valid one"
    )
    n_tokens: int = Field(ge=2, le=65536, description="tokens in a sequence")
    d_model: Factor[Annotated[int, Field(ge=2, le=10_000_000)]] = Field(description="width")
    n_heads: int = Field(default=1, ge=1, le=1024, description="attention heads, divides d_model")
    d_ff: int | None = Field(
        default=None, ge=1, description="hidden width of the feed-forward; null means d_model"
    )
    depth: Factor[Annotated[int, Field(ge=1, le=100_000)]] = Field(description="blocks, L")
    sigma_x: Factor[Annotated[float, Field(gt=0, le=1e6)] | Literal["1/sqrt(d)"]] = Field(
        description="standard deviation of an input coordinate, or the word 1/sqrt(d)"
    )
    rho: float = Field(
        ge=-1, le=1, description="correlation of two input tokens, in [-1/(n_tokens-1), 1]"
    )
    n_networks: int = Field(ge=2, le=10_000_000, description="random networks of each case")
    network_width_cap: int | None = Field(
        default=None,
        ge=1,
        description="upper limit of n_networks * d_model; at least 8 networks are kept",
    )
    dtype: Literal["float32", "float64"] = Field(
        default="float32", description="of the simulation; measurements are float64 always"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for width in self.d_model:
            if width % self.n_heads:
                raise ValueError(
                    f"n_heads={self.n_heads} does not divide d_model={width}; choose a divisor"
                )
        lowest = -1 / (self.n_tokens - 1)
        if self.rho < lowest:
            raise ValueError(
                f"rho={self.rho} is below -1/(n_tokens-1)={lowest:.6g}, the least correlation "
                f"that {self.n_tokens} tokens can share"
            )
        if self.weights != "gaussian" and "law" in self.sampler:
            raise ValueError(
                f"sampler=law needs weights=gaussian, not {self.weights}; use sampler=explicit"
            )
        schemes = self.schemes
        for variant in {schemes[name].attention for name in self.scheme}:
            for width in self.d_model:
                check_head_size(variant, width // self.n_heads)
            if "law" in self.sampler and ATTENTION_VARIANTS[variant].missing("gram"):
                raise ValueError(
                    f"sampler=law does not draw the features that attention {variant!r} of a "
                    "scheme needs; use sampler=explicit or auto"
                )
        return self

    def cases(self) -> Iterator[EncoderCase]:
        """Every case of the sweep, once, in a fixed order.

        Schemes that differ by their strengths alone are one and the same with a `residual`.
        """
        residuals: list[Residual | None] = [None] if self.residual is None else [*self.residual]
        seen: set[str] = set()
        records = self.schemes
        for (
            name,
            residual,
            activation,
            attention,
            sampler,
            width,
            depth,
            sigma,
        ) in itertools.product(
            self.scheme,
            residuals,
            self.activation,
            self.attention,
            self.sampler,
            self.d_model,
            self.depth,
            self.sigma_x,
        ):
            strength = None if residual is None else residual.strength()
            scheme = resolved(name, strength, records, tau=self.tau, init=self.init, he=self.he)
            networks = self.n_networks
            if self.network_width_cap is not None:
                networks = min(networks, max(8, self.network_width_cap // width))
            case = EncoderCase(
                scheme=scheme,
                activation=activation,
                attention=attention,
                weights=self.weights,
                sampler=sampler,
                n_tokens=self.n_tokens,
                d_model=width,
                n_heads=self.n_heads,
                d_ff=width if self.d_ff is None else self.d_ff,
                depth=depth,
                sigma_x=width**-0.5 if sigma == "1/sqrt(d)" else float(sigma),
                rho=self.rho,
                n_networks=networks,
            )
            if case.key not in seen:
                seen.add(case.key)
                yield case


class PropagationSettings(EncoderSettings):
    """A sweep of forward passes: which encoders, and what is kept of them."""

    # quantity -> unit. Lengths are in units of one embedding coordinate.
    QUANTITIES = {
        "cos_mean": "1",
        "rho_ratio": "1",
        "sum_sq_norm": "coordinate^2",
        "sum_inner": "coordinate^2",
        "rank_residual": "1",
        "attention_entropy": "nat",
        "cos_mean_limit": "1",
        "rho_ratio_limit": "1",
        "collapse_exponent": "1",
    }
    FACTORS = {
        "scheme": "str",
        "alpha_rule": "str",
        "alpha_attn": "float64",
        "alpha_ff": "float64",
        "activation": "str",
        "attention": "str",
        "tau": "float64",
        "n_tokens": "int64",
        "d_model": "int64",
        "n_heads": "int64",
        "d_ff": "int64",
        "depth": "int64",
        "sigma_x": "float64",
        "rho": "float64",
        "sampler": "str",
        "layer": "int64",
    }

    experiment: Literal["propagation"] = Field(
        default="propagation", description="kind of experiment"
    )

    fixed_input: bool = Field(
        default=False, description="true: one input for all networks; false: one each"
    )
    record: int | Literal["all", "last"] = Field(
        default="all", description="layers kept: all, last, or this many evenly spaced"
    )
    quantities: Factor[
        Literal["cos_mean", "sum_sq_norm", "sum_inner", "rank_residual", "attention_entropy"]
    ] = Field(description="what is measured at each kept layer")

    @model_validator(mode="after")
    def _kept(self) -> Self:
        if "attention_entropy" in self.quantities and set(self.attention) == {"uniform"}:
            raise ValueError(
                "quantities=attention_entropy needs softmax attention; the entropy of uniform "
                "attention is ln(n_tokens) by definition"
            )
        if isinstance(self.record, int) and self.record < 2:
            raise ValueError(f"record={self.record} is too few; use 'last' or a number >= 2")
        return self

    def layers(self, depth: int) -> list[int]:
        """The layers to keep: 0 is the input, `depth` the last block's output."""
        if self.record == "all":
            return list(range(depth + 1))
        if self.record == "last":
            return [depth]
        count = min(self.record, depth + 1)
        return sorted({round(k * depth / (count - 1)) for k in range(count)})
