"""The rules and what each needs, in layers. The same rules give the same picture."""

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

_SWEEPS = 24


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


def layout(needs: Mapping[str, Iterable[str]]) -> tuple[Any, dict[str, tuple[int, int]]]:
    """What needs what as a networkx graph, and the place of each rule: (x, y) in pixels.

    The graph leaves out what follows from the rest: a -> c where a -> b -> c is there. Every rule
    is left of all that read it, as far right as it can be, so that all figures share a column.
    Within a column, names are ordered by the mean place of their neighbours, so that few lines
    cross.
    """
    import networkx as nx

    graph = nx.DiGraph((source, name) for name, sources in needs.items() for source in sources)
    graph.add_nodes_from(needs)
    graph = nx.transitive_reduction(graph)
    layers = [sorted(layer) for layer in nx.topological_generations(graph.reverse())][::-1]
    for sweep in range(_SWEEPS):
        for layer in layers[:: 1 if sweep % 2 == 0 else -1]:
            # A place in its layer between 0 and 1, so that long and short layers compare.
            place = {name: (i + 0.5) / len(row) for row in layers for i, name in enumerate(row)}
            near = {name: [*nx.all_neighbors(graph, name)] or [name] for name in layer}
            mean = {name: fmean(place[other] for other in near[name]) for name in layer}
            layer.sort(key=lambda name: (mean[name], name))
    tallest = max(map(len, layers), default=0)
    return graph, {
        name: (8 + 330 * column, 8 + 17 * (tallest - len(layer)) + 34 * row)
        for column, layer in enumerate(layers)
        for row, name in enumerate(layer)
    }
