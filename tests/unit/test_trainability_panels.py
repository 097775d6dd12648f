"""What the panels of final losses show, read back from the drawn artists."""

from collections.abc import Iterator

import made_up_trainability
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from sigprop.analysis import trainability as fit
from sigprop.figures import style
from sigprop.figures import trainability_panels as panels


@pytest.fixture(autouse=True)
def close() -> Iterator[None]:
    yield
    plt.close("all")


def made_up(name: str, mode: str = "conv", depth: int = 16) -> pd.DataFrame:
    table = made_up_trainability.trainability()[name]
    return fit.configurations(table, mode=mode, depth=depth)


def test_maps_show_every_loss_and_both_lines() -> None:
    grid = made_up("train_grid")
    figure = panels.loss_maps({"conv": grid, "unit": made_up("train_unit", "unit")})
    conv, unit = figure.axes[:2]
    shown = conv.images[0].get_array()
    assert shown is not None and shown.shape == (6, 7)
    for i, alpha in enumerate(sorted(set(grid["alpha_attn"]))):
        row = grid[grid["alpha_attn"] == alpha].sort_values("sigma_w")["test_loss"]
        np.testing.assert_allclose(shown[i], row)
    lines = [len(ax.collections) for ax in (conv, unit)]
    assert lines == [2, 0]  # mode unit has no exponents
    legend = figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == [
        r"$\lambda_a=0$",
        r"$L\lambda_g=7$",
    ]


def test_the_line_of_lambda_a_lies_where_theory_changes_sign() -> None:
    """In the made-up theory lambda_a = 0 does not depend on alpha: (sigma_w - 0.8)^2 / 2 = 1.1."""
    _, ax = style.panels(1, 1)
    panels.draw_loss_map(ax, made_up("train_grid"))
    x = ax.collections[0].get_paths()[0].vertices[:, 0]
    sigma_w = np.interp(x, range(7), [0.6, 1, 1.5, 1.9, 2.4, 3, 4])
    assert np.ptp(sigma_w) < 1e-6 and sigma_w[0] == pytest.approx(0.8 + np.sqrt(2.2), abs=0.05)


def test_bars_are_the_regressions() -> None:
    grid, points = made_up("train_grid"), made_up("train_lhs")
    figure = panels.exponents_predict(grid, points, made_up("train_edge"))
    y = fit.losses(points)
    for ax, expected in (
        (figure.axes[2], fit.predict_neighbours(fit.features(points, "both"), y)),
        (
            figure.axes[3],
            fit.predict_transfer(
                fit.features(grid, "both"), fit.losses(grid), fit.features(points, "both")
            ),
        ),
    ):
        bar = ax.patches[0].get_width()  # type: ignore[attr-defined]  # a Rectangle
        assert bar == pytest.approx(fit.r_squared(y, expected).value)
    assert len(figure.axes[0].collections) == 3  # every design in the plane


def test_depth_curves_show_every_seed_and_their_median() -> None:
    table = made_up_trainability.trainability()["train_depth"]
    again = table[table["source"] == "simulation"].assign(seed=1)
    again["value"] += 0.5
    both = fit.trainings(pd.concat([table, again], ignore_index=True), mode="conv", depth=8)
    one = fit.configurations(table, mode="conv", depth=8).sort_values("alpha_attn")
    assert [*both["seed"]] == [0] * len(one) + [1] * len(one)
    _, axes = style.panels(1, 2)
    panels.draw_depths(axes[0], axes[1], [both])
    points, median = axes[0].lines[:2]
    assert len(points.get_ydata()) == 2 * len(one)
    np.testing.assert_allclose(median.get_ydata(), one["test_loss"] + 0.25)


def test_depth_curves_meet_against_the_exponent() -> None:
    _, axes = style.panels(1, 2)
    designs = [made_up("train_depth", depth=depth) for depth in (8, 16, 32)]
    colours = panels.draw_depths(axes[0], axes[1], designs)
    assert list(colours) == [8, 16, 32]
    for ax, column in zip(axes, ("alpha_attn", "l_a"), strict=True):
        for line, points in zip(ax.lines[::2], designs, strict=False):  # then its median
            np.testing.assert_allclose(np.sort(line.get_xdata()), np.sort(points[column]))
