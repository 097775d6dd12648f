"""Checks of arguments that all theory shares: one line that names the argument, value and fix.

Each returns its argument as float64, or raises ValueError.
"""

import operator
import reprlib
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
ArrayLike = npt.ArrayLike

# Values of 1 + (n-1) rho below this are the rounding error of an exact zero (centred tokens).
ZERO = 8 * np.finfo(np.float64).eps


def check_finite(name: str, value: Any) -> Array:
    """`value` as a finite float64 array; ValueError if it is not numeric or not finite."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        shown = reprlib.repr(value)
        raise ValueError(f"{name} = {shown} is not numeric: pass numbers") from None
    if not np.isfinite(array).all():
        bad = array[~np.isfinite(array)].flat[0]
        raise ValueError(f"{name} = {bad} is not finite: pass finite numbers")
    return array


def check_at_least(name: str, value: Any, low: float, *, strict: bool = False) -> Array:
    """`value` as float64 with every entry >= low (> low if strict); ValueError otherwise."""
    array = check_finite(name, value)
    fails = array <= low if strict else array < low
    if fails.any():
        bad, sign = array[fails].flat[0], ">" if strict else ">="
        raise ValueError(f"{name} = {bad:g} is out of range: pass {name} {sign} {low:g}")
    return array


def check_unit_interval(name: str, value: Any) -> Array:
    """`value` as float64 in [0, 1]."""
    array = check_finite(name, value)
    fails = (array < 0.0) | (array > 1.0)
    if fails.any():
        raise ValueError(
            f"{name} = {array[fails].flat[0]:g} is out of range: pass 0 <= {name} <= 1"
        )
    return array


def check_n_tokens(n_tokens: Any) -> Array:
    """`n_tokens` as float64: whole numbers >= 2, or inf."""
    try:
        n = np.asarray(n_tokens, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"n_tokens = {n_tokens!r} is not numeric: pass n_tokens >= 2") from None
    fails = ~((n >= 2.0) & (np.isinf(n) | (n == np.floor(n))))
    if fails.any():
        raise ValueError(
            f"n_tokens = {n[fails].flat[0]:g} is out of range: pass a whole n_tokens >= 2, or inf"
        )
    return n


def check_depth(depth: Any) -> int:
    """`depth` as a whole number >= 1."""
    try:
        value = operator.index(depth)
    except TypeError:
        shown = reprlib.repr(depth)
        raise ValueError(f"depth = {shown} is not a whole number: pass an int >= 1") from None
    if value < 1:
        raise ValueError(f"depth = {value} is out of range: pass depth >= 1")
    return value


def check_correlation(name: str, rho: Any, n_tokens: Array) -> Array:
    """`rho` as float64 in [-1/(n-1), 1], the correlations n exchangeable tokens can have.

    The result has the broadcast shape of `rho` and `n_tokens`.
    """
    array = check_finite(name, rho)
    low = -1.0 / (n_tokens - 1.0)
    fails = (array < low - ZERO) | (array > 1.0)
    if fails.any():
        bad = np.broadcast_to(array, fails.shape)[fails].flat[0]
        edge = np.broadcast_to(low, fails.shape)[fails].flat[0]
        raise ValueError(
            f"{name} = {bad:g} is out of range: pass -1/(n_tokens-1) = {edge:g} <= {name} <= 1"
        )
    return np.maximum(array, low)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} = {value!r} is unknown: pass one of {', '.join(choices)}")
