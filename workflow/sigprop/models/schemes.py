"""Schemes: where a block normalizes, how strong its branches are, how its weights start.

A scheme is a record, not a class hierarchy. `Scheme.sublayers` lists the two sub-layers of a block
in the order in which they are computed; `models.block.block` executes that list and the block
diagram is drawn from it. For one sub-layer with branch F and strength alpha(L) (Noci et al. 2022,
arXiv 2206.03126, section 2):

    no LN     X <- X + alpha F(X)
    POST-LN   X <- LN( X + alpha F(X) )
    PRE-LN    X <- X + alpha F( LN(X) )

The strength multiplies the branch. The skip connection is left alone, X, or with
`skip = "variance_preserving"` shrunk to sqrt(1 - alpha^2) X, so that a branch of unit variance
keeps a stream of unit variance (Cowsik et al. 2024, arXiv 2403.02579).
"""

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from sigprop.models.attention import ATTENTION_VARIANTS

Norm = Literal["none", "post", "pre"]
Init = Literal["fan_in", "xavier"]
Branch = Literal["attention", "feed_forward"]
Activation = Literal["relu", "linear", "tanh"]
Skip = Literal["unit", "variance_preserving"]
Family = Literal["q", "k", "v", "o", "ff1", "ff2"]

NORMS: tuple[Norm, ...] = ("none", "post", "pre")
INITS: tuple[Init, ...] = ("fan_in", "xavier")
ACTIVATIONS: tuple[Activation, ...] = ("relu", "linear", "tanh")
SKIPS: tuple[Skip, ...] = ("unit", "variance_preserving")
FAMILIES: tuple[Family, ...] = ("q", "k", "v", "o", "ff1", "ff2")


def check_name(argument: str, value: str, allowed: Iterable[str]) -> None:
    """Raise ValueError, with the nearest allowed name, unless `value` is one of `allowed`."""
    names = list(allowed)
    if value in names:
        return
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"{argument} {value!r} is unknown: {hint}choose from {', '.join(names)}")


@dataclass(frozen=True)
class Strength:
    """Residual strength of a branch, alpha(L) = coefficient * L**(-depth_power)."""

    coefficient: float = 1.0
    depth_power: float = 0.0

    def at(self, depth: int) -> float:
        """alpha for a stack of `depth` blocks. ValueError when depth < 1."""
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        return self.coefficient * depth**-self.depth_power

    @property
    def label(self) -> str:
        r"""TeX without dollar signs: `1`, `1/\sqrt{L}`, `L^{-0.25}`, `0.5/L`."""
        c, p = _shortest(self.coefficient), self.depth_power
        if p == 0:
            return c
        if p == 0.5:
            return rf"{c}/\sqrt{{L}}"
        if p == 1:
            return f"{c}/L"
        power = f"L^{{-{_shortest(p)}}}"
        return power if self.coefficient == 1 else rf"{c}\,{power}"


def _shortest(number: float) -> str:
    """Six digits where they say it all, else as many as tell the number from all others."""
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


@dataclass(frozen=True)
class SubLayer:
    """One residual sub-layer: X <- norm_after( skip X + strength * branch( norm_before(X) ) )."""

    branch: Branch
    strength: Strength
    norm_before: bool
    norm_after: bool
    skip: Skip = "unit"


