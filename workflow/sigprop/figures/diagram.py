"""The block diagram of a scheme, drawn from the records that `sigprop list schemes` exports."""

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from sigprop.artifacts.provenance import code_root
from sigprop.figures.style import PALETTE

_SKIP, _BRANCH = 0.22, 0.68  # horizontal places of the residual stream and of the branches
_BOX = {
    "norm": ("LN", PALETTE[8], 0.40),
    "attention": (
        r"attention" "\n" r"softmax$\left(\tau\,QK^T/\sqrt{d_k}\right)V$",
        PALETTE[0],
        0.60,
    ),
    "feed_forward": ("feed-forward", PALETTE[2], 0.46),
}


def load(path: str) -> dict[str, Any]:
    """Scheme records by name."""
    file = Path(path) if Path(path).exists() else code_root() / path
    return {record["name"]: record for record in json.loads(file.read_text(encoding="utf-8"))}


def draw_block(ax: Axes, record: dict[str, Any]) -> None:
    """One block, bottom to top: each sub-layer as its record says, in the record's order.

    A strength that is empty, because settings decide it, is drawn as its symbol alone.
    """
    ax.set(xlim=(0, 1), ylim=(-0.03, 1.03), title=record["title"])
    ax.axis("off")
    height = 0.94 / len(record["sublayers"])
    bottom = 0.0
    ax.text(_SKIP, bottom - 0.005, "$X^{l}$", ha="center", va="top")
    for index, sublayer in enumerate(record["sublayers"], start=1):
        _draw_sublayer(ax, sublayer, index, bottom, height, record)
        bottom += height
    _arrow(ax, (_SKIP, bottom - 0.02), (_SKIP, bottom + 0.03))
    ax.text(_SKIP, bottom + 0.035, "$X^{l+1}$", ha="center", va="bottom")


def _draw_sublayer(
    ax: Axes,
    sublayer: dict[str, Any],
    index: int,
    bottom: float,
    height: float,
    record: dict[str, Any],
) -> None:
    fork, join = bottom + 0.08 * height, bottom + 0.74 * height
    _line(ax, (_SKIP, bottom), (_SKIP, join))
    _line(ax, (_SKIP, fork), (_BRANCH, fork))
    y = fork
    steps = ["norm"] if sublayer["norm_before"] else []
    steps.append(sublayer["branch"])
    for step, place in zip(steps, (0.25, 0.47) if len(steps) == 2 else (0.38,), strict=True):
        label, colour, width = _BOX[step]
        if step == "attention":
            how = [record["attention"], rf"$\tau={record['tau']:g}$"]
            label += "\n" + ", ".join(filter(None, how))
        centre = bottom + place * height
        half = 0.035 if step != "attention" else 0.055
        _arrow(ax, (_BRANCH, y), (_BRANCH, centre - half))
        _box(ax, (_BRANCH, centre), width, 2 * half, label, colour)
        y = centre + half
    _line(ax, (_BRANCH, y), (_BRANCH, join))
    _arrow(ax, (_BRANCH, join), (_SKIP + 0.035, join))
    told = f"={sublayer['strength']}" if sublayer["strength"] else ""
    strength = rf"$\times\ \alpha_{index}{told}$"
    ax.text((_SKIP + _BRANCH) / 2 + 0.02, join + 0.012, strength, ha="center", va="bottom")
    if sublayer.get("skip") == "variance_preserving":
        skip = rf"$\times\ \sqrt{{1-\alpha_{index}^2}}$"
        ax.text(_SKIP - 0.03, (fork + join) / 2, skip, ha="right", va="center", fontsize="small")
    ax.plot(_SKIP, join, "o", markersize=13, markerfacecolor="white", markeredgecolor="0.2")
    ax.text(_SKIP, join, "+", ha="center", va="center_baseline")
    if sublayer["norm_after"]:
        label, colour, width = _BOX["norm"]
        centre = bottom + 0.91 * height
        _arrow(ax, (_SKIP, join + 0.02), (_SKIP, centre - 0.03))
        _line(ax, (_SKIP, centre + 0.03), (_SKIP, bottom + height))
        _box(ax, (_SKIP, centre), width * 0.7, 0.06, label, colour)
    else:
        _line(ax, (_SKIP, join + 0.03), (_SKIP, bottom + height))


def _box(
    ax: Axes, centre: tuple[float, float], width: float, height: float, label: str, colour: Any
) -> None:
    corner = (centre[0] - width / 2, centre[1] - height / 2)
    shape = FancyBboxPatch(
        corner,
        width,
        height,
        "round,pad=0,rounding_size=0.015",
        facecolor=(*colour, 0.25),
        ec="0.2",
    )
    ax.add_patch(shape)
    ax.text(*centre, label, ha="center", va="center", fontsize="small")


def _line(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    ax.plot(*zip(start, end, strict=True), color="0.2", linewidth=1, zorder=0)


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    ax.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=8, color="0.2", shrinkA=0, shrinkB=0
        )
    )
