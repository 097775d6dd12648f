"""Schemes are data: strengths, placements and weight variances."""

import dataclasses
import math

import pytest

from sigprop.models.schemes import (
    FAMILIES,
    SCHEMES,
    Scheme,
    Strength,
    SubLayer,
    check_name,
)


@pytest.mark.parametrize(
    ("strength", "depth", "value"),
    [
        (Strength(), 50, 1.0),
        (Strength(depth_power=0.5), 16, 0.25),
        (Strength(0.5), 7, 0.5),
        (Strength(2.0, 0.25), 16, 1.0),
        (Strength(3.0, 1.0), 4, 0.75),
    ],
)
def test_strength_as_a_function_of_depth(strength: Strength, depth: int, value: float) -> None:
    assert strength.at(depth) == pytest.approx(value, rel=1e-14)


@pytest.mark.parametrize(
    ("strength", "label"),
    [
        (Strength(), "1"),
        (Strength(0.5), "0.5"),
        (Strength(depth_power=0.5), r"1/\sqrt{L}"),
        (Strength(0.5, 0.5), r"0.5/\sqrt{L}"),
        (Strength(depth_power=0.25), "L^{-0.25}"),
        (Strength(2, 0.25), r"2\,L^{-0.25}"),
        (Strength(depth_power=1), "1/L"),
    ],
)
def test_strength_label(strength: Strength, label: str) -> None:
    assert strength.label == label


def test_strength_needs_a_depth() -> None:
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        Strength().at(0)


def test_the_six_schemes() -> None:
    assert list(SCHEMES) == [
        "post_ln",
        "post_ln_scaled",
        "pre_ln",
        "pre_ln_scaled",
        "no_ln",
        "no_ln_scaled",
    ]
    for name, scheme in SCHEMES.items():
        assert scheme.name == name
        assert scheme.norm == {"po": "post", "pr": "pre", "no": "none"}[name[:2]]
        expected = 1 / math.sqrt(12) if name.endswith("scaled") else 1.0
        assert scheme.alpha_attn.at(12) == scheme.alpha_ff.at(12) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("norm", "before", "after"),
    [("none", False, False), ("pre", True, False), ("post", False, True)],
)
def test_sublayers_place_the_norms(norm: str, before: bool, after: bool) -> None:
    attn, ff = Strength(0.3), Strength(0.7, 0.5)
    scheme = Scheme("mine", "mine", norm, attn, ff)
    assert scheme.sublayers == (
        SubLayer("attention", attn, before, after),
        SubLayer("feed_forward", ff, before, after),
    )


def test_fan_in_variances() -> None:
    scheme = SCHEMES["no_ln"]
    assert {f: scheme.variance(f, 32, 128, "linear") for f in FAMILIES} == dict.fromkeys(
        FAMILIES, 1 / 32
    )
    relu = {f: scheme.variance(f, 32, 128, "relu") for f in FAMILIES}
    assert relu == dict.fromkeys(FAMILIES, 1 / 32) | {"ff2": 2 / 32}
    plain = dataclasses.replace(scheme, he=False)
    assert plain.variance("ff2", 32, 128, "relu") == 1 / 32


def test_xavier_variances_ignore_he() -> None:
    scheme = dataclasses.replace(SCHEMES["no_ln"], init="xavier")
    for family in FAMILIES:
        assert scheme.variance(family, 32, 96, "relu") == pytest.approx(1 / 64)
        assert scheme.variance(family, 32, 32, "linear") == pytest.approx(1 / 32)


def test_bad_values_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="norm 'pst' is unknown: did you mean 'post'"):
        Scheme("mine", "mine", "pst")
    with pytest.raises(ValueError, match="init 'xaver' is unknown: did you mean 'xavier'"):
        Scheme("mine", "mine", "post", init="xaver")
    with pytest.raises(ValueError, match=r"tau must be positive, got 0\.0"):
        Scheme("mine", "mine", "post", tau=0.0)
    with pytest.raises(ValueError, match="family 'ff3' is unknown: did you mean 'ff"):
        SCHEMES["no_ln"].variance("ff3", 8, 8)
    with pytest.raises(ValueError, match="scheme 'zzz' is unknown: choose from post_ln, pre_ln"):
        check_name("scheme", "zzz", ["post_ln", "pre_ln"])


def test_schemes_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SCHEMES["no_ln"].tau = 2.0
    with pytest.raises(TypeError):
        SCHEMES["new"] = SCHEMES["no_ln"]
