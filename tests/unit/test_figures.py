"""Statistics, data access, scaling fits, the look, and the block diagram."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sigprop.analysis import data, scaling, stats
from sigprop.artifacts.errors import UserError
from sigprop.artifacts.tables import write_table
from sigprop.cli import main as cli
from sigprop.experiments.frames import schema
from sigprop.experiments.propagation.settings import PropagationSettings
from sigprop.figures import diagram, style
from sigprop.models.attention import ATTENTION_VARIANTS
from sigprop.models.schemes import SCHEMES

SCHEMA = schema(PropagationSettings)

Rows = Callable[..., pd.DataFrame]


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


# ---------------------------------------------------------------- stats


def test_bootstrap_mean_is_the_mean_with_the_normal_interval() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 2000)
    mean, low, high = stats.bootstrap_mean(values)
    error = values.std(ddof=1) / 2000**0.5
    assert mean == pytest.approx(values.mean(), rel=1e-12)
    # The quantiles of 2000 draws have a relative standard error of about 3 %.
    np.testing.assert_allclose([mean - low, high - mean], 1.96 * error, rtol=0.12)


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    """500 samples of 100 networks: coverage 0.95, standard error 0.0097."""
    values = np.random.default_rng(1).normal(0.0, 1.0, (100, 500))
    _, low, high = stats.bootstrap_mean(values)
    assert 0.95 - 0.035 < np.mean((low <= 0) & (high >= 0)) < 0.95 + 0.035


def test_whole_networks_are_resampled() -> None:
    values = np.random.default_rng(2).normal(size=(30, 1))
    mean, low, high = stats.bootstrap_mean(np.concatenate([values, 2 * values, -values], axis=1))
    assert low[1] == pytest.approx(2 * low[0]) and low[2] == pytest.approx(-high[0])
    assert mean.shape == low.shape == high.shape == (3,)


def test_a_lower_level_gives_a_narrower_interval_and_the_seed_decides() -> None:
    values = np.random.default_rng(3).normal(size=50)
    _, low, high = stats.bootstrap_mean(values)
    _, inner_low, inner_high = stats.bootstrap_mean(values, level=0.5)
    assert low < inner_low < inner_high < high
    assert stats.bootstrap_mean(values) == stats.bootstrap_mean(values)
    assert stats.bootstrap_mean(values)[1] != stats.bootstrap_mean(values, seed=1)[1]


def test_bootstrap_ratio_is_a_ratio_of_sums_with_the_delta_interval() -> None:
    rng = np.random.default_rng(4)
    bottom = rng.uniform(1, 3, 3000)
    top = 0.5 * bottom + rng.normal(0, 0.3, 3000)
    ratio, low, high = stats.bootstrap_ratio(top, bottom)
    error = (top - ratio * bottom).std(ddof=1) / bottom.mean() / 3000**0.5
    assert ratio == pytest.approx(top.sum() / bottom.sum(), rel=1e-12)
    np.testing.assert_allclose([ratio - low, high - ratio], 1.96 * error, rtol=0.12)
    exact = stats.bootstrap_ratio(3 * bottom, bottom)
    np.testing.assert_allclose(exact, 3.0, rtol=1e-12)


def test_one_network_has_no_interval() -> None:
    with pytest.raises(ValueError, match="1 network"):
        stats.bootstrap_mean(np.ones((1, 3)))
    with pytest.raises(ValueError, match="must agree"):
        stats.bootstrap_ratio(np.ones(3), np.ones(4))


# ---------------------------------------------------------------- data


def test_networks_are_sorted_by_layer(rows: Rows) -> None:
    table = rows("cos_mean", [[1, 2, 3], [4, 5, 6]], [0, 2, 10]).iloc[::-1]
    layers, values = data.networks(table, "cos_mean")
    np.testing.assert_array_equal(layers, [0, 2, 10])
    np.testing.assert_array_equal(values, [[1, 2, 3], [4, 5, 6]])


def test_networks_of_several_settings_or_none_are_refused(rows: Rows) -> None:
    one, other = (rows("cos_mean", [[1.0], [2.0]], [4], scheme=s) for s in ("no_ln", "post_ln"))
    for table, quantity in ((pd.concat([one, other]), "cos_mean"), (one, "sum_inner")):
        with pytest.raises(
            ValueError, match=r"not scheme=no_ln/post_ln|quantity=sum_inner was not run"
        ):
            data.networks(table, quantity)


def test_choose_takes_floats_to_rounding_and_words_exactly(rows: Rows) -> None:
    table = rows("cos_mean", [[1.0, 2.0]] * 2, [0, 4], alpha_attn=200**-0.5)
    assert len(data.choose(table, alpha_attn=1 / np.sqrt(200))) == 4
    assert len(data.choose(table, alpha_attn=200**-0.5 + 1e-6)) == 0
    assert len(data.choose(table, layer=4, scheme="no_ln")) == 2
    assert len(data.choose(table, scheme="no_l")) == 0


def test_groups_keep_the_order_of_the_table(rows: Rows) -> None:
    frames = [rows("cos_mean", [[1.0]], [4], scheme=s) for s in ("pre_ln", "no_ln", "post_ln")]
    names = [key for (key,), _ in data.groups(pd.concat(frames), "scheme")]
    assert names == ["pre_ln", "no_ln", "post_ln"]


def test_a_curve_is_the_mean_over_networks_beside_theory(rows: Rows) -> None:
    values = np.random.default_rng(5).normal([0.2, 0.6], 0.05, (40, 2))
    theory = rows("cos_mean", [0.6, 0.2], [4, 0], source="theory")
    curve = data.curve(pd.concat([rows("cos_mean", values, [0, 4]), theory]), "cos_mean")
    np.testing.assert_allclose(curve.mean, values.mean(0))
    assert (curve.low < curve.mean).all() and (curve.mean < curve.high).all()
    assert curve.n_networks == 40
    np.testing.assert_array_equal(curve.theory_layer, [0, 4])
    np.testing.assert_array_equal(curve.theory, [0.2, 0.6])


def test_the_curve_of_a_ratio_comes_from_the_sums(rows: Rows) -> None:
    t = np.array([[1.0], [3.0]])
    c = np.array([[2.0], [30.0]])
    table = pd.concat([rows("sum_sq_norm", t, [4]), rows("sum_inner", c, [4])])
    curve = data.curve(table, "rho_ratio")
    assert curve.mean == pytest.approx([28 / (15 * 4)])  # (C - T) / ((n - 1) T), n = 16
    assert curve.low == pytest.approx([1 / 15]) and curve.high == pytest.approx([27 / 45])


def test_the_complement_turns_the_band_over(rows: Rows) -> None:
    curve = data.curve(rows("cos_mean", [[0.2], [0.6]], [4]), "cos_mean")
    turned = data.complement(curve)
    assert turned.mean == pytest.approx(1 - curve.mean)
    assert turned.low == pytest.approx(1 - curve.high) and (turned.low <= turned.high).all()


def test_sizes_in_words(rows: Rows) -> None:
    narrow = rows("cos_mean", [[0.1]] * 3, [4])
    wide = rows("cos_mean", [[0.1]] * 8, [4], d_model=64, sampler="explicit")
    assert data.sizes(narrow) == "n = 16, d = 32, rho = 0.1, 3 networks (law sampling)"
    assert data.sizes(pd.concat([narrow, wide])) == (
        "n = 16, d = 32 to 64, rho = 0.1, 3 to 8 networks (explicit and law sampling)"
    )


def test_theory_at_is_one_value_or_an_error(rows: Rows) -> None:
    table = rows("cos_mean", [0.25, 0.5], [1, 4], source="theory")
    assert data.theory_at(table, "cos_mean", 4) == 0.5
    for wrong in (table, pd.concat([table, table])):
        with pytest.raises(ValueError, match="theory rows, expected 1"):
            data.theory_at(wrong, "cos_mean", 4 if len(wrong) > 2 else 3)


def test_tables_are_found_from_any_folder(
    rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = rows("cos_mean", [[0.1]] * 2, [4])
    theory = rows("cos_mean", [0.1], [4], source="theory")
    write_table(simulated, tmp_path / "d/deep.parquet", SCHEMA, {})
    write_table(theory, tmp_path / "d/deep_theory.parquet", SCHEMA, {})
    tables = {name: f"d/{name}.parquet" for name in ("deep", "deep_theory")}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(data, "code_root", lambda: tmp_path)
    for folder in (tmp_path, tmp_path / "elsewhere"):
        monkeypatch.chdir(folder)
        assert len(data.load(tables, "deep")) == 3
    with pytest.raises(UserError, match="no such table"):
        data.load({"deep": "d/no.parquet"}, "deep")


# ---------------------------------------------------------------- scaling


def _by_width(rows: Rows, widths: list[int], power: float, networks: int = 400) -> pd.DataFrame:
    """Deviations from theory 0.5 with rms and mean that fall like d^power."""
    rng = np.random.default_rng(6)
    frames = []
    for width in widths:
        noise = rng.normal(0, 0.1 * width**power, (networks, 1))
        values = 0.5 + noise - noise.mean() + 0.05 * width**power
        frames.append(rows("cos_mean", values, [4], d_model=width))
        frames.append(rows("cos_mean", [0.5], [4], d_model=width, source="theory"))
    return pd.concat(frames)


def test_deviation_by_width_is_rms_and_mean_with_intervals(rows: Rows) -> None:
    points = scaling.deviation_by_width(_by_width(rows, [1000, 10, 100], -0.5), "cos_mean")
    assert list(points["width"]) == [10, 100, 1000]
    width = points["width"].to_numpy()
    np.testing.assert_allclose(points["rms"], np.sqrt(0.1**2 + 0.05**2) / width**0.5, rtol=0.1)
    np.testing.assert_allclose(points["bias"], 0.05 / width**0.5, rtol=1e-9)
    for name in ("rms", "bias"):
        assert (points[f"{name}_low"] < points[name]).all()
        assert (points[name] < points[f"{name}_high"]).all()
    assert (points["n_networks"] == 400).all()


def test_a_mean_that_may_be_zero_is_an_upper_limit(rows: Rows) -> None:
    values = [[0.4], [0.6], [0.45], [0.55]]
    table = pd.concat(
        [rows("cos_mean", values, [4]), rows("cos_mean", [0.5], [4], source="theory")]
    )
    (point,) = scaling.deviation_by_width(table, "cos_mean").to_dict("records")
    assert point["bias_low"] == 0.0 < point["bias_high"]


@given(st.floats(-3, 3), st.floats(0.1, 10))
def test_power_law_recovers_an_exact_law(exponent: float, factor: float) -> None:
    width = np.array([10, 40, 90, 1000])
    value = factor * width**exponent
    points = pd.DataFrame(
        {"width": width, "rms": value, "rms_low": 0.9 * value, "rms_high": 1.1 * value}
    )
    fit = scaling.power_law(points, "rms", from_width=10)
    assert fit.exponent == pytest.approx(exponent, abs=1e-9) and fit.n_points == 4
    assert fit.high - fit.low < 1e-6
    np.testing.assert_allclose(fit.y, factor * fit.x**exponent, rtol=1e-9)


def test_the_interval_of_an_exponent_covers_it() -> None:
    """300 fits with 10 % noise: coverage 0.95, standard error 0.0126."""
    rng = np.random.default_rng(7)
    width = np.geomspace(10, 1e5, 8).round()
    hits = 0
    for _ in range(300):
        value = width**-0.5 * np.exp(0.1 * rng.standard_normal(8))
        points = pd.DataFrame({"width": width, "y": value})
        fit = scaling.power_law(
            points.assign(y_low=value / 1.2, y_high=value * 1.2), "y", from_width=1
        )
        hits += fit.low <= -0.5 <= fit.high
    assert 0.95 - 0.045 < hits / 300 < 0.95 + 0.045


def test_power_law_uses_resolved_widths_only_and_needs_three() -> None:
    points = pd.DataFrame({"width": [10, 100, 1000], "rms": [1.0, 0.1, 0.01]})
    points = points.assign(rms_low=[0.9, 0.0, 0.009], rms_high=points["rms"] * 1.1)
    fit = scaling.power_law(points, "rms", from_width=1)
    assert np.isnan([fit.exponent, fit.low, fit.high]).all() and fit.n_points == 2


def test_power_law_leaves_out_widths_near_the_number_of_tokens() -> None:
    points = pd.DataFrame({"width": [10, 100, 1000, 10000], "rms": [9.0, 1.0, 0.1, 0.01]})
    points = points.assign(rms_low=points["rms"] * 0.9, rms_high=points["rms"] * 1.1)
    fit = scaling.power_law(points, "rms")
    assert fit.exponent == pytest.approx(-1) and fit.n_points == 3


def test_points_and_upper_limits_are_drawn_apart() -> None:
    points = pd.DataFrame({"width": [10, 100], "rms": [1.0, 0.1]})
    points = points.assign(rms_low=[0.9, 0.0], rms_high=[1.1, 0.3])
    ax = plt.figure().add_subplot()
    style.draw_points(ax, points, "rms", "k", filled=True, label="x")
    limits = next(line for line in ax.lines if line.get_marker() == "v")
    assert (list(limits.get_xdata()), list(limits.get_ydata())) == ([100], [0.3])


def test_holm_against_a_worked_example() -> None:
    # Four tests, factors 4, 3, 2, 1, kept monotone: 0.005*4, 0.01*3, max(0.03, 0.03*2), 0.06.
    adjusted = scaling.holm(np.array([0.01, 0.04, 0.03, 0.005]))
    np.testing.assert_allclose(adjusted, [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(scaling.holm(np.array([0.9, 0.8])), [1.0, 1.0])


@pytest.mark.parametrize(("gap", "same"), [(0.0, True), (0.5, False)])
def test_samplers_are_compared_at_the_last_layer(rows: Rows, gap: float, same: bool) -> None:
    rng = np.random.default_rng(8)
    frames = [
        rows("cos_mean", rng.normal(off, 1, (500, 2)), [0, depth], depth=depth, sampler=sampler)
        for depth in (2, 4)
        for sampler, off in (("explicit", 0.0), ("law", gap))
    ]
    tests = scaling.compare_samplers(pd.concat(frames))
    assert list(tests["depth"]) == [2, 4] and (tests["networks"] == 500).all()
    assert (tests["Holm p"] >= tests["p"]).all()
    assert (tests["Holm p"] > 0.001).all() if same else (tests["Holm p"] < 1e-6).all()


# ---------------------------------------------------------------- style


def _save(folder: Path, name: str, **options: str) -> str:
    figure, axes = style.panels(1, 2)
    axes[0].plot([0, 1], [0, 1])
    style.letter(axes)
    style.save(figure, str(folder / name), note="A note.", **options)
    return figure.get_supxlabel()


def test_save_writes_pdf_and_png_and_nothing_else(tmp_path: Path) -> None:
    footer = _save(tmp_path, "a")
    assert footer == "A note."
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pdf", "a.png"]
    with Image.open(tmp_path / "a.png") as image:
        assert image.width > 800 and len(image.convert("L").getcolors()) > 10
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")


def test_a_smaller_run_says_so_in_the_footer(tmp_path: Path) -> None:
    footer = _save(tmp_path, "a", preset="smoke", scaled_down="n_networks 500 → 8")
    words = " ".join(footer.split())
    assert "Scaled down (smoke preset; paper preset → here): n_networks 500 → 8." in words
    _save(tmp_path, "b")
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "b.png").read_bytes()


def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    digests = []
    for name in ("a", "b"):
        _save(tmp_path, name)
        files = [tmp_path / f"{name}{suffix}" for suffix in (".pdf", ".png")]
        digests.append([hashlib.sha256(file.read_bytes()).hexdigest() for file in files])
    assert digests[0] == digests[1]


def test_an_unwritable_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"a\.pdf: cannot write there"):
        _save(tmp_path / "file", "a")


def test_simulation_is_solid_with_a_band_and_theory_dashed(rows: Rows) -> None:
    theory = rows("cos_mean", [0.1, 0.5], [0, 4], source="theory")
    table = pd.concat([rows("cos_mean", [[0.1, 0.4], [0.2, 0.6]], [0, 4]), theory])
    ax = plt.figure().add_subplot()
    style.draw_curve(ax, data.curve(table, "cos_mean"), "k")
    assert [line.get_linestyle() for line in ax.lines] == ["-", "--"]
    assert len(ax.collections) == 1
    np.testing.assert_allclose(ax.lines[1].get_ydata(), [0.1, 0.5])


def test_the_legend_says_what_dashed_means() -> None:
    ax = plt.figure().add_subplot()
    style.legend(ax, {"$L=4$": "k"})
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["$L=4$", "simulation, 95 % band", "theory"]


def test_panels_are_lettered_at_the_left() -> None:
    _, axes = style.panels(1, 2)
    axes[1].set(title="Norm")
    style.letter(axes)
    assert [ax.get_title(loc="left") for ax in axes] == ["a  ", "b  Norm"]
    assert [ax.get_title() for ax in axes] == ["", ""]


# ---------------------------------------------------------------- diagram


@pytest.fixture
def records(tmp_path: Path) -> dict:
    cli.main(["list", "schemes", "--output", str(tmp_path / "schemes.json")])
    return diagram.load(str(tmp_path / "schemes.json"))


def _texts(record: dict) -> list[str]:
    """Words of the diagram from bottom to top."""
    ax = plt.figure().add_subplot()
    diagram.draw_block(ax, record)
    texts = sorted(ax.texts, key=lambda text: text.get_position()[1])
    return [text.get_text() for text in texts]


@pytest.mark.parametrize("name", SCHEMES)
def test_the_diagram_shows_what_the_record_says(name: str, records: dict) -> None:
    words = _texts(records[name])
    scheme = SCHEMES[name]
    drawn = [w.split("\n")[0] for w in words if w == "LN" or w.startswith(("attention", "feed"))]
    one = {"none": "{}", "pre": "LN {}", "post": "{} LN"}[scheme.norm]
    expected = " ".join(one.format(branch) for branch in ("attention", "feed-forward"))
    assert " ".join(drawn) == expected + (" LN" if scheme.renorm else "")
    skips = [w for w in words if r"\sqrt{1-\alpha" in w]
    assert len(skips) == (2 if scheme.skip == "variance_preserving" else 0)
    attention = ATTENTION_VARIANTS[scheme.attention].title
    assert sum("tau" in w and attention in w for w in words) == 1
    strengths = [w for w in words if "alpha" in w and w not in skips]
    for index, (word, sub) in enumerate(zip(strengths, scheme.sublayers, strict=True), start=1):
        assert word == rf"$\times\ \alpha_{index}={sub.strength.label}$"
    assert words[0] == "$X^{l}$" and words[-1] == "$X^{l+1}$"


def test_a_strength_that_settings_decide_is_its_symbol(records: dict) -> None:
    record = json.loads(json.dumps(records["cowsik_conv"]))
    record["sublayers"][0]["strength"] = ""
    assert r"$\times\ \alpha_1$" in _texts(record)


def test_another_record_gives_another_diagram(records: dict) -> None:
    record = json.loads(json.dumps(records["pre_ln"]))
    record["tau"] = 0.5
    record["sublayers"].reverse()
    words = " ".join(_texts(record))
    assert r"$\tau=0.5$" in words and words.index("feed-forward") < words.index("attention")


def test_labels_of_the_diagram_can_be_drawn(records: dict, tmp_path: Path) -> None:
    """A TeX error shows only when the text is laid out."""
    figure, axes = style.panels(1, len(records))
    for ax, record in zip(axes, records.values(), strict=True):
        diagram.draw_block(ax, record)
    style.save(figure, os.fspath(tmp_path / "all"), note="")
