"""Schemes: where a block normalizes, how strong its branches are, how its weights start.

A scheme is a record, not a class hierarchy; the records are in config/schemes.yaml.
`Scheme.sublayers` lists the two sub-layers of a block in the order in which they are computed;
`models.block.block` executes that list and the block diagram is drawn from it. For one sub-layer
with branch F and strength alpha(L) (Noci et al. 2022, arXiv 2206.03126, section 2):

    no LN     X <- X + alpha F(X)
    POST-LN   X <- LN( X + alpha F(X) )
    PRE-LN    X <- X + alpha F( LN(X) )

The strength multiplies the branch. The skip connection is left alone, X, or with
`skip = "variance_preserving"` shrunk to sqrt(1 - alpha^2) X, so that a branch of unit variance
keeps a stream of unit variance (Cowsik et al. 2024, arXiv 2403.02579).

Settings and figures read this module, so it imports no torch.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from sigprop.models.attention import ATTENTION_VARIANTS

Norm = Literal["none", "post", "pre"]
Init = Literal["fan_in", "xavier"]
Branch = Literal["attention", "cross_attention", "feed_forward"]
Activation = Literal["relu", "linear", "tanh"]
Skip = Literal["unit", "variance_preserving"]
Family = Literal["q", "k", "v", "o", "ff1", "ff2"]

NORMS: tuple[Norm, ...] = ("none", "post", "pre")
INITS: tuple[Init, ...] = ("fan_in", "xavier")
ACTIVATIONS: tuple[Activation, ...] = ("relu", "linear", "tanh")
SKIPS: tuple[Skip, ...] = ("unit", "variance_preserving")
FAMILIES: tuple[Family, ...] = ("q", "k", "v", "o", "ff1", "ff2")

CROSS = "cross_"  # prefix of the families of cross-attention

FILE = Path(__file__).resolve().parents[3] / "config" / "schemes.yaml"


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
    """A function of depth, coefficient * (depth_factor L)**(-depth_power): of a branch, a gain."""

    coefficient: float = 1.0
    depth_power: float = 0.0
    depth_factor: float = 1.0

    def at(self, depth: int) -> float:
        """Its value for a stack of `depth` blocks. ValueError when depth < 1."""
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        return self.coefficient * (self.depth_factor * depth) ** -self.depth_power

    @property
    def key(self) -> str:
        """Part of the name of a random stream."""
        factor = "" if self.depth_factor == 1 else f"({self.depth_factor!r}L)"
        return f"{self.coefficient!r},{factor}{self.depth_power!r}"

    @property
    def label(self) -> str:
        r"""TeX without dollar signs: `1`, `1/\sqrt{L}`, `L^{-0.25}`, `(2L)^{-0.25}`, `0.5/L`."""
        c, p = _shortest(self.coefficient), self.depth_power
        depth = "L" if self.depth_factor == 1 else rf"{_shortest(self.depth_factor)}L"
        if p == 0:
            return c
        if p == 0.5:
            return rf"{c}/\sqrt{{{depth}}}"
        if p == 1:
            return f"{c}/{depth}" if depth == "L" else f"{c}/({depth})"
        power = f"{depth if depth == 'L' else f'({depth})'}^{{-{_shortest(p)}}}"
        return power if self.coefficient == 1 else rf"{c}\,{power}"


ONE = Strength()


def plain(tex: str) -> str:
    """A label without TeX: `1/sqrt(L)`, `0.5 L^-0.25`."""
    tex = tex.replace(r"\sqrt{1-\alpha^2}", "sqrt(1 - alpha^2)").replace(r"\,", " ")
    tex = re.sub(r"\\sqrt\{(\d*L)\}", r"sqrt(\1)", tex)
    return re.sub(r"[${}\\]", "", tex)


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


# Of a field that names or shows a scheme and has no part in what it computes.
_WORDS = {"words": True}


@dataclass(frozen=True)
class Scheme:
    """Normalization placement, residual strengths, temperature and initialization of a block.

    Attributes:
        name: key used in settings and tables.
        title: name used on figures for the record as it stands; empty takes `placement`.
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
            Numbers, or functions of the depth of the stack.
        attention: how queries meet keys, one of `models.attention.ATTENTION_VARIANTS`.
        train_strengths: alpha of every layer and branch is a parameter, in networks that train.
        decoder_gains: `gains` of the decoder of a translation model; None takes the same.
        embedding_gain: factor on the embeddings of a translation model, a function of the
            decoder's depth.
        variant: how this scheme differs from the record of its name, see `resolved`; empty for
            records.
        colour: place in seaborn's palette "colorblind"; None has no colour of its own.
        source: where it was published.

    Raises ValueError for an unknown `norm`, `init`, `skip`, `attention` or family, for tau <= 0,
    for a gain that is not positive, and for a coefficient outside [0, 1] with
    "variance_preserving".
    """

    name: str = field(metadata=_WORDS)
    title: str = field(compare=False, metadata=_WORDS)
    norm: Norm
    alpha_attn: Strength = ONE
    alpha_ff: Strength = ONE
    tau: float = 1.0
    init: Init = "fan_in"
    he: bool = True
    skip: Skip = "unit"
    renorm: bool = False
    gains: tuple[tuple[Family, float | Strength], ...] = ()
    attention: str = "dot_product"
    train_strengths: bool = False
    decoder_gains: tuple[tuple[Family, float | Strength], ...] | None = None
    embedding_gain: Strength = ONE
    variant: str = field(default="", metadata=_WORDS)
    colour: int | None = field(default=None, compare=False, metadata=_WORDS)
    source: str = field(default="", compare=False, metadata=_WORDS)

    def __post_init__(self) -> None:
        check_name("norm", self.norm, NORMS)
        check_name("init", self.init, INITS)
        if not self.tau > 0:
            raise ValueError(f"tau must be positive, got {self.tau}")
        check_name("skip", self.skip, SKIPS)
        check_name("attention", self.attention, ATTENTION_VARIANTS)
        for family, gain in (*self.gains, *(self.decoder_gains or ())):
            check_name("gains: family", family, FAMILIES)
            if not 0 < _strength(gain).coefficient < math.inf:
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
    def placement(self) -> str:
        """What the block is apart from its strengths and weights, in TeX: `PRE-LN, QK-norm`."""
        words = [{"none": "no LN", "post": "POST-LN", "pre": "PRE-LN"}[self.norm]]
        if self.skip == "variance_preserving":
            words.append(r"skip $\sqrt{1-\alpha^2}$")
        if self.renorm and self.norm != "post":
            words.append("LN at block outputs")
        words += filter(None, [ATTENTION_VARIANTS[self.attention].title])
        return ", ".join(words)

    @property
    def rule(self) -> str:
        """TeX of the strengths as functions of L; of both branches where they differ."""
        attn, ff = self.alpha_attn.label, self.alpha_ff.label
        return attn if attn == ff else rf"{attn},\,{ff}"

    def called(self, rule: str) -> str:
        """Its name on figures when its strengths are `rule`, its own or others."""
        if self.title:
            return self.title if rule == self.rule else f"weights of {self.title}"
        start = {"xavier": "Xavier", "fan_in": "" if self.he else "without He"}[self.init]
        return ", ".join(filter(None, [self.placement, start]))

    @property
    def sublayers(self) -> tuple[SubLayer, SubLayer]:
        """The two sub-layers in the order of computation: attention, then feed-forward."""
        before, after = self.norm == "pre", self.norm == "post"
        return (
            SubLayer("attention", self.alpha_attn, before, after, self.skip),
            SubLayer("feed_forward", self.alpha_ff, before, after or self.renorm, self.skip),
        )

    @property
    def decoder_sublayers(self) -> tuple[SubLayer, SubLayer, SubLayer]:
        """Those of a decoder: cross-attention is placed and scaled like self-attention."""
        attention, feed_forward = self.sublayers
        return (attention, replace(attention, branch="cross_attention"), feed_forward)

    @property
    def decoder(self) -> "Scheme":
        """The scheme of a decoder."""
        return self if self.decoder_gains is None else replace(self, gains=self.decoder_gains)

    def gain(self, family: str, depth: int) -> float:
        """Factor on the entry variance of a family in a stack of `depth` blocks."""
        check_name("family", family, FAMILIES)
        return next((_strength(gain).at(depth) for name, gain in self.gains if name == family), 1.0)

    def variance(
        self, family: str, fan_in: int, fan_out: int, activation: Activation = "relu", *, depth: int
    ) -> float:
        """Entry variance of the weights of `family`, a matrix (fan_in, fan_out).

            fan_in    1 / fan_in, times 2 for ff2 when `he` and the activation is ReLU
            xavier    2 / (fan_in + fan_out)

        times the gain of the family at this depth, if `gains` names it.

        q, k and v are fused over heads: fan_in = d_model and fan_out = n_heads * d_k, so that the
        rule does not depend on the number of heads. With d_k = d_v = d_ff = d_model, "fan_in" is
        the paper's rule 1 / d (Noci et al. 2022, section 2). ValueError for an unknown family.
        """
        gain = self.gain(family, depth)
        if self.init == "xavier":
            return gain * 2.0 / (fan_in + fan_out)
        doubled = self.he and family == "ff2" and activation == "relu"
        return gain * (2.0 if doubled else 1.0) / fan_in


def _strength(value: Any) -> Strength:
    """A number, a mapping or a `Strength` as a `Strength`; ValueError for anything else."""
    if isinstance(value, Strength):
        return value
    given = value if isinstance(value, Mapping) else {"coefficient": value}
    for key, number in given.items():
        check_name("key", key, [f.name for f in fields(Strength)])
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError(f"{key} must be a number, got {number!r}")
    return Strength(**{key: float(number) for key, number in given.items()})


def _gains(value: Any) -> tuple[tuple[Family, Strength], ...]:
    if not isinstance(value, Mapping):
        raise ValueError(f"gains must be `family: factor` pairs, got {value!r}")
    return tuple((family, _strength(gain)) for family, gain in value.items())


def _same(value: Any) -> Any:
    return value


_READ: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("alpha_attn", "alpha_ff", "embedding_gain"), _strength),
    **dict.fromkeys(("gains", "decoder_gains"), _gains),
}
_TYPES = {"tau": (int, float), "he": bool, "renorm": bool, "train_strengths": bool, "colour": int}


def scheme_of(name: str, record: Any) -> Scheme:
    """The scheme of a record, as config/schemes.yaml or `record_of` writes it.

    Raises ValueError that names the record and the key for one that does not fit.
    """
    try:
        if not isinstance(record, Mapping):
            raise ValueError(f"must be `key: value` pairs, got {record!r}")
        given = dict(record)
        if "alpha" in given:
            both = given.pop("alpha")
            given = {"alpha_attn": both, "alpha_ff": both} | given
        if isinstance(decoder := given.pop("decoder", None), Mapping):
            for key in decoder:
                check_name("decoder: key", key, ["gains"])
            given["decoder_gains"] = decoder.get("gains")
        known = [f.name for f in fields(Scheme) if f.name not in ("name", "variant")]
        for key, value in given.items():
            check_name("key", key, [*known, "alpha", "decoder"])
            wanted: Any = _TYPES.get(key, object if key in _READ else str)
            if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
                raise ValueError(f"{key} {value!r} is not allowed")
        if "norm" not in given:
            raise ValueError(f"norm is missing: choose from {', '.join(NORMS)}")
        read: dict[str, Any] = {"title": ""}
        read |= {key: _READ.get(key, _same)(value) for key, value in given.items()}
        return Scheme(name, **read)
    except ValueError as error:
        raise ValueError(f"config/schemes.yaml: {name}: {error}") from error


def record_of(scheme: Scheme) -> dict[str, Any]:
    """What a scheme computes, as plain JSON that `scheme_of` reads; no names, titles or colours."""
    kept = {f.name: f for f in fields(scheme) if not f.metadata.get("words")}
    plain = {name: getattr(scheme, name) for name in kept}
    for name in ("gains", "decoder_gains"):
        if plain[name] is not None:
            plain[name] = {family: _plain(_strength(gain)) for family, gain in plain[name]}
    for name in ("alpha_attn", "alpha_ff", "embedding_gain"):
        plain[name] = _plain(plain[name])
    return {
        name: value
        for name, value in plain.items()
        if kept[name].default is MISSING or getattr(scheme, name) != kept[name].default
    }


def _plain(strength: Strength) -> dict[str, float]:
    return {key: number for key, number in asdict(strength).items() if number != getattr(ONE, key)}


class _Records(Mapping[str, Scheme]):
    """The records of config/schemes.yaml, read when first asked for."""

    def __getitem__(self, name: str) -> Scheme:
        return _read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_read())

    def __len__(self) -> int:
        return len(_read())


@cache
def _read() -> dict[str, Scheme]:
    import yaml

    try:
        records = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"config/schemes.yaml: cannot be read: {said}") from error
    if not isinstance(records, dict):
        raise ValueError("config/schemes.yaml: must hold `name: record` lines")
    return {str(name): scheme_of(str(name), record) for name, record in records.items()}


SCHEMES: Mapping[str, Scheme] = _Records()


def placed_like(scheme: Scheme, records: Mapping[str, Scheme] | None = None) -> Scheme:
    """The first record that is the same but for its strengths."""
    return next(each for each in (records or SCHEMES).values() if _bare(each) == _bare(scheme))


def _bare(scheme: Scheme) -> Scheme:
    return replace(scheme, name="", title="", alpha_attn=ONE, alpha_ff=ONE)


def resolved(
    name: str,
    strength: Strength | None = None,
    records: Mapping[str, Scheme] | None = None,
    **changes: Any,
) -> Scheme:
    """The scheme that is run: the record `name` with everything that settings put in its place.

    What was run names itself. With a strength for both branches the name is that of the first
    record that is the same but for its strengths, so that equal runs have equal names; other
    changes make the `variant`. tau is not part of it: tables have it in a column of its own.

    Args:
        records: None for those of config/schemes.yaml.
        changes: `tau`, `init`, `he`; None keeps the record's own.
    """
    own = (records or SCHEMES)[name]
    changes = {key: v for key, v in changes.items() if v not in (None, getattr(own, key))}
    if strength is not None:
        own = placed_like(own, records)
        changes |= {"alpha_attn": strength, "alpha_ff": strength}
    told = [f", {key}={changes[key]}" for key in ("init", "he") if key in changes]
    return replace(own, variant="".join(told), **changes)