@dataclass(frozen=True)
class Scheme:
    """Normalization placement, residual strengths, temperature and initialization of a block.

    Attributes:
        name: key used in settings and tables.
        title: name used on figures.
        norm: "none", "post" (after the residual sum) or "pre" (on the branch input).
        alpha_attn, alpha_ff: strengths of the attention and the feed-forward branch.
        tau: inverse temperature, softmax(tau / sqrt(d_k) * Q K^T); 1 is the standard.
        init: rule for the entry variances, see `variance`.
        he: double the variance of the second feed-forward matrix when the activation is ReLU, so
            that the branch keeps the power it has with the identity. Used by "fan_in" only.
        skip: coefficient of the skip connections, "unit" for 1 or "variance_preserving" for
            sqrt(1 - alpha^2), which needs 0 <= alpha <= 1.
        renorm: LN also at the output of every block, after its feed-forward sub-layer. With "post"
            that LN is there already.
        gains: (family, factor on the entry variance) pairs; families not named keep factor 1.
        attention: how queries meet keys, one of `models.attention.ATTENTION_VARIANTS`.
        variant: how this scheme differs from the record of its name, see `resolved`; empty for
            records.

    Raises ValueError for an unknown `norm`, `init`, `skip`, `attention` or family, for tau <= 0,
    for a gain that is not positive, and for a coefficient outside [0, 1] with
    "variance_preserving".
    """

    name: str
    title: str
    norm: Norm
    alpha_attn: Strength = Strength()
    alpha_ff: Strength = Strength()
    tau: float = 1.0
    init: Init = "fan_in"
    he: bool = True
    skip: Skip = "unit"
    renorm: bool = False
    gains: tuple[tuple[Family, float], ...] = ()
    attention: str = "dot_product"
    variant: str = ""

    def __post_init__(self) -> None:
        check_name("norm", self.norm, NORMS)
        check_name("init", self.init, INITS)
        if not self.tau > 0:
            raise ValueError(f"tau must be positive, got {self.tau}")
        check_name("skip", self.skip, SKIPS)
        check_name("attention", self.attention, ATTENTION_VARIANTS)
        for family, gain in self.gains:
            check_name("gains: family", family, FAMILIES)
            if not 0 < gain < math.inf:
                raise ValueError(f"gains: {family} must be positive and finite, got {gain}")
        for name in ("alpha_attn", "alpha_ff") if self.skip == "variance_preserving" else ():
            strength: Strength = getattr(self, name)
            if not 0 <= strength.coefficient <= 1 or strength.depth_power < 0:
                raise ValueError(
                    f"{name} must stay in [0, 1] for skip 'variance_preserving', got {strength}: "
                    "use skip 'unit' or a smaller coefficient"
                )

    @property
    def identity(self) -> str:
        """Name of what is run: the record's, and what was changed besides strengths and tau."""
        return self.name + self.variant

    @property
    def rule(self) -> str:
        """TeX of the strengths as functions of L; of both branches where they differ."""
        attn, ff = self.alpha_attn.label, self.alpha_ff.label
        return attn if attn == ff else rf"{attn},\,{ff}"

    @property
    def sublayers(self) -> tuple[SubLayer, SubLayer]:
        """The two sub-layers in the order of computation: attention, then feed-forward."""
        before, after = self.norm == "pre", self.norm == "post"
        return (
            SubLayer("attention", self.alpha_attn, before, after, self.skip),
            SubLayer("feed_forward", self.alpha_ff, before, after or self.renorm, self.skip),
        )

    def variance(
        self, family: str, fan_in: int, fan_out: int, activation: Activation = "relu"
    ) -> float:
        """Entry variance of the weights of `family`, a matrix (fan_in, fan_out).

            fan_in    1 / fan_in, times 2 for ff2 when `he` and the activation is ReLU
            xavier    2 / (fan_in + fan_out)

        times the gain of the family, if `gains` names it.

        q, k and v are fused over heads: fan_in = d_model and fan_out = n_heads * d_k, so that the
        rule does not depend on the number of heads. With d_k = d_v = d_ff = d_model, "fan_in" is
        the paper's rule 1 / d (Noci et al. 2022, section 2). ValueError for an unknown family.
        """
        check_name("family", family, FAMILIES)
        gain = next((factor for name, factor in self.gains if name == family), 1.0)
        if self.init == "xavier":
            return gain * 2.0 / (fan_in + fan_out)
        doubled = self.he and family == "ff2" and activation == "relu"
        return gain * (2.0 if doubled else 1.0) / fan_in


ONE = Strength()
INVERSE_SQRT_DEPTH = Strength(depth_power=0.5)

_ALL = (
    Scheme("post_ln", "POST-LN", "post", ONE, ONE),
    Scheme(
        "post_ln_scaled",
        r"POST-LN, $1/\sqrt{L}$",
        "post",
        INVERSE_SQRT_DEPTH,
        INVERSE_SQRT_DEPTH,
    ),
    Scheme("pre_ln", "PRE-LN", "pre", ONE, ONE),
    Scheme("pre_ln_scaled", r"PRE-LN, $1/\sqrt{L}$", "pre", INVERSE_SQRT_DEPTH, INVERSE_SQRT_DEPTH),
    Scheme("no_ln", "no LN", "none", ONE, ONE),
    Scheme("no_ln_scaled", r"no LN, $1/\sqrt{L}$", "none", INVERSE_SQRT_DEPTH, INVERSE_SQRT_DEPTH),
)

SCHEMES: Mapping[str, Scheme] = MappingProxyType({scheme.name: scheme for scheme in _ALL})


def resolved(
    name: str,
    strength: Strength | None = None,
    records: Mapping[str, Scheme] = SCHEMES,
    **changes: Any,
) -> Scheme:
    """The scheme that is run: the record `name` with everything that settings put in its place.

    What was run names itself. With a strength for both branches the name is that of the first
    record that is the same but for its strengths, so that equal runs have equal names; other
    changes make the `variant`. tau is not part of it: tables have it in a column of its own.

    Args:
        changes: `tau`, `init`, `he`; None keeps the record's own.
    """
    own = records[name]
    changes = {field: v for field, v in changes.items() if v not in (None, getattr(own, field))}
    if strength is not None:
        weak: dict[str, Any] = {"alpha_attn": strength, "alpha_ff": strength}
        words: dict[str, Any] = {"name": "", "title": ""}
        own = next(
            record
            for record in records.values()
            if replace(record, **weak, **words) == replace(own, **weak, **words)
        )
        changes |= weak
    told = [f", {field}={changes[field]}" for field in ("init", "he") if field in changes]
    return replace(own, variant="".join(told), **changes)
