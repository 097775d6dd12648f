"""Figures F3 to F5, F7 and F11: what their panels draw and what their tables say."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb

from sigprop.analysis import data, geometry, geometry_tables
from sigprop.experiments.config import load
from sigprop.experiments.context import Context, chosen
from sigprop.experiments.geometry import simulation
from sigprop.experiments.geometry import theory as geometry_theory
from sigprop.experiments.phases import theory as phases
from sigprop.figures import geometry_panels
from sigprop.figures.geometry_panels import CHAOTIC, ORDERED

Tables = dict[str, pd.DataFrame]


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def tables() -> Tables:
    """The tables of the smoke preset, simulation and theory as one."""
    experiments = load("smoke").experiments
    made = {"phases": phases.run(experiments["phases"], Context("phases", 1))}
    for name in ("", "_phases", "_exponents", "_gradients", "_fixed_points", "_distributions"):
        settings = experiments["geometry" + name]
        design = chosen(settings)
        context = Context("geometry" + name, 1, design=design)
        parts = [module.run(settings, context) for module in (simulation, geometry_theory)]
        made["geometry" + name] = pd.concat(parts, ignore_index=True)
    return made


def rows_of(quantity: str, layers: list[int], values: Any, source: str) -> pd.DataFrame:
    """values (networks, layers), or (layers,) of theory."""
    values = np.atleast_2d(values)
    seed, layer = (index.reshape(-1) for index in np.indices(values.shape))
    frame = pd.DataFrame({"seed": seed, "layer": np.array(layers)[layer], "value": values.ravel()})
    return frame.assign(quantity=quantity, source=source)


# ---------------------------------------------------------------- exponents


def test_the_late_angle_exponent_is_the_growth_over_the_last_blocks() -> None:
    """Theory falls at .3 a block, simulation at .25; both fall faster before that."""
    layers = [0, 2, 10]
    spread = np.exp([0.1, -0.1])[:, None] / np.cosh(0.1)
    parts = [
        rows_of("q", layers, np.full((2, 3), 2.0), "simulation"),
        rows_of("q_minus_p", layers, spread * [9.0, 1.0, np.exp(-2.0)], "simulation"),
        rows_of("q", layers, [1.0, 2.0, 4.0], "theory"),
        rows_of("q_minus_p", layers, [9.0, 2.0, 4.0 * np.exp(-2.4)], "theory"),
    ]
    found = geometry.late_angle_exponent(pd.concat(parts), blocks=8)
    assert found.theory == pytest.approx(-0.3)
    assert found.value == pytest.approx(-0.25)
    assert found.n_networks == 2
    with pytest.raises(ValueError, match="layers 7 and 10 of theory"):
        geometry.late_angle_exponent(pd.concat(parts), blocks=3)


def test_from_the_simplex_the_ordered_phase_shows_lambda_a(tables: Tables) -> None:
    """Theory's own rate over the last blocks of a long stack is lambda_a."""
    settings = load("smoke").experiments["geometry"]
    long = settings.model_copy(
        update={"grids": {"ordered": settings.grids["ordered"].model_copy(update={"depth": [60]})}}
    )
    made = [m.run(long, Context("geometry", 1)) for m in (simulation, geometry_theory)]
    rows = pd.concat(made, ignore_index=True)
    expected = data.choose(rows, quantity="lambda_a", source="theory")["value"].item()
    assert geometry.late_angle_exponent(rows).theory == pytest.approx(expected, abs=1e-4)


def test_the_spread_over_pairs_is_taken_within_each_network() -> None:
    cosines = np.array([[0.0, 0.2], [0.5, 0.9]])  # two pairs of two networks, far apart
    parts = [
        rows_of("pair_cosine", [4], [[first], [second]], "simulation")
        for first, second in cosines.T
    ]
    layer, spread, low, high = geometry.pair_spread(pd.concat(parts))
    each = np.array([0.2, 0.4]) / np.sqrt(2)
    assert layer.tolist() == [4.0]
    assert spread == pytest.approx([each.mean()])
    assert low == pytest.approx([each.min()]) and high == pytest.approx([each.max()])


# ---------------------------------------------------------------- tables


def test_a_table_has_a_row_for_each_setting(tables: Tables) -> None:
    wide = tables["geometry_exponents"]
    table = geometry_tables.exponents(wide, geometry.angle_exponent, "lambda_a", "lambda_a")
    counts = table["setting"].value_counts()
    assert set(counts.index) == set(wide["grid"])
    assert counts["width"] == 4 and counts["tokens"] == 2 and counts["logit_scale"] == 3
    np.testing.assert_allclose(table["deviation"], table["simulation"] - table["theory"], atol=2e-4)
    assert (table["low"] < table["simulation"]).all() and (
        table["simulation"] < table["high"]
    ).all()
    one = table[table["setting"] == "ordered"].iloc[0]
    found = geometry.angle_exponent(data.choose(wide, grid="ordered"))
    assert one["theory"] == pytest.approx(found.theory, abs=6e-5)
    assert (one["n_tokens"], one["d_model"], one["networks"]) == (4, 128, 8)


