"""What `sigprop probe` shows of a `Probe`: a tidy table, a page of text, two exponents."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from sigprop.instruments.probe import Probe

# Below this many blocks the last half has no three layers to fit.
_MIN_DEPTH = 4


def table(found: "Probe") -> "pd.DataFrame":
    """Every number: layer, block, quantity, part, sequence, value.

    Layer 0 is the input of the first block. `part` names a parameter or an attention in the block,
    else it is empty. `sequence` is null for the gradients of parameters, which belong to all.
    """
    import pandas as pd

    names = ("input", *found.blocks)
    rows: list[tuple[int, str, str, str, int | None, float]] = [
        (layer, names[layer], quantity, "", sequence, value)
        for quantity, values in found.stream.items()
        for layer, at in enumerate(values.tolist())
        for sequence, value in enumerate(at)
    ]
    for key, values in found.attention.items():
        part, _, quantity = key.rpartition(".")
        rows += [
            (layer, names[layer], quantity, part, sequence, value)
            for layer, at in enumerate(values.tolist(), 1)
            for sequence, value in enumerate(at)
        ]
    rows += [
        (layer, names[layer], "grad_parameter", part, None, value)
        for part, values in found.parameters.items()
        for layer, value in enumerate(values.tolist(), 1)
    ]
    columns = ["layer", "block", "quantity", "part", "sequence", "value"]
    made = pd.DataFrame(rows, columns=columns).astype({"sequence": "Int64"})
    return made.dropna(subset="value").reset_index(drop=True)  # parts that only other blocks have


def report(found: "Probe") -> str:
    """Means over sequences by layer, what the columns are, and the two exponents."""
    depth, sequences = len(found.blocks), found.stream["q"].shape[1]
    dtype = str(found.dtype).removeprefix("torch.")
    columns = _columns(found)
    lines = [
        f"{depth} blocks, {found.blocks[0]} to {found.blocks[-1]}; {sequences} sequences; {dtype}",
        "",
        *_aligned(["layer", *columns], ["input", *found.blocks], [*columns.values()]),
        "",
        "rho       mean inner product of two tokens over their mean squared norm; 1: all parallel",
        "residual  distance of the tokens from their mean, over their norm; 0: rank collapse",
    ]
    if found.parameters:
        lines.append(
            "dL/d      squared norms of gradients: stream, W^Q, W^K, W^V, all other parameters"
        )
    if found.attention:
        lines.append(
            "jacobian  squared norms of dS/dW^Q, dS/dW^K, dS/dW^V, S the attention's output"
        )
        lines.append("entropy   of the attention, in nats, mean over rows and heads")
    return "\n".join([*lines, "", *readings(found), *found.notes])


def _columns(found: "Probe") -> dict[str, list[float]]:
    """Heading -> a number for layers 0 to L, NaN where there is none."""
    mean = {name: values.mean(1) for name, values in found.stream.items()}
    share = mean["q_minus_p"] / mean["q"]
    columns = {
        "rho": (1 - share).tolist(),
        "1-rho": share.tolist(),
        "|x|^2/d": mean["q"].tolist(),
        "residual": mean["rank_residual"].tolist(),
    }
    if found.parameters:
        columns["dL/dx"] = mean["grad_x"].tolist()
        families = {family: [math.nan] * (len(found.blocks) + 1) for family in (*"qkv", "rest")}
        for part, values in found.parameters.items():
            word = part.removesuffix(".weight").rpartition(".")[2]
            total = families[word if word in families else "rest"]
            for layer, value in enumerate(values.tolist(), 1):
                total[layer] = math.fsum(v for v in (total[layer], value) if not math.isnan(v))
        columns |= {f"dL/d{family}": values for family, values in families.items()}
    paths = {key.rpartition(".")[0] for key in found.attention}
    for key, of in found.attention.items():
        heading = key.rpartition(".")[2] if len(paths) == 1 else key
        columns[heading.replace("attention_", "")] = [math.nan, *of.mean(1).tolist()]
    return {name: values for name, values in columns.items() if not all(map(math.isnan, values))}


def _aligned(heading: list[str], names: list[str], columns: list[list[float]]) -> list[str]:
    width = max(len(name) for name in names)
    wide = [max(9, len(name)) for name in heading[1:]]
    lines = [f"{heading[0]:5}  {'block':{width}}"]
    lines[0] += "".join(f"  {name:>{w}}" for name, w in zip(heading[1:], wide, strict=True))
    for layer, name in enumerate(names):
        cells = ["" if math.isnan(column[layer]) else f"{column[layer]:.3g}" for column in columns]
        shown = "".join(f"  {cell:>{w}}" for cell, w in zip(cells, wide, strict=True))
        lines.append(f"{layer:5}  {name:{width}}{shown}".rstrip())
    return lines


def readings(found: "Probe") -> list[str]:
    """lambda_a and lambda_g over the last half of the blocks, or why they are not there.

        lambda_a = slope of ln(1 - rho) ,  1 - rho = mean (q - p) / mean q
        lambda_g = - slope of ln g ,       g = mean |dLoss/dx_i|^2

    by `instruments.geometry.growth_rate`, with the sequences in the place of networks.
    """
    import torch

    depth, n_sequences = len(found.blocks), found.stream["q"].shape[1]
    if depth < _MIN_DEPTH:
        return [f"exponents: not fitted, {depth} blocks are too few; {_MIN_DEPTH} are needed"]
    first = depth - depth // 2
    late = {name: values[first:] for name, values in found.stream.items()}
    least = float((late["q_minus_p"].mean(1) / late["q"].mean(1)).min())
    if least <= (10 * torch.finfo(found.dtype).eps) ** 2:
        dtype = str(found.dtype).removeprefix("torch.")
        lines = [f"lambda_a: not fitted, 1 - rho = {least:.1g} is the rounding of {dtype}"]
    else:
        rate, error = _rate(late["q_minus_p"], late["q"])
        way = _way(rate, error, "tokens part", "tokens align")
        lines = [f"lambda_a = {rate:+.3g}{_plus_minus(error)} per block: {way}"]
    if "g" in late and float(late["g"].mean(1).min()) <= 0:
        lines.append("lambda_g: not fitted, a gradient is zero")
    elif "g" in late:
        rate, error = _rate(late["g"])
        way = _way(
            -rate, error, "gradients grow towards the input", "gradients shrink towards the input"
        )
        lines.append(f"lambda_g = {-rate:+.3g}{_plus_minus(error)} per block: {way}")
    how = f"fitted to ln(1 - rho) and ln |dL/dx|^2, layers {first} to {depth}"
    spread = "; +-: over the sequences of this one network" if n_sequences > 1 else ""
    return [*lines, f"          {how}{spread}"]


def _rate(*parts: "Tensor") -> tuple[float, float]:
    """Slope per block and its error, NaN with one sequence; (layers, B) each."""
    from sigprop.instruments.geometry import growth_rate

    alone = parts[0].shape[1] == 1  # `growth_rate` takes two networks or more
    rate, error = growth_rate(
        range(len(parts[0])), *(v.expand(-1, 2 if alone else -1) for v in parts)
    )
    return rate, math.nan if alone else error


def _plus_minus(error: float) -> str:
    return "" if math.isnan(error) else f" +- {error:.1g}"


def _way(rate: float, error: float, up: str, down: str) -> str:
    if abs(rate) < 2 * error:
        return "no change beyond the error"
    return up if rate > 0 else down
