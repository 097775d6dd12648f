"""From tidy tables to the arrays that a panel draws or a claim tests."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sigprop.analysis.stats import Array, bootstrap_mean, bootstrap_ratio
from sigprop.artifacts.errors import UserError
from sigprop.artifacts.provenance import code_root
from sigprop.artifacts.tables import read_sidecar, read_table
from sigprop.models.schemes import SCHEMES


def load(tables: Mapping[str, str], name: str) -> pd.DataFrame:
    """Simulation and theory of table `name` as one frame; paths as in a notebook's `tables`.

    Relative paths are taken from the current folder or, failing that, from the checkout, so a
    notebook also runs from its own folder.
    """
    frames = [read_table(find(tables[key])) for key in (name, f"{name}_theory") if key in tables]
    return pd.concat(frames, ignore_index=True)


def settings(tables: Mapping[str, str], name: str) -> dict[str, Any]:
    """The settings that table `name` was made with, from its sidecar."""
    found: dict[str, Any] = read_sidecar(find(tables[name]))["settings"]
    return found


def words(values: Iterable[Any]) -> str:
    """Distinct values in order of appearance: `ReLU and linear`, `0.01`."""
    known = {"relu": "ReLU"}
    return " and ".join(known.get(v, str(v)) for v in dict.fromkeys(values))


def conditions(table: pd.DataFrame) -> str:
    """What a note says first: `ReLU, softmax attention, Gaussian tokens`."""
    return f"{words(table['activation'])}, {words(table['attention'])} attention, Gaussian tokens"


def find(path: str) -> Path:
    """A relative path in the current folder or, failing that, in the checkout."""
    here = Path(path)
    return here if here.exists() or here.is_absolute() else code_root() / path


def choose(table: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    """Rows whose columns equal the wanted values (floats to 1e-9 relative)."""
    keep = np.ones(len(table), dtype=bool)
    for column, value in wanted.items():
        found = table[column].to_numpy()
        close = np.isclose(found, value, rtol=1e-9) if isinstance(value, float) else found == value
        keep &= np.asarray(close, dtype=bool)
    return table[keep]


def called(scheme: str, rule: str) -> str:
    """The name on figures of what the columns `scheme` and `alpha_rule` of a table say was run."""
    name, *changes = scheme.split(", ")
    return ", ".join([SCHEMES[name].called(rule) if name in SCHEMES else name, *changes])


def label(scheme: str, rule: str, tau: float | None = None) -> str:
    r"""What was run, from the columns `scheme`, `alpha_rule` and `tau`: `POST-LN, $\alpha=0.5$`.

    A table without `tau` was run with the scheme's own.
    """
    name = scheme.split(", ")[0]
    if tau is None:
        tau = SCHEMES[name].tau if name in SCHEMES else 1.0
    temperature = "" if tau == 1 else rf", $\tau={tau:g}$"
    return rf"{called(scheme, rule)}, $\alpha={rule}${temperature}"


def labelled(table: pd.DataFrame) -> pd.DataFrame:
    """`table` with a column `label` that names what each row was run with."""
    columns = [name for name in ("scheme", "alpha_rule", "tau") if name in table]
    runs = table[columns].drop_duplicates()
    names = [label(*run) for run in runs.itertuples(index=False)]
    return table.merge(runs.assign(label=names), on=columns, how="left")


def placed(table: pd.DataFrame, where: str, alpha: str, **wanted: Any) -> pd.DataFrame:
    """Rows of networks called `where`, both strengths `alpha`, at tau = 1, and as wanted.

    Raises UserError that names what was not run.
    """
    rows = choose(labelled(table), label=rf"{where}, $\alpha={alpha}$").drop(columns="label")
    if rows.empty:
        raise UserError(rf"scheme, residual, tau: no {where}, $\alpha={alpha}$ was run")
    return need(rows, **wanted)


def need(table: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    """As `choose`; UserError that names the setting when there are no such rows."""
    for column, value in wanted.items():
        left = choose(table, **{column: value})
        if left.empty:
            found = sorted({str(each) for each in table[column]})
            raise UserError(f"{column}={value} was not run, but {', '.join(found) or 'nothing'}")
        table = left
    return table


def one_each(rows: pd.DataFrame, quantity: str, place: str) -> None:
    """Nothing, or UserError unless `rows` hold one value per seed and layer or step (`place`).

    The message names the settings of which the rows mix several values.
    """
    if rows.empty:
        raise UserError(f"{quantity} was not run")
    if not rows.duplicated(["seed", place]).any():
        return
    first = rows[rows.duplicated(["seed", place], keep=False)]
    first = first[(first["seed"] == first["seed"].iloc[0]) & (first[place] == first[place].iloc[0])]
    mixed = {
        column: "/".join(map(str, dict.fromkeys(first[column])))
        for column in first
        if column not in ("seed", "value", "label") and first[column].nunique() > 1
    }
    told = ", ".join(f"{column}={values}" for column, values in mixed.items())
    told = told or "the same one twice"
    raise UserError(f"{quantity}: one value of each setting can be shown here, not {told}")


def groups(table: pd.DataFrame, *by: str) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """`table` split by columns, in order of first appearance."""
    yield from table.groupby(list(by), sort=False, observed=True)


def networks(table: pd.DataFrame, quantity: str) -> tuple[Array, Array]:
    """Layers (k,) and simulated values (n_networks, k) of one quantity of one setting.

    Raises:
        UserError: the rows mix several settings, or there are none.
    """
    rows = need(table, quantity=quantity, source="simulation")
    rows = rows[rows["seed"].notna()]
    one_each(rows, quantity, "layer")
    wide = rows.pivot(index="seed", columns="layer", values="value").sort_index(axis=1)
    return wide.columns.to_numpy(dtype=np.float64), wide.to_numpy(dtype=np.float64)


@dataclass(frozen=True)
class Curve:
    """A simulated curve with its 95 % bootstrap band, and theory on the same layers if any."""

    layer: Array
    mean: Array
    low: Array
    high: Array
    n_networks: int
    theory_layer: Array
    theory: Array


def curve(table: pd.DataFrame, quantity: str) -> Curve:
    """The curve of one quantity of one setting over layers.

    For `rho_ratio` the band resamples networks in the ratio of sums that defines it,
    sum (C - T) / ((n-1) sum T).
    """
    if quantity == "rho_ratio":
        layer, t = networks(table, "sum_sq_norm")
        _, c = networks(table, "sum_inner")
        n_tokens = int(table["n_tokens"].iloc[0])
        mean, low, high = bootstrap_ratio(c - t, (n_tokens - 1) * t)
        count = len(t)
    else:
        layer, values = networks(table, quantity)
        mean, low, high = bootstrap_mean(values)
        count = len(values)
    rows = choose(table, quantity=quantity, source="theory").sort_values("layer")
    return Curve(
        layer,
        mean,
        low,
        high,
        count,
        rows["layer"].to_numpy(dtype=np.float64),
        rows["value"].to_numpy(dtype=np.float64),
    )


def geometric_curve(table: pd.DataFrame, quantity: str, theory: str | None = None) -> Curve:
    """Geometric mean over networks by layer, with its 95 % bootstrap band.

    For positive quantities that range over decades. `theory` names a theory quantity that has one
    value per network and layer; its geometric mean is the theory curve.
    """
    layer, values = networks(table, quantity)
    mean, low, high = (np.exp(v) for v in bootstrap_mean(np.log(values)))
    expected = np.empty(0)
    if theory is not None:
        rows = choose(table, quantity=theory, source="theory")
        wide = rows.pivot(index="seed", columns="layer", values="value").sort_index(axis=1)
        expected = np.exp(np.log(wide.to_numpy(dtype=np.float64)).mean(0))
    return Curve(layer, mean, low, high, len(values), layer[: len(expected)], expected)


def complement(curve: Curve) -> Curve:
    """1 - curve, for logarithmic axes near 1."""
    return replace(
        curve,
        mean=1 - curve.mean,
        low=1 - curve.high,
        high=1 - curve.low,
        theory=1 - curve.theory,
    )


def sizes(table: pd.DataFrame) -> str:
    """Sizes of the simulated networks in words, e.g. `n = 16, d = 128, rho = 0.1, 50 networks`."""
    rows = table[table["source"] == "simulation"]
    seeds = rows[rows["seed"].notna()]
    factors = ["scheme", "alpha_rule", "activation", "attention", "sampler"]
    factors += ["tau", "d_model", "depth", "sigma_x"]
    counts = seeds.groupby(factors, observed=True)["seed"].max() + 1
    least, most = int(counts.min()), int(counts.max())
    networks = f"{most} networks" if least == most else f"{least} to {most} networks"
    widths = sorted(rows["d_model"].unique())
    width = f"d = {widths[0]}" + (f" to {widths[-1]}" if len(widths) > 1 else "")
    samplers = " and ".join(sorted(rows["sampler"].unique()))
    return (
        f"n = {rows['n_tokens'].iloc[0]}, {width}, rho = {rows['rho'].iloc[0]:g}, "
        f"{networks} ({samplers} sampling)"
    )


def theory_at(table: pd.DataFrame, quantity: str, layer: int) -> float:
    """The theory's value of one setting at one layer; ValueError unless there is exactly one."""
    rows = choose(table, quantity=quantity, source="theory", layer=layer)
    if len(rows) != 1:
        raise ValueError(f"{quantity} at layer {layer}: {len(rows)} theory rows, expected 1")
    return float(rows["value"].iloc[0])