def test_settings_without_the_exponent_have_no_row(tables: Tables) -> None:
    wide = tables["geometry_exponents"]
    gradients = geometry_tables.exponents(
        data.choose(wide, readout="common"), geometry.gradient_exponent, "lambda_g", "lambda_g"
    )
    assert not {"width", "tokens"} & set(gradients["setting"])
    with pytest.raises(ValueError, match="nothing: no setting has theory of lambda_z"):
        geometry_tables.exponents(wide, geometry.angle_exponent, "lambda_z", "nothing")


# ---------------------------------------------------------------- panels


def titles(figure: Any) -> list[str]:
    return [ax.get_title(loc="left") for ax in figure.axes if ax.get_title(loc="left")]


def colours(ax: Any) -> list[tuple[float, ...]]:
    """Of the points with intervals."""
    return [to_rgb(bars.lines[0].get_color()) for bars in ax.containers]


def test_angle_exponents(tables: Tables) -> None:
    grid = data.choose(tables["geometry_phases"], grid="conv")
    wide = tables["geometry_exponents"]
    figure = geometry_panels.angle_exponents(tables["phases"], grid, wide, tables["geometry"])
    assert [title[0] for title in titles(figure)] == list("abcd")
    # the settings one by one, attention alone at three strengths, three from the simplex
    found = colours(figure.axes[2])
    assert len(found) == len(geometry.SETTINGS) + 3 + 3
    assert found.count(to_rgb(CHAOTIC)) == 4 and found.count(to_rgb(ORDERED)) == 11
    # 2 widths of 2 settings, 2 numbers of tokens, 3 logit scales
    assert len(figure.axes[3].containers) == 4 + 2 + 3
    words = [tick.get_text() for tick in figure.axes[3].get_xticklabels()]
    assert words == ["$d=64$", "$d=128$", "$n=4$", "$n=8$"] + [
        rf"$\sigma_A={size:g}$" for size in (0.5, 1.0, 4.0)
    ]
    assert not figure.axes[0].texts


def test_a_plane_in_one_phase_says_so(tables: Tables) -> None:
    plane = tables["phases"]
    one_phase = plane[(plane["grid"] != "diagonal") | (plane["sigma_w1"] < 1.7)]
    grid = data.choose(tables["geometry_phases"], grid="conv")
    wide = tables["geometry_exponents"]
    figure = geometry_panels.angle_exponents(one_phase, grid, wide, tables["geometry"])
    for ax in figure.axes[:2]:
        assert [text.get_text() for text in ax.texts] == ["no critical line here"]


def test_gradient_exponents(tables: Tables) -> None:
    grid = data.choose(tables["geometry_phases"], grid="conv")
    names = ("geometry_exponents", "geometry_gradients")
    wide, backward = (tables[name] for name in names)
    plane = tables["phases"].assign(depth=8)  # as many blocks as the networks have
    figure = geometry_panels.gradient_exponents(plane, grid, wide, backward)
    assert [title[0] for title in titles(figure)] == list("abcd")
    # colours are phases, not signs of lambda_g, which is never negative
    found = colours(figure.axes[2])
    assert found.count(to_rgb(CHAOTIC)) == 4 and found.count(to_rgb(ORDERED)) == 5
    # ordered and chaotic have equal strengths, sigma_A = 1, conv and tanh
    scatters = [c for c in figure.axes[3].collections if isinstance(c, PathCollection)]
    points = [c.get_offsets().tolist() for c in scatters]
    assert points == [[[1.2, 0.5]], [[2.5, 0.5]]]
    other = geometry_panels.gradient_exponents(tables["phases"], grid, wide, backward)
    assert not any(isinstance(c, PathCollection) for c in other.axes[3].collections)


def test_paths(tables: Tables) -> None:
    figure = geometry_panels.paths(tables["geometry"])
    assert [title[0] for title in titles(figure)] == list("abcdefghi")
    for ax in figure.axes[:6]:  # three settings, simulation and theory
        assert len(ax.lines) == 6
    # two depths, simulation and theory, and the stack of another strength: all from 0 to 1
    assert [len(ax.lines) for ax in figure.axes[6:]] == [5, 5, 8]
    for ax in figure.axes[6:]:
        for line in ax.lines:
            assert line.get_xdata()[0] == 0 and line.get_xdata()[-1] == 1
    legend = [text.get_text() for text in figure.axes[7].get_legend().get_texts()]
    assert legend == ["$L=4$", "$L=8$", r"$\alpha=0.5$"]


def test_ends(tables: Tables) -> None:
    names = ("geometry_fixed_points", "geometry_distributions", "phases")
    figure = geometry_panels.ends(*(tables[name] for name in names))
    assert [title[0] for title in titles(figure)] == list("abcdef")
    ticks = [line for line in figure.axes[0].lines if line.get_marker() == "|"]
    stable = data.choose(tables["phases"], grid="simplex")
    for line, alpha in zip(ticks[::2], (0.3, 0.5, 0.7), strict=True):
        edge = data.choose(stable, quantity="sigma_c", alpha_attn=alpha)["value"]
        assert line.get_xdata().tolist() == edge.tolist() and line.get_ydata().tolist() == [1.0]
    end = ticks[3].get_xdata()  # alpha = .5, where rho* reaches 0
    assert end == pytest.approx([2.823], abs=1e-3)
