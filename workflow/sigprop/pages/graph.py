"""The rules and what each needs, drawn in layers. The same rules give the same picture."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

Needs = Mapping[str, Iterable[str]]

NODE_WIDTH, NODE_HEIGHT = 230, 26
_COLUMN, _ROW, _MARGIN = 330, 34, 8
_SWEEPS = 24


@dataclass(frozen=True)
class Node:
    """A rule at its place: upper left corner of its box, in pixels."""

    name: str
    x: float
    y: float


@dataclass(frozen=True)
class Drawing:
    """Boxes, arrows as SVG paths with the names of both ends, and the size of the canvas."""

    nodes: list[Node]
    edges: list[tuple[str, str, str]]
    width: float
    height: float


def declared(rules: Iterable[Any]) -> dict[str, list[str]]:
    """Rule -> the rules whose outputs it reads, from Snakemake's rules as they are declared.

    Rules without outputs, which only group others, are left out, and so is a rule for any name.
    """
    known = [rule for rule in rules if rule.output and rule.name != "unknown_target"]
    makers = {str(path): rule.name for rule in known for path in rule.output}
    return {
        rule.name: sorted({makers[str(path)] for path in rule.input if str(path) in makers})
        for rule in known
    }


def reduced(needs: Needs) -> dict[str, list[str]]:
    """`needs` without what follows from the rest: a -> c goes where a -> b -> c is there.

    Raises ValueError when rules need each other in a circle.
    """
    direct = {name: set(sources) for name, sources in needs.items()}
    above: dict[str, set[str]] = {}
    for name in TopologicalSorter(direct).static_order():
        sources = direct.get(name, set())
        above[name] = sources.union(*(above[source] for source in sources))
    return {
        name: sorted(
            s for s in direct.get(name, ()) if not any(s in above[o] for o in direct[name])
        )
        for name in sorted(above)
    }


def layers(needs: Needs) -> list[list[str]]:
    """Names by layer, left to right: every rule left of all that read it, as far right as it can.

    So all figures share a layer. Within a layer, names are ordered by the mean place of their
    neighbours, so that few lines cross.
    """
    lists = {name: list(sources) for name, sources in needs.items()}
    readers: dict[str, list[str]] = {name: [] for name in lists}
    for name, sources in lists.items():
        for source in sources:
            readers[source].append(name)
    height: dict[str, int] = {}

    def level(name: str) -> int:
        if name not in height:
            height[name] = max((level(reader) + 1 for reader in readers[name]), default=0)
        return height[name]

    last = max(map(level, lists), default=-1)
    depth = {name: last - height[name] for name in lists}
    rows: list[list[str]] = [[] for _ in range(last + 1)]
    for name in sorted(lists):
        rows[depth[name]].append(name)
    neighbours = {name: lists[name] + readers[name] for name in lists}
    for sweep in range(_SWEEPS):
        # A place in its layer between 0 and 1, so that long and short layers compare.
        place = {name: (index + 0.5) / len(row) for row in rows for index, name in enumerate(row)}
        for row in rows[:: 1 if sweep % 2 == 0 else -1]:
            row.sort(
                key=lambda name: (
                    sum(place[n] for n in neighbours[name]) / len(neighbours[name])
                    if neighbours[name]
                    else place[name],
                    name,
                )
            )
            place |= {name: (index + 0.5) / len(row) for index, name in enumerate(row)}
    return rows


def draw(needs: Needs) -> Drawing:
    """Boxes in columns, each column centred, and arrows as curves between them."""
    needs = reduced(needs)
    columns = layers(needs)
    tallest = max((len(column) for column in columns), default=0)
    places: dict[str, Node] = {}
    for index, column in enumerate(columns):
        top = _MARGIN + (tallest - len(column)) * _ROW / 2
        for row, name in enumerate(column):
            places[name] = Node(name, _MARGIN + index * _COLUMN, top + row * _ROW)
    edges = []
    for name, sources in needs.items():
        for source in sources:
            start, end = places[source], places[name]
            x0, y0 = start.x + NODE_WIDTH, start.y + NODE_HEIGHT / 2
            x1, y1 = end.x, end.y + NODE_HEIGHT / 2
            bend = (_COLUMN - NODE_WIDTH) * 0.5
            path = f"M{x0:g} {y0:g}C{x0 + bend:g} {y0:g} {x1 - bend:g} {y1:g} {x1:g} {y1:g}"
            edges.append((source, name, path))
    width = 2 * _MARGIN + max(len(columns) - 1, 0) * _COLUMN + NODE_WIDTH
    return Drawing(list(places.values()), edges, width, 2 * _MARGIN + max(tallest, 1) * _ROW)
