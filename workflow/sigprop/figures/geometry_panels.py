"""The panels of the figures on token geometry."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sigprop.figures import data, geometry, style

ORDERED, CHAOTIC = style.PALETTE[0], style.PALETTE[3]
SETTINGS = (
    "ordered_weak",
    "ordered",
    "ordered_strong",
    "chaotic_weak",
    "chaotic",
    "chaotic_strong",
    "unit_readout",
    "renorm",
    "relu",
)
_MARKERS = {"renorm": "s", "relu": "^"}

Measure = Callable[[pd.DataFrame], geometry.Exponent]


def exponents(
    phases: pd.DataFrame, wide: pd.DataFrame, measure: Measure, symbol: str, levels: list[float]
) -> Figure:
    """a, b: theory and simulation over alpha and sigma_w, contours of theory. c: one by one."""
    figure, axes = style.panels(1, 3)
    found = {
        (alpha, sigma): measure(rows)
        for (alpha, sigma), rows in data.groups(phases, "alpha_attn", "sigma_w1")
    }
    alphas, sigmas = (sorted({key[i] for key in found}) for i in (0, 1))
    theory, simulation = (
        np.array([[getattr(found[a, s], name) for a in alphas] for s in sigmas])
        for name in ("theory", "value")
    )
    limit = float(np.abs(theory).max())
    image: Any = None
    for ax, name, values in ((axes[0], "theory", theory), (axes[1], "simulation", simulation)):
        look = {"cmap": "vlag", "vmin": -limit, "vmax": limit, "shading": "nearest"}
        image = ax.pcolormesh(alphas, sigmas, values, **look)
        lines = ax.contour(alphas, sigmas, theory, levels=levels, colors="k", linewidths=1)
        ax.clabel(lines, fontsize=6)
        ax.set(title=f"${symbol}$, {name}", xlabel=r"$\alpha_A=\alpha_M$", ylabel=r"$\sigma_w$")
        ax.grid(visible=False)
    figure.colorbar(image, ax=axes[:2], label="per block", shrink=0.9)
    for name in SETTINGS:
        _draw_against(axes[2], measure(data.choose(wide, grid=name)), _MARKERS.get(name, "o"))
    shapes = {"conv, tanh": "o", "renorm, tanh": "s", "conv, ReLU": "^"}
    if symbol == r"\lambda_a":
        shapes["attention only"] = "D"
        for _, rows in data.groups(data.choose(wide, grid="attention_only"), "alpha_attn"):
            _draw_against(axes[2], measure(rows), "D")
    _identity(axes[2])
    lines = {"equal": style.DASHED}
    style.legend(axes[2], {}, theory=False, markers=shapes, linestyles=lines, loc="lower right")
    axes[2].set(title="Wide networks")
    style.letter(axes)
    return figure


def _draw_against(ax: Axes, exponent: geometry.Exponent, marker: str) -> None:
    spread = [[exponent.value - exponent.low], [exponent.high - exponent.value]]
    colour = CHAOTIC if exponent.theory > 0 else ORDERED
    ax.errorbar(exponent.theory, exponent.value, spread, fmt=marker, ms=3.5, color=colour)


def _identity(ax: Axes) -> None:
    ends = np.array(ax.get_xlim())
    ax.plot(ends, ends, color="0.4", linestyle=style.DASHED, linewidth=1)
    ax.set(xlabel="theory, per block", ylabel="simulation, per block")


def table(wide: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """Theory, simulation, interval and z by setting."""
    rows = {name: measure(data.choose(wide, grid=name)) for name in SETTINGS}
    return pd.DataFrame(
        {
            name: {"theory": e.theory, "simulation": e.value, "low": e.low, "high": e.high}
            | {"z": e.z}
            for name, e in rows.items()
        }
    ).T.round(4)


def width_table(wide: pd.DataFrame) -> pd.DataFrame:
    """Angle exponent against width: simulation minus theory with its interval."""
    found = {
        (sigma, d): geometry.angle_exponent(rows)
        for (sigma, d), rows in data.groups(data.choose(wide, grid="width"), "sigma_w1", "d_model")
    }
    frame = pd.DataFrame(
        {
            key: {"deviation": e.value - e.theory, "low": e.low - e.theory}
            | {"high": e.high - e.theory}
            for key, e in found.items()
        }
    ).T
    return frame.rename_axis(index=["sigma_w", "d_model"]).round(4)


def ends(points: pd.DataFrame, single: pd.DataFrame) -> Figure:
    """a: cosine after the last block from two starts. b, c: single pairs and single tokens."""
    figure, axes = style.panels(1, 3)
    transition = data.choose(points, grid="transition")
    last = int(transition["layer"].max())
    starts = dict(zip(sorted(set(transition["rho0"])), style.PALETTE, strict=False))
    for (start,), rows in data.groups(data.choose(transition, layer=last), "rho0"):
        _draw_ends(axes[0], rows, starts[start])
    axes[0].set(title=f"Cosine after {last} blocks", xlabel=r"$\sigma_w$", ylabel="$c = p/q$")
    axes[0].set(ylim=(-0.02, 1.03))
    style.legend(axes[0], {f"from cosine {start:g}": colour for start, colour in starts.items()})

    layers = sorted(set(single["layer"]))[-2:]
    looks = dict(zip(layers, (style.DOTTED, style.SOLID), strict=False))
    tones = {"ordered": ORDERED, "chaotic": CHAOTIC}
    for name, colour in tones.items():
        for layer, look in looks.items():
            rows = data.choose(single, grid=name, layer=layer)
            _draw_single(axes[1], axes[2], rows, colour, look, layer == layers[-1])
    axes[1].set(title="Cosines of single pairs", xlabel="cosine", ylabel="density", yscale="log")
    axes[2].set(title="Norms of single tokens", xlabel="$|x|^2/d$", ylabel="density")
    lines = {f"block {layer}": look for layer, look in looks.items()}
    lines |= {f"theory, block {layers[-1]}": style.DASHED}
    style.legend(axes[2], tones, theory=False, linestyles=lines, fontsize=6.5, loc="upper center")
    style.letter(axes)
    return figure


def _draw_ends(ax: Axes, rows: pd.DataFrame, colour: Any) -> None:
    found = [(s, geometry.cosine_curve(here)) for (s,), here in data.groups(rows, "sigma_w1")]
    x = [sigma for sigma, _ in found]
    mean, low, high, theory = (
        np.array([getattr(curve, name)[0] for _, curve in found])
        for name in ("mean", "low", "high", "theory")
    )
    ax.errorbar(x, mean, [mean - low, high - mean], fmt="o", ms=3.5, color=colour)
    ax.plot(x, theory, color=colour, linestyle=style.DASHED, linewidth=1)


def _draw_single(
    pairs: Axes, norms: Axes, rows: pd.DataFrame, colour: Any, look: Any, with_theory: bool
) -> None:
    simulated = data.choose(rows, source="simulation")
    cosines = data.choose(simulated, quantity="pair_cosine")["value"].to_numpy(np.float64)
    sizes = data.choose(simulated, quantity="token_norm")["value"].to_numpy(np.float64)
    options: dict[str, Any] = {"histtype": "step", "density": True, "color": colour}
    bins = np.linspace(min(float(cosines.min()), -0.2), 1, 81)
    pairs.hist(cosines, bins.tolist(), linestyle=look, **options)
    norms.hist(sizes, 60, linestyle=look, **options)
    if with_theory:
        q, p = (
            float(data.choose(rows, quantity=name, source="theory")["value"].iloc[0])
            for name in "qp"
        )
        pairs.axvline(p / q, color=colour, linestyle=style.DASHED, linewidth=1)
        norms.axvline(q, color=colour, linestyle=style.DASHED, linewidth=1)
