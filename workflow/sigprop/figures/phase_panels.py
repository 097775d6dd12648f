"""The figures drawn from closed forms and from softmax rows: strengths, limits, variants."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from sigprop.analysis import data, phases
from sigprop.analysis.stats import Array
from sigprop.figures import style

MAP_COLOURS = "vlag"  # diverging, blue to red through white; told apart by colour-blind readers
EDGE_COLOUR = "black"


def strengths(table: pd.DataFrame) -> Figure:
    """a to c: planes of the strengths of attention and MLP. d to f: critical lines by mode."""
    planes = data.choose(table, grid="strengths", mode="conv")
    lines = data.choose(table, grid="alpha_ff_c", mode="conv")
    sigmas = sorted(set(planes["sigma_w1"]))
    figure, axes = style.panels(2, len(sigmas), height=2.8, squeeze=False)
    mesh: Any = None
    for ax, sigma_w in zip(axes[0], sigmas, strict=True):
        x, y, angle = phases.plane(table, "strengths", "lambda_a", sigma_w1=sigma_w)
        mesh = draw_map(ax, x, y, angle, 1.0)
        *_, gradient = phases.plane(table, "strengths", "lambda_g", sigma_w1=sigma_w)
        draw_levels(ax, x, y, gradient, [0.01, 0.03, 0.1, 0.3, 1.0])
        leading = data.choose(lines, sigma_w1=sigma_w, quantity="alpha_ff_c_leading")
        if len(leading):
            at, alpha_c = phases.line(leading, "alpha_ff_c_leading", "alpha_attn")
            ax.plot(at, alpha_c, color=EDGE_COLOUR, linestyle=style.DASHED, lw=1)
        ax.set(title=rf"$\sigma_w={sigma_w:g}$", xlabel=r"attention strength $\alpha_A$")
        ax.set(ylabel=r"MLP strength $\alpha_M$", aspect="equal")
    bar = figure.colorbar(mesh, ax=axes[0], extend="both", shrink=0.9, pad=0.01)
    bar.set_label(r"$\lambda_a$ per block")

    critical = data.choose(table, grid="sigma_c")
    tints = {"conv": style.PALETTE[0], "renorm": style.PALETTE[1], "unit": style.PALETTE[2]}
    for ax, read_out in zip(axes[1], ("tied", "unit"), strict=False):
        for mode, colour in tints.items():
            rows = data.choose(critical, read_out=read_out, mode=mode)
            at, sigma_c = phases.line(rows, "sigma_c", "alpha_attn")
            ax.plot(at, sigma_c, color=colour, linestyle=style.DASHED if mode == "unit" else "-")
        second = r"$\sigma_{w2}=\sigma_w$" if read_out == "tied" else r"$\sigma_{w2}=1$"
        ax.set(title=f"Edge of chaos, {second}", xlabel=r"$\alpha_A=\alpha_M$", xlim=(0, 1))
        ax.set(ylabel=r"critical $\sigma_w$", yscale="log")
        ax.set_yticks([2, 3, 5, 10, 20], ["2", "3", "5", "10", "20"])
        ax.set_yticks([], minor=True)
    axes[1, 0].set(ylim=(1.5, 6))
    axes[1, 1].set(ylim=(3, 25))
    names = {"mode conv": tints["conv"], "mode renorm": tints["renorm"]}
    style.legend(axes[1, 0], names, theory=False, loc="upper left")
    axes[1, 0].text(0.98, 1.68, "leading order, mode unit", ha="right", color=tints["unit"], size=7)
    ax = axes[1, 2]
    for mode in ("conv", "renorm"):
        at, balance = phases.line(
            data.choose(critical, read_out="tied", mode=mode), "balance", "alpha_attn"
        )
        ax.plot(at, balance - 1, color=tints[mode])
    ax.axhline(0.02, color="0.5", lw=0.8)
    ax.text(0.012, 0.022, "2 %", fontsize=7, color="0.35")
    ax.set(title="Error of the leading order", xlabel=r"$\alpha_A=\alpha_M$", xscale="log")
    ax.set(yscale="log", ylabel=r"$\alpha_M^2(G-B)/(\alpha_A^2\sigma_V^2)-1$ at the edge")
    style.letter(axes.flat)
    return figure


def limits(table: pd.DataFrame) -> Figure:
    """Moments of softmax rows: integrals, leading orders, simulation, the random-energy limit."""
    figure, axes = style.panels(2, 3, height=2.7)
    correlations = [rho for rho in sorted(set(table["rho"])) if rho > 0]
    n_tokens = int(data.choose(table, grid="gaussian")["n_tokens"].iloc[0])
    colours = {"s": style.PALETTE[0], "r": style.PALETTE[1]}
    for ax, rho in zip(axes[0], correlations[:2], strict=False):
        rows = data.choose(table, grid="gaussian", rho=rho)
        for quantity, colour in colours.items():
            name_at = (4.0, 9.0 if quantity == "s" else -9.0)
            draw_moment(ax, rows, quantity, colour, name_at=name_at)
        ax.set(title=rf"$n={n_tokens}$, $\rho={rho:g}$", yscale="log", ylim=(0.025, 1.5))
        ax.set(xlabel=r"logit scale $\sigma_A$", ylabel="moment", xlim=(0, None))

    ax, rho = axes[0, 2], correlations[0]
    layers = data.choose(table, grid="layer", rho=rho)
    widths = sorted(set(layers["d_k"]))
    shades = dict(zip(widths, style.PALETTE[2:], strict=False))
    for shift, (d_k, colour) in enumerate(shades.items()):
        for quantity, fmt in (("s", "o-"), ("r", "s--")):
            rows = data.choose(layers, d_k=d_k)
            x, mean, half = phases.means(rows, quantity)
            _, exact = phases.line(data.choose(rows, source="theory"), quantity, "sigma_a")
            look = {"color": colour, "ms": 3, "lw": 0.8, "elinewidth": 0.8}
            ax.errorbar(x + 0.06 * (shift - 1), mean / exact, half / exact, fmt=fmt, **look)
    ax.axhline(1, color="0.5", lw=0.8)
    ax.set(title=rf"Real layers, $\rho={rho:g}$", xlabel=r"logit scale $\sigma_A$", xlim=(0, None))
    ax.set(ylabel="layer / integral")
    handles = {f"$d_k={d_k}$": colour for d_k, colour in shades.items()}
    markers = {"$S$": "o", "$R$": "s"}
    style.legend(ax, handles, theory=False, markers=markers, loc="upper left", ncols=2)
    ax.set(ylim=(0.97, 1.13))

    one_row = data.choose(table, rho=0.0, d_k=0)
    one_row = one_row[one_row["beta"].isna() & (one_row["sigma_a"] <= 2)]
    energy = data.choose(table, grid="random_energy")
    by_tokens = style.shades([*one_row["n_tokens"], *energy["n_tokens"]])
    for (n,), rows in data.groups(one_row.sort_values("n_tokens"), "n_tokens"):
        integral = data.choose(rows, source="theory")
        x, leading = phases.line(integral, "s_leading", "sigma_a")
        _, s = phases.line(integral, "s", "sigma_a")
        axes[1, 0].plot(x, leading / s - 1, linestyle=style.DASHED, lw=1, color=by_tokens[n])
        x, mean, half = phases.means(rows, "s")
        half = leading / mean**2 * half
        axes[1, 0].errorbar(x, leading / mean - 1, half, fmt="o", ms=3.5, color=by_tokens[n])
        look = {"power": 2, "scale": 1 / np.log(n)}
        draw_moment(axes[1, 2], rows, "entropy", by_tokens[n], **look)
    axes[1, 0].axhline(0.1, color="0.5", lw=0.8)
    axes[1, 0].text(1.99, 0.11, "10 %", fontsize=7, color="0.35", ha="right")
    axes[1, 0].set(title=r"Error of $e^v/n$ for $S$, $\rho=0$", xlabel=r"logit scale $\sigma_A$")
    axes[1, 0].set(ylabel="relative error", yscale="log", ylim=(1e-3, None))
    axes[1, 2].set(title=r"Entropy of a row, $\rho=0$", xlabel="logit variance $v$", ylim=(0, 1.03))
    axes[1, 2].set(ylabel=r"$\mathrm{E}\,H(A_i)/\ln n$", xlim=(0, None))

    ax = axes[1, 1]
    for (n,), rows in data.groups(energy, "n_tokens"):
        draw_moment(ax, rows, "s", by_tokens[n], x="beta")
    largest = data.choose(energy, n_tokens=int(energy["n_tokens"].max()), source="theory")
    ax.plot(*phases.line(largest, "s_limit", "beta"), "x", color="0.25", ms=4)
    ax.text(2.1, 0.2, r"crosses: $n\to\infty$", color="0.25", size=8)
    ax.set(title=r"$\sigma_A^2=\beta^2\ln n$, $\rho=0$", xlabel=r"$\beta$", ylabel="$S$")
    style.letter(axes.flat)
    style.legend(
        figure,
        {f"$n={n}$": colour for n, colour in by_tokens.items()},
        theory=False,
        linestyles={
            "exact integral (not c)": style.DASHED,
            "leading order (a, b, f)": style.DOTTED,
        },
        markers={"simulation, 95 %": "o"},
        loc="outside right upper",
    )
    return figure


def variants(table: pd.DataFrame) -> Figure:
    """Both exponents of related parametrizations, on the axes of the phase diagram."""
    figure, axes = style.panels(2, 4, height=2.6)
    maps: dict[str, tuple[str, dict[str, str]]] = {
        "softmax, tied (reference)": ("diagonal", {"mode": "conv"}),
        "shaped attention": ("variants", {"variant": "shaped"}),
        "attention minus its mean": ("variants", {"variant": "centered"}),
        r"$\sigma$-reparametrization": ("variants", {"variant": "sigma_reparam"}),
        "DeepScaleLM": ("variants", {"variant": "deepscale"}),
        "unit readout": ("diagonal_unit_read_out", {"mode": "conv"}),
    }
    mesh: Any = None
    for ax, (title, (grid, wanted)) in zip(axes.flat, maps.items(), strict=False):
        x, y, angle = phases.plane(table, grid, "lambda_a", **wanted)
        mesh = draw_map(ax, x, y, angle, 1.0)
        *_, gradient = phases.plane(table, grid, "lambda_g", **wanted)
        draw_levels(ax, x, y, gradient, [0.01, 0.1, 0.3, 1.0])
        ax.set(title=title)
    ax = axes[1, 2]
    x, y, power = phases.plane(table, "diagonal_unit_skip", "power_a")
    draw_map(ax, x, y, power, 1.0)
    ax.set(title=r"PRE-LN, unit skip: power $\kappa_a$")
    for ax in axes.flat[:7]:
        ax.set(xlabel=r"$\sigma_w$", ylabel=r"$\alpha_A=\alpha_M$")
    bar = figure.colorbar(mesh, ax=axes, extend="both", shrink=0.6, pad=0.01)
    bar.set_label(r"$\lambda_a$ per block (g: power $\kappa_a$ of depth)")

    ax = axes[1, 3]
    scaled = data.choose(table, grid="deepscale")
    scaled = scaled.assign(k=(scaled["alpha_attn"] ** 2 * scaled["depth"]).round(9))
    shades = style.shades(scaled["k"])
    lines = dict(zip(sorted(set(scaled["sigma_w1"])), (style.SOLID, style.DASHED), strict=False))
    for k, colour in shades.items():
        for sigma_w, linestyle in lines.items():
            rows = data.choose(scaled, k=k, sigma_w1=sigma_w)
            depth, angle = phases.line(rows, "lambda_a", "depth")
            ax.plot(depth, depth * angle, color=colour, linestyle=linestyle)
    ax.set(title=r"DeepScaleLM, $\alpha^2=k/L$", xlabel="depth $L$", ylabel=r"$L\,\lambda_a$")
    ax.set(xscale="log", ylim=(-3.2, 0.5))
    depths = sorted(set(scaled["depth"]))[::2]
    ax.set_xticks(depths, [str(depth) for depth in depths])
    ax.set_xticks([], minor=True)
    style.letter(axes.flat)
    style.legend(
        ax,
        {f"$k={k:g}$": colour for k, colour in shades.items()},
        theory=False,
        linestyles={rf"$\sigma_w={sigma:g}$": line for sigma, line in lines.items()},
        loc="lower center",
        ncols=2,
    )
    return figure


def draw_map(
    ax: Axes, x: Array, y: Array, z: Array, limit: float, *, zero: bool = True
) -> QuadMesh:
    """A diverging map of z in [-limit, limit], white at 0, with its zero contour in black."""
    mesh = ax.pcolormesh(
        x, y, z, cmap=MAP_COLOURS, vmin=-limit, vmax=limit, shading="nearest", rasterized=True
    )
    if zero:
        draw_edge(ax, x, y, z)
    ax.set(xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))
    ax.grid(visible=False)
    return mesh


def draw_edge(ax: Axes, x: Array, y: Array, z: Array) -> None:
    """The line z = 0 in black, where z takes both signs."""
    # both alphas 0: nothing moves, and the whole row would be on the contour
    moving = np.where((z == 0).all(1, keepdims=True), np.nan, z)
    if np.nanmin(z) < 0 < np.nanmax(z):
        ax.contour(x, y, moving, levels=[0.0], colors=EDGE_COLOUR, linewidths=1.2)


def draw_levels(ax: Axes, x: Array, y: Array, z: Array, levels: list[float]) -> None:
    """Labelled grey level sets."""
    contours = ax.contour(x, y, z, levels=levels, colors="0.3", linewidths=0.7)
    for text in ax.clabel(contours, fmt="%g", fontsize=6.5, colors="black"):
        text.set_path_effects([patheffects.withStroke(linewidth=1.5, foreground="white")])


def mark_fixed_points(ax: Axes, x: Array, y: Array, *, drift: bool = False) -> None:
    """Dots on the fixed points of y(x): filled are stable, open are not."""
    for at, stable in phases.fixed_points(x, y.copy()):
        face = EDGE_COLOUR if stable else "white"
        ax.plot(
            at, 0.0 if drift else at, "o", ms=5, mfc=face, mec=EDGE_COLOUR, zorder=5, clip_on=False
        )


def draw_moment(
    ax: Axes,
    rows: pd.DataFrame,
    quantity: str,
    colour: Any,
    *,
    x: str = "sigma_a",
    power: int = 1,
    scale: float = 1.0,
    name_at: tuple[float, float] | None = None,
) -> None:
    """A moment of softmax rows, times `scale`, over column `x` to a power, for one n and rho.

    Dots with 95 % bars: simulation. Dashed: exact integral. Dotted: leading order, if there is one.
    `name_at`: where the moment's name goes, the dot's x and the distance from it in points.
    """
    exact = data.choose(rows, source="theory")
    for name, linestyle in ((quantity, style.DASHED), (f"{quantity}_leading", style.DOTTED)):
        if name == quantity or (x == "sigma_a" and name in set(exact["quantity"])):
            at, value = phases.line(exact, name, x)
            ax.plot(at**power, scale * value, color=colour, linestyle=linestyle, lw=1.0)
    at, mean, half = phases.means(rows, quantity)
    ax.errorbar(at**power, scale * mean, scale * half, fmt="o", ms=3.5, color=colour)
    if name_at is not None:
        nearest = int(np.abs(at - name_at[0]).argmin())
        place = (float(at[nearest] ** power), float(scale * mean[nearest]))
        ax.annotate(
            f"${quantity.upper()}$",
            place,
            (0, name_at[1]),
            textcoords="offset points",
            ha="center",
            va="center",
            color=colour,
        )
