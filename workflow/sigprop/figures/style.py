"""One look for all figures: theory dashed, simulation solid with a band, colours safe for all."""

import logging
import textwrap
from collections.abc import Iterable
from typing import Any

import matplotlib

matplotlib.use("Agg", force=False)
import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from sigprop.analysis.data import Curve, label
from sigprop.artifacts.errors import UserError
from sigprop.artifacts.files import atomic_path
from sigprop.models.schemes import SCHEMES

# Embedding a font makes fontTools remark on the font's date, in every executed notebook.
logging.getLogger("fontTools").setLevel(logging.ERROR)

PALETTE: list[Any] = sns.color_palette("colorblind")
_COLUMN = 3.35  # inches, one column of a two-column paper

SOLID = "solid"
DASHED = (0, (4, 2))  # theory
DOTTED = (0, (1, 1.5))

# Of the records of schemes that have one, by what figures call them.
COLOUR = {
    label(name, scheme.rule, scheme.tau): PALETTE[scheme.colour % len(PALETTE)]
    for name, scheme in SCHEMES.items()
    if scheme.colour is not None
}
_LINES = (
    SOLID,
    DASHED,
    DOTTED,
    (0, (6, 1.5, 1, 1.5)),
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
)


def shades(values: Iterable[Any]) -> dict[Any, Any]:
    """A colour for each distinct value, in order: light to dark reads as small to large in grey."""
    ordered = sorted(set(values))
    return dict(zip(ordered, sns.color_palette("viridis_r", len(ordered) + 1)[1:], strict=True))


def colours(labels: Iterable[str]) -> dict[str, Any]:
    """Colour by label, no two alike; labels that have none of their own take free ones in turn."""
    used = list(dict.fromkeys(labels))
    own = {name: COLOUR[name] for name in used if name in COLOUR}
    others = [name for name in used if name not in own]
    taken = {*COLOUR.values()}
    free = [c for c in PALETTE if c not in taken]
    free += sns.color_palette("husl", max(0, len(others) - len(free)))
    own |= dict(zip(others, free, strict=False))
    return {name: own[name] for name in used}


def lines(values: Iterable[Any]) -> dict[Any, Any]:
    """A line style for each distinct value, in order; UserError when there are too many."""
    used = list(dict.fromkeys(values))
    if len(used) > len(_LINES):
        raise UserError(
            f"{', '.join(map(str, used))}: a figure tells {len(_LINES)} kinds of lines apart; "
            "give fewer"
        )
    return dict(zip(used, _LINES, strict=False))


def use() -> None:
    """Set the look, whatever the user's own settings; call once at the top of a notebook."""
    matplotlib.rcdefaults()
    sns.set_theme(context="paper", style="ticks", palette=PALETTE, font_scale=0.95)
    plt.rcParams.update(
        {
            "figure.dpi": 110,
            "savefig.dpi": 200,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": "medium",
            "axes.grid": True,
            "grid.linewidth": 0.4,
            "grid.alpha": 0.5,
            "lines.linewidth": 1.4,
            "legend.frameon": False,
            "legend.fontsize": "small",
            "mathtext.fontset": "cm",
            "pdf.fonttype": 42,
        }
    )


def panels(rows: int, columns: int, *, height: float = 2.5, **options: Any) -> tuple[Figure, Any]:
    """A figure of `rows` x `columns` panels with constrained layout."""
    use()
    size = (_COLUMN * columns * 0.92 + 0.3, height * rows + 0.5)
    return plt.subplots(rows, columns, figsize=size, layout="constrained", **options)


def draw_curve(
    ax: Axes, curve: Curve, colour: Any, *, x: Any = None, theory_x: Any = None, **options: Any
) -> None:
    """Simulation solid with its 95 % band, theory dashed, on a common axis."""
    x = curve.layer if x is None else x
    ax.plot(x, curve.mean, color=colour, solid_capstyle="round", **options)
    ax.fill_between(x, curve.low, curve.high, color=colour, alpha=0.22, linewidth=0)
    if len(curve.theory):
        theory_x = curve.theory_layer if theory_x is None else theory_x
        ax.plot(theory_x, curve.theory, color=colour, linestyle=DASHED, linewidth=1.0)


def draw_points(
    ax: Axes, points: pd.DataFrame, name: str, colour: Any, *, filled: bool, label: str
) -> None:
    """Points with bootstrap bars; a point whose interval holds 0 is an upper limit (an arrow)."""
    resolved = points[points[f"{name}_low"] > 0]
    bars = [
        (resolved[name] - resolved[f"{name}_low"]).to_numpy(),
        (resolved[f"{name}_high"] - resolved[name]).to_numpy(),
    ]
    face = colour if filled else "white"
    look: dict[str, Any] = {"color": colour, "markerfacecolor": face, "markersize": 4}
    ax.errorbar(resolved["width"], resolved[name], bars, fmt="o", label=label, lw=1, **look)
    limits = points[points[f"{name}_low"] == 0]
    ax.plot(limits["width"], limits[f"{name}_high"], "v", alpha=0.6, **look)


def legend(
    target: Axes | Figure,
    colours: dict[str, Any],
    *,
    theory: bool = True,
    linestyles: dict[str, Any] | None = None,
    markers: dict[str, str] | None = None,
    **options: Any,
) -> None:
    """A legend of colours, plus how to tell theory from simulation."""
    handles = [Line2D([], [], color=colour, label=name) for name, colour in colours.items()]
    for name, linestyle in (linestyles or {}).items():
        handles.append(Line2D([], [], color="0.25", linestyle=linestyle, label=name))
    for name, marker in (markers or {}).items():
        handles.append(Line2D([], [], color="0.25", marker=marker, linestyle="", label=name))
    if theory:
        handles += [
            Line2D([], [], color="0.25", label="simulation, 95 % band"),
            Line2D([], [], color="0.25", linestyle=DASHED, linewidth=1.0, label="theory"),
        ]
    target.legend(handles=handles, **options)


def letter(axes: Any) -> None:
    """Number the panels a, b, c ... at the upper left, outside the axes."""
    for index, ax in enumerate(axes):
        low, high = ax.get_ylim()
        if ax.get_yscale() == "log" and high > 30 * low:
            # Decades carry the numbers; a narrower axis needs those in between.
            ax.yaxis.set_minor_formatter(NullFormatter())
        low, high = ax.get_xlim()
        if ax.get_xscale() == "log" and high > 10 * low:
            ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_title(f"{chr(97 + index)}  {ax.get_title()}", loc="left", fontsize="medium")
        ax.set_title("", loc="center")


def save(
    figure: Figure, output: str, *, note: str, preset: str = "laptop", scaled_down: str = ""
) -> None:
    """Write `output`.pdf and `output`.png atomically, with a footer.

    Args:
        note: sizes, number of networks, what the band is.
        preset: name of the preset; anything but `paper` is announced.
        scaled_down: how this run is smaller than the paper preset, in words.
    """
    footer = note
    if scaled_down:
        footer += f"\nScaled down ({preset} preset; paper preset → here): {scaled_down}."
    width = int(figure.get_size_inches()[0] * 20)
    lines = [textwrap.fill(line, width) for line in footer.splitlines()]
    figure.supxlabel("\n".join(lines), fontsize=6.5, color="0.3", x=0.01, ha="left")
    for suffix in (".pdf", ".png"):
        # No creation date in the file: the same figure gives the same bytes.
        metadata = {"CreationDate": None} if suffix == ".pdf" else {"Software": None}
        with atomic_path(output + suffix) as path:
            figure.savefig(path, metadata=metadata)
