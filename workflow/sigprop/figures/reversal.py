"""The panels of Figures 5 and 6: digit reversal, and the steps that Adam takes on it."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sigprop.analysis import data, training
from sigprop.analysis.stats import Array
from sigprop.figures import style


def learning(unscaled: pd.DataFrame, scaled: pd.DataFrame, depths: pd.DataFrame) -> Figure:
    """Six panels.

    a, b: loss and accuracy by step, of the first table. c, d: cosine of tokens and ratio of query
    to value gradients by layer at initialization. e, f: steps until solved against r and against
    depth. UserError when the first table has several strengths.
    """
    figure, axes = style.panels(2, 3)
    unscaled, scaled, depths = (data.labelled(table) for table in (unscaled, scaled, depths))
    everything = pd.concat([unscaled, scaled]).drop_duplicates()
    first = data.words(unscaled["label"])
    colours = style.shades(everything["r"])
    for (r,), rows in data.groups(unscaled, "r"):
        for ax, quantity in zip(axes[0, :2], ("loss", "accuracy"), strict=True):
            curve = training.mean_curve(*training.by_step(rows, quantity))
            style.draw_curve(ax, curve, colours[r])
    axes[0, 0].axhline(np.log(10), color="0.5", lw=0.8)
    axes[0, 0].set(title=f"Test loss, {first}", xlabel="step", ylabel="loss / nat")
    axes[0, 1].set(title=f"Test accuracy, {first}", xlabel="step", ylabel="accuracy")

    lines = style.lines(everything["label"])
    for (label, r), rows in data.groups(everything, "label", "r"):
        _draw_start(axes[0, 2], axes[1, 0], rows, colours[r], lines[label])
    axes[0, 2].set(title="Tokens at initialization", xlabel="layer", ylabel="mean cosine")
    axes[1, 0].set(title="Gradients at initialization", xlabel="layer", yscale="log")
    axes[1, 0].set(ylabel=r"$\|\nabla W^Q\|^2 / \|\nabla W^V\|^2$")

    other = everything[everything["label"].isin([*set(depths["label"])])]
    both = pd.concat([depths, other[other["r"] == 0]])
    _draw_all_times(axes[1, 1], everything, "r")
    _draw_all_times(axes[1, 2], both, "depth")
    axes[1, 1].set(title="Steps to 99 % accuracy", xlabel="$r$")
    axes[1, 2].set(title="Steps to 99 %, $r=0$", xlabel="depth $L$")
    style.letter(axes.flat)
    style.legend(
        figure,
        {f"$r={r:g}$": colour for r, colour in colours.items()},
        theory=False,
        linestyles={f"{label} (c, d)": line for label, line in lines.items()},
        markers={"one seed, solved (e, f)": "o", "not solved by then": "^"},
        loc="outside right upper",
    )
    return figure


def _draw_start(cosine: Axes, ratio: Axes, rows: pd.DataFrame, colour: Any, line: Any) -> None:
    layers, cosines = training.by_layer(rows, "cos_mean", 0)
    cosine.plot(layers, cosines.mean(0), color=colour, linestyle=line)
    layers, query = training.by_layer(rows, "grad_q", 0)
    _, value = training.by_layer(rows, "grad_v", 0)
    mean = np.exp(np.log(query / value).mean(0))
    ratio.plot(layers + 1, mean, color=colour, linestyle=line)


def _draw_all_times(ax: Axes, table: pd.DataFrame, column: str) -> None:
    """Steps until solved against a column, side by side and coloured by what was run."""
    rules = sorted(set(table["label"]), key=len)
    colours = dict(zip(rules, itertools.cycle(style.PALETTE), strict=False))
    places = sorted(set(table[column]))
    for (rule, x), rows in data.groups(table, "label", column):
        shift = 0.22 * (rules.index(rule) - (len(rules) - 1) / 2)
        times, limit = training.times_to_solve(rows)
        _draw_times(ax, places.index(x) + shift, times, limit, colours[rule])
    ax.set_xticks(range(len(places)), [f"{x:g}" for x in places])
    ax.set(ylabel="step", ylim=(0, None))
    style.legend(ax, colours, theory=False)


def _draw_times(ax: Axes, x: float, times: Array, limit: float, colour: Any) -> None:
    """One dot per seed at the step it was solved; hollow triangles at the limit: not by then."""
    solved = np.isfinite(times)
    spread = x + 0.16 * (np.arange(len(times)) / max(1, len(times) - 1) - 0.5)
    order = np.argsort(np.where(solved, times, np.inf), kind="stable")
    at, when, done = spread, times[order], solved[order]
    ax.plot(at[done], when[done], "o", ms=3.2, color=colour, alpha=0.85, mew=0)
    ax.plot(at[~done], np.full((~done).sum(), limit), "^", ms=4, mfc="none", mec=colour, mew=0.8)
    median = np.median(np.where(solved, times, np.inf))
    if np.isfinite(median):
        ax.plot([x - 0.13, x + 0.13], [median, median], color=colour, lw=1.4)


def adam_rates(unscaled: pd.DataFrame, scaled: pd.DataFrame, step: int) -> Figure:
    """a, b: effective rates by step at the two smallest r. c: against values at `step`, by r."""
    figure, axes = style.panels(1, 3)
    unscaled, scaled = data.labelled(unscaled), data.labelled(scaled)
    first = data.words(unscaled["label"])
    colours = dict(zip("qkv", (style.PALETTE[0], style.PALETTE[2], style.PALETTE[3]), strict=True))
    for ax, r in zip(axes, sorted(set(unscaled["r"]))[:2], strict=False):
        for family, colour in colours.items():
            _draw_rates(ax, data.choose(unscaled, r=r), family, colour)
        ax.set(title=f"{first}, $r={r:g}$", xlabel="step", xscale="log", yscale="log")
        ax.set(ylabel=r"effective rate $\eta_\mathrm{eff}$")
    names = {f"$W^{family.upper()}$": colour for family, colour in colours.items()}
    style.legend(axes[0], names, theory=False)

    both = pd.concat([unscaled, scaled]).drop_duplicates()
    tints = style.colours(both["label"])
    places = sorted(set(both["r"]))
    for i, (name, colour) in enumerate(tints.items()):
        for (r,), rows in data.groups(both[both["label"] == name], "r"):
            _draw_ratios(axes[2], places.index(r) - 0.14 + 0.2 * i, rows, step, colour)
    axes[2].axhline(0, color="0.5", lw=0.8)
    axes[2].set(title=f"Against values, step {step}", xlabel="$r$")
    axes[2].set(ylabel=r"mean $\ln(\eta_\mathrm{eff} / \eta_\mathrm{eff}^V)$")
    axes[2].set_xticks(range(len(places)), [f"{r:g}" for r in places])
    style.legend(axes[2], tints, theory=False, markers={"queries": "o", "keys": "s"})
    style.letter(axes)
    return figure


def _draw_rates(ax: Axes, rows: pd.DataFrame, family: str, colour: Any) -> None:
    rates = rows[rows["quantity"] == f"log_rate_{family}"]
    steps = sorted(set(rates["step"]))
    values = [training.by_layer(rates, f"log_rate_{family}", step)[1].mean(1) for step in steps]
    curve = training.mean_curve(np.asarray(steps, dtype=np.float64), np.stack(values, 1))
    mean, low, high = (np.exp(v) for v in (curve.mean, curve.low, curve.high))
    ax.plot(steps, mean, color=colour)
    ax.fill_between(steps, low, high, color=colour, alpha=0.22, linewidth=0)


def _draw_ratios(ax: Axes, x: float, rows: pd.DataFrame, step: int, colour: Any) -> None:
    for family, marker, shift in (("q", "o", 0.0), ("k", "s", 0.08)):
        ratio = training.log_ratio(rows, f"log_rate_{family}", "log_rate_v", step)
        curve = training.mean_curve(np.zeros(1), ratio[:, None])
        spread = [curve.mean - curve.low, curve.high - curve.mean]
        ax.errorbar(x + shift, curve.mean, spread, fmt=marker, ms=3.5, color=colour)
