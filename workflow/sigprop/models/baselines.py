"""Recipes: how the blocks of a translation model normalize, scale their branches and start.

A recipe is a record: a scheme (`models.schemes`), whether the strengths are trained, and factors
on the initial weights for initializations that depend on depth. Optimizer, learning rate and the
schedule of tau belong to training, so one recipe serves with Adam and with SGD.

The starting weights are those of the common toolkit for this task (fairseq): Xavier, with half
the variance for queries, keys and values, and embeddings N(0, 1/d). Weights are Gaussian here,
uniform there. Which strengths and initial weights Noci et al. used beyond 1/sqrt(L) is not known.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from sigprop.models.schemes import ONE, SCHEMES, Family, Scheme, Strength

# Families whose initial weights `encoder_gain` and `decoder_gain` multiply.
SCALED_FAMILIES: tuple[Family, ...] = ("v", "o", "ff1", "ff2")

_HALF_QKV: tuple[tuple[Family, float], ...] = (("q", 0.5), ("k", 0.5), ("v", 0.5))


@dataclass(frozen=True)
class Recipe:
    """One way to build an encoder-decoder.

    Attributes:
        name: key used in settings and tables.
        title: name used on figures.
        scheme: placement of LN, strengths at initialization, tau, variances of the weights.
        train_strengths: alpha of every layer and branch is a parameter.
        encoder_gain, decoder_gain: factors on the initial v, o, ff1 and ff2 weights of each stack,
            as functions of that stack's depth N. The factor is on weights, not on variances.
        embedding_gain: factor on all embeddings, a function of the decoder's depth.
    """

    name: str
    title: str
    scheme: Scheme
    train_strengths: bool = False
    encoder_gain: Strength = ONE
    decoder_gain: Strength = ONE
    embedding_gain: Strength = ONE


def _xavier(name: str, *, halved: bool = True) -> Scheme:
    return replace(SCHEMES[name], init="xavier", gains=_HALF_QKV if halved else ())


_NINE_N = Strength(9**-0.25, 0.25)  # (9 N)^(-1/4)
_ZERO = Strength(0.0)

_ALL = (
    Recipe("post_ln", "POST-LN", _xavier("post_ln")),
    Recipe("pre_ln", "PRE-LN", _xavier("pre_ln")),
    # Noci et al. 2022, arXiv 2206.03126: no LN, alpha = 1/sqrt(L) at the start, then trained.
    Recipe("residual_scaling", r"no LN, $1/\sqrt{L}$, trained", _xavier("no_ln_scaled"), True),
    # Bachlechner et al. 2021, arXiv 2003.04887: X + a F(X), a = 0 at the start, here one a per
    # layer and branch.
    Recipe(
        "rezero",
        "ReZero",
        replace(_xavier("no_ln"), name="rezero", title="ReZero", alpha_attn=_ZERO, alpha_ff=_ZERO),
        True,
    ),
    # Huang et al. 2020, "Improving Transformer Optimization Through Better Initialization".
    Recipe(
        "t_fixup",
        "T-Fixup",
        _xavier("no_ln", halved=False),
        encoder_gain=Strength(0.67, 0.25),
        decoder_gain=_NINE_N,
        embedding_gain=_NINE_N,
    ),
)

RECIPES: Mapping[str, Recipe] = MappingProxyType({recipe.name: recipe for recipe in _ALL})
