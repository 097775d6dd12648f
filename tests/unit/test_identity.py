"""What was run names itself: labels, columns, captions and verdicts under settings of one's own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sigprop.analysis import data, translation
from sigprop.artifacts.errors import UserError
from sigprop.claims.ledger import all_claims, evaluate
from sigprop.experiments.config import load
from sigprop.experiments.propagation.settings import EncoderSettings
from sigprop.experiments.reversal.settings import ReversalSettings
from sigprop.figures import depth, style
from sigprop.models.schemes import SCHEMES

Rows = Callable[..., pd.DataFrame]
EXPERIMENTS = load("laptop").experiments
HALF = [{"coefficient": 0.5, "depth_power": 0.0}]
TWO = [*HALF, {"coefficient": 0.5, "depth_power": 0.5}]


def changed(table: str, **own: Any) -> Any:
    """The settings of a table with some of one's own."""
    settings = EXPERIMENTS[table]
    return type(settings).model_validate(settings.model_dump(exclude={"records"}) | own)


def labels(table: str, **own: Any) -> set[str]:
    """What figures call the runs of a table."""
    runs = pd.DataFrame([case.factors() for case in changed(table, **own).cases()])
    return set(data.labelled(runs)["label"])


OWN: list[tuple[str, dict[str, Any], set[str]]] = [
    (
        "correlation",
        {"residual": HALF},
        {r"POST-LN, $\alpha=0.5$", r"PRE-LN, $\alpha=0.5$", r"no LN, $\alpha=0.5$"},
    ),
    (
        "moments",
        {"residual": TWO},
        {r"no LN, $\alpha=0.5$", r"no LN, $\alpha=0.5/\sqrt{L}$"},
    ),
    ("depth_limit", {"tau": 2.0}, {r"no LN, $\alpha=1/\sqrt{L}$, $\tau=2$"}),
    ("depth_limit", {"init": "xavier"}, {r"no LN, init=xavier, $\alpha=1/\sqrt{L}$"}),
    ("depth_limit", {"he": False}, {r"no LN, he=False, $\alpha=1/\sqrt{L}$"}),
    ("depth_limit", {"init": "fan_in", "he": True}, {r"no LN, $\alpha=1/\sqrt{L}$"}),
    ("depth_limit", {"scheme": "pre_ln"}, {r"PRE-LN, $\alpha=1$"}),
    ("gradients", {"scheme": "post_ln_scaled", "residual": HALF}, {r"POST-LN, $\alpha=0.5$"}),
    ("reversal_scaled", {"residual": HALF}, {r"POST-LN, $\alpha=0.5$"}),
    (
        "reversal_scaled",
        {"scheme": "pre_ln_scaled", "residual": None},
        {r"PRE-LN, $\alpha=1/\sqrt{L}$"},
    ),
    ("translation_depth", {"residual": HALF}, {r"POST-LN, Xavier, $\alpha=0.5$"}),
    ("translation_ours", {"residual": HALF}, {r"no LN, Xavier, $\alpha=0.5$"}),
]


@pytest.mark.parametrize(("table", "own", "expected"), OWN)
def test_a_label_is_what_was_run(table: str, own: dict[str, Any], expected: set[str]) -> None:
    assert labels(table, **own) == expected


@pytest.mark.parametrize(("table", "own", "expected"), OWN)
def test_no_case_is_run_twice_nor_named_after_other_strengths(
    table: str, own: dict[str, Any], expected: set[str]
) -> None:
    cases = [*changed(table, **own).cases()]
    assert len({case.key for case in cases}) == len(cases)
    for case in cases:
        factors = case.factors()
        assert not factors["scheme"].endswith("_scaled") or factors["alpha_rule"] == r"1/\sqrt{L}"


@pytest.mark.parametrize("table", EXPERIMENTS)
def test_without_settings_of_its_own_a_scheme_is_its_record(table: str) -> None:
    settings = EXPERIMENTS[table]
    if isinstance(settings, EncoderSettings | ReversalSettings) and settings.residual is None:
        for case in settings.cases():
            assert case.scheme == SCHEMES[case.scheme.name]


def test_no_two_curves_of_a_figure_are_alike() -> None:
    names = [*style.COLOUR, *(rf"no LN, $\alpha={k}$" for k in range(2, 12))]
    colours = style.colours(names)
    assert len({tuple(colour) for colour in colours.values()}) == len(names)
    assert all(colours[name] == own for name, own in style.COLOUR.items())
    with pytest.raises(UserError, match="give fewer"):
        style.lines(names)


