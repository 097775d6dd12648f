"""Schemes are data: strengths, placements and weight variances."""

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest

from sigprop.cli.main import main
from sigprop.models import schemes
from sigprop.models.schemes import (
    FAMILIES,
    SCHEMES,
    Scheme,
    Strength,
    SubLayer,
    check_name,
    plain,
    record_of,
    resolved,
    scheme_of,
)


@pytest.mark.parametrize(
    ("strength", "depth", "value"),
    [
        (Strength(), 50, 1.0),
        (Strength(depth_power=0.5), 16, 0.25),
        (Strength(0.5), 7, 0.5),
        (Strength(2.0, 0.25), 16, 1.0),
        (Strength(3.0, 1.0), 4, 0.75),
        (Strength(3.0, 0.5, 4.0), 9, 0.5),
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
        (Strength(1.0, 0.25, 2.0), "(2L)^{-0.25}"),
        (Strength(1.0, 0.5, 8.0), r"1/\sqrt{8L}"),
        (Strength(1.0, 1.0, 3.0), "1/(3L)"),
    ],
)
def test_strength_label(strength: Strength, label: str) -> None:
    assert strength.label == label


def test_strength_needs_a_depth() -> None:
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        Strength().at(0)


def test_the_six_schemes_of_the_paper() -> None:
    for name in (
        *("post_ln", "post_ln_scaled", "pre_ln", "pre_ln_scaled", "no_ln", "no_ln_scaled"),
    ):
        scheme = SCHEMES[name]
        assert scheme.name == name
        assert scheme.norm == {"po": "post", "pr": "pre", "no": "none"}[name[:2]]
        expected = 1 / math.sqrt(12) if name.endswith("scaled") else 1.0
        assert scheme.alpha_attn.at(12) == scheme.alpha_ff.at(12) == pytest.approx(expected)


def test_constants_of_deepnorm() -> None:
    """Wang et al. 2022, table of constants, an encoder of 12 blocks: alpha and beta."""
    scheme = SCHEMES["deepnorm"]
    assert 1 / scheme.alpha_attn.at(12) == pytest.approx(2.213364, abs=5e-7)
    for family in ("v", "o", "ff1", "ff2"):
        assert scheme.gain(family, 12) ** 0.5 == pytest.approx(0.319472, abs=5e-7)
    assert scheme.gain("q", 12) == 1.0


@pytest.mark.parametrize("name", SCHEMES)
def test_a_record_is_read_back(name: str) -> None:
    scheme = SCHEMES[name]
    assert scheme_of(name, json.loads(json.dumps(record_of(scheme)))) == scheme
    assert not {"name", "title", "colour", "source", "variant"} & record_of(scheme).keys()
    assert scheme.source


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"nrm": "post"}, "key 'nrm' is unknown: did you mean 'norm'"),
        ({"alpha": 0.5}, "norm is missing: choose from none, post, pre"),
        ({"norm": "post", "alpha": "1/L"}, "coefficient must be a number, got '1/L'"),
        ({"norm": "post", "alpha": {"powr": 1}}, "key 'powr' is unknown: did you mean 'depth_p"),
        ({"norm": "post", "he": 1}, "he 1 is not allowed"),
        ({"norm": "post", "gains": {"ff3": 1}}, "gains: family 'ff3' is unknown: did you mean"),
        ({"norm": "post", "gains": 2}, "gains must be `family: factor` pairs, got 2"),
        ({"norm": "post", "decoder": {"norm": "pre"}}, "decoder: key 'norm' is unknown"),
        ({"norm": "post", "attention": "rotry"}, "attention 'rotry' is unknown: did you mean"),
        ("post", "must be `key: value` pairs, got 'post'"),
    ],
)
def test_a_bad_record_is_one_line(record: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^config/schemes.yaml: mine: {re.escape(message)}"):
        scheme_of("mine", record)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("post_ln: {norm: post", "cannot be read: while parsing"),
        ("- post_ln", "must hold `name: record` lines"),
        ("post_ln: {nrm: post}", "post_ln: key 'nrm' is unknown: did you mean 'norm'?"),
    ],
)
def test_a_bad_file_is_one_line(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "schemes.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(schemes, "FILE", tmp_path / "schemes.yaml")
    schemes._read.cache_clear()
    with pytest.raises(ValueError, match=f"^config/schemes.yaml: {re.escape(message)}"):
        len(SCHEMES)
    with pytest.raises(SystemExit, match=f"^sigprop: config/schemes.yaml: {re.escape(message)}"):
        main(["list", "schemes"])
    monkeypatch.undo()
    assert len(SCHEMES)


def test_what_was_run_is_called_what_it_is() -> None:
    assert resolved("post_ln_scaled", Strength(0.5)).name == "post_ln"
    assert resolved("rezero", Strength()).name == "residual_scaling"
    own = resolved("deepnorm", Strength())
    assert own.called(own.rule) == "DeepNorm" and own.alpha_attn == Strength()
    assert SCHEMES["deepnorm"].called("1") == "weights of DeepNorm"
    assert SCHEMES["post_ln_rotary"].called("1") == "POST-LN, rotary"
    assert plain(SCHEMES["cowsik_conv"].placement) == "PRE-LN, skip sqrt(1 - alpha^2)"
    assert plain(Strength(0.5, 0.5).label) == "0.5/sqrt(L)"
    assert plain(Strength(1.0, 0.25, 2.0).label) == "(2L)^-0.25"


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
    assert {f: scheme.variance(f, 32, 128, "linear", depth=1) for f in FAMILIES} == dict.fromkeys(
        FAMILIES, 1 / 32
    )
    relu = {f: scheme.variance(f, 32, 128, "relu", depth=1) for f in FAMILIES}
    assert relu == dict.fromkeys(FAMILIES, 1 / 32) | {"ff2": 2 / 32}
    plain = dataclasses.replace(scheme, he=False)
    assert plain.variance("ff2", 32, 128, "relu", depth=1) == 1 / 32


def test_xavier_variances_ignore_he() -> None:
    scheme = dataclasses.replace(SCHEMES["no_ln"], init="xavier")
    for family in FAMILIES:
        assert scheme.variance(family, 32, 96, "relu", depth=1) == pytest.approx(1 / 64)
        assert scheme.variance(family, 32, 32, "linear", depth=1) == pytest.approx(1 / 32)


def test_bad_values_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="norm 'pst' is unknown: did you mean 'post'"):
        Scheme("mine", "mine", "pst")
    with pytest.raises(ValueError, match="init 'xaver' is unknown: did you mean 'xavier'"):
        Scheme("mine", "mine", "post", init="xaver")
    with pytest.raises(ValueError, match=r"tau must be positive, got 0\.0"):
        Scheme("mine", "mine", "post", tau=0.0)
    with pytest.raises(ValueError, match="family 'ff3' is unknown: did you mean 'ff"):
        SCHEMES["no_ln"].variance("ff3", 8, 8, depth=1)
    with pytest.raises(ValueError, match="scheme 'zzz' is unknown: choose from post_ln, pre_ln"):
        check_name("scheme", "zzz", ["post_ln", "pre_ln"])


def test_schemes_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SCHEMES["no_ln"].tau = 2.0
    with pytest.raises(TypeError):
        SCHEMES["new"] = SCHEMES["no_ln"]