def test_an_unknown_strength_keeps_all_its_digits() -> None:
    close = [{"coefficient": 0.5 + k * 1e-9, "depth_power": 0.0} for k in (0, 1)]
    assert len(labels("depth_limit", residual=close)) == 2


def _post_ln(rows: Rows, **factors: Any) -> pd.DataFrame:
    noise = 0.1 * np.random.default_rng(0).standard_normal((50, 20))
    distance = 0.9 * 0.7 ** np.arange(20) * np.exp(noise)
    return rows("cos_mean", 1 - np.minimum(distance, 1), [*range(20)], scheme="post_ln", **factors)


@pytest.mark.parametrize(
    "other",
    [{"alpha_rule": "0.5"}, {"tau": 2.0}, {"scheme": "post_ln, init=xavier"}],
    ids=["residual", "tau", "init"],
)
def test_a_verdict_on_unscaled_post_ln_needs_unscaled_post_ln(
    rows: Rows, other: dict[str, Any]
) -> None:
    claim = all_claims()["N17"]
    record = evaluate(claim, {"correlation": _post_ln(rows).assign(**other)}, "laptop")
    assert record.verdict == "not run"
    assert r"no POST-LN, $\alpha=1$ was run" in record.reason
    assert evaluate(claim, {"correlation": _post_ln(rows)}, "laptop").verdict == "not reproduced"
    both = pd.concat([_post_ln(rows), _post_ln(rows).assign(**other)])
    assert evaluate(claim, {"correlation": both}, "laptop").verdict == "not reproduced"


def test_a_figure_names_the_setting_that_it_cannot_draw(rows: Rows) -> None:
    mixed = pd.concat([_post_ln(rows), _post_ln(rows, activation="linear")])
    with pytest.raises(UserError, match="not activation=relu/linear"):
        data.curve(mixed, "cos_mean")
    with pytest.raises(UserError, match="attention=uniform was not run, but softmax"):
        data.need(mixed, attention="uniform")


def test_figure_3_draws_one_strength_and_refuses_other_placements(rows: Rows) -> None:
    pre = _post_ln(rows).assign(scheme="pre_ln")
    with pytest.raises(UserError, match=r"shows POST-LN with one or two strengths, not .*PRE-LN"):
        depth.correlation_and_gradients(pre, pre, pre, "post_ln")
    with pytest.raises(UserError, match="gradients of POST-LN, which were not run"):
        depth.correlation_and_gradients(_post_ln(rows), pre, pre, "post_ln")


def test_methods_of_translation_are_called_what_they_are() -> None:
    settings = {name: EXPERIMENTS[name].model_dump(mode="json") for name in translation.METHODS}
    assert translation.titles(settings) == {
        "translation_post_ln_adam": "POST-LN, Adam",
        "translation_pre_ln_adam": "PRE-LN, Adam",
        "translation_rezero": "ReZero, Adam",
        "translation_t_fixup": "T-Fixup, Adam",
        "translation_post_ln_sgd": "POST-LN, SGD",
        "translation_ours": r"no LN, $1/\sqrt{L}$, $\tau$, SGD (ours)",
    }
    settings["translation_ours"] |= {"residual": HALF}
    settings["translation_post_ln_sgd"]["training"]["optimizer"] = "adam"
    told = translation.titles(settings, plain=True)
    assert told["translation_ours"] == "no LN, 0.5, tau, SGD (ours)"
    assert told["translation_post_ln_sgd"] == "POST-LN, Adam, translation_post_ln_sgd"


OTHER: dict[str, Any] = {
    "activation": ["linear"],
    "attention": ["uniform"],
    "tau": 3.0,
    "n_tokens": 7,
    "d_model": 24,
    "n_heads": 2,
    "d_ff": 48,
    "depth": 9,
    "sigma_x": [0.7],
    "rho": 0.31,
    "r": [0.43],
}


@pytest.mark.parametrize("table", [t for t, s in EXPERIMENTS.items() if hasattr(s, "cases")])
def test_a_column_says_what_settings_of_ones_own_say(table: str) -> None:
    """Every setting that is a factor column, one at a time."""
    known = type(EXPERIMENTS[table]).model_fields.keys()
    # Entropy needs softmax, and some tables have an odd width.
    own = {
        name: v for name, v in {"quantities": "cos_mean", "d_model": 24}.items() if name in known
    }
    for name in type(EXPERIMENTS[table]).FACTORS.keys() & known & OTHER.keys():
        (wanted,) = OTHER[name] if isinstance(OTHER[name], list) else [OTHER[name]]
        for case in changed(table, **own | {name: OTHER[name]}).cases():
            assert case.factors().get(name, wanted) == wanted
            assert name in case.factors() or name == "d_model"  # a column of all rows
