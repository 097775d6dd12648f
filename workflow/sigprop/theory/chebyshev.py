"""Chebyshev interpolation of smooth functions of one variable, to a checked accuracy.

A function is sampled at the Chebyshev-Lobatto nodes of its interval, the number of nodes is doubled
until the last quarter of the coefficients is below `tolerance` times the largest one, and the
interpolant is then evaluated anywhere for the price of a polynomial. Many functions of the same
variable (one per network setting) are evaluated together.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.polynomial.chebyshev import chebval
from scipy.fft import dct

Array = npt.NDArray[np.float64]

# Up to this many settings one array operation per degree costs more than the cosines.
_FEW = 256


def fit(
    function: Callable[[Array], Array],
    low: float,
    high: float,
    *,
    tolerance: float = 1e-10,
    floor: float = 0.0,
    first_degree: int = 16,
    last_degree: int = 512,
) -> Array:
    """Coefficients (degree + 1, n_outputs) of `function`, which maps x (m,) to (m, n_outputs).

    The tail is compared with `tolerance` times the largest coefficient, or `floor` if larger.
    ValueError when degree `last_degree` does not reach `tolerance`.
    """
    degree = first_degree
    while degree <= last_degree:
        nodes = np.cos(np.pi * np.arange(degree + 1) / degree)  # from 1 down to -1, nested
        values = function(0.5 * (high + low) + 0.5 * (high - low) * nodes)
        coefficients = dct(values, type=1, axis=0) / degree
        coefficients[[0, -1]] /= 2.0
        size = np.abs(coefficients)
        scale = np.maximum(size.max(axis=0), floor)
        tail = size[3 * degree // 4 :].max(axis=0) / scale
        if (tail <= tolerance).all():
            kept = np.flatnonzero((size > 1e-13 * scale).any(axis=1)).max(initial=0) + 1
            return coefficients[:kept]
        degree *= 2
    raise ValueError(
        f"interpolation error {tail.max():.1e} at degree {last_degree} is above {tolerance:g}: "
        "pass a smaller parameter range"
    )


@dataclass(frozen=True, eq=False)
class Curves:
    """Interpolants of several functions, and which of them belongs to each setting.

    coefficients (degree + 1, n_outputs, n_curves); index, low and high have the settings' shape.
    """

    coefficients: Array
    index: npt.NDArray[np.intp]
    low: Array
    high: Array

    @classmethod
    def stack(
        cls,
        parts: list[Array],
        index: npt.NDArray[np.intp],
        low: npt.ArrayLike,
        high: npt.ArrayLike,
    ) -> "Curves":
        """Join the results of `fit`, padded with zeros to one degree."""
        longest = max(len(part) for part in parts)
        padded = [np.pad(part, ((0, longest - len(part)), (0, 0))) for part in parts]
        low = np.broadcast_to(np.asarray(low, dtype=np.float64), index.shape)
        high = np.broadcast_to(np.asarray(high, dtype=np.float64), index.shape)
        return cls(np.stack(padded, axis=-1), index, low, high)

    def __call__(self, x: Array) -> Array:
        """Values (n_outputs, ...) at x, whose shape (...) is that of the settings."""
        unit = (2.0 * x - self.low - self.high) / (self.high - self.low)
        unit = np.clip(unit, -1.0, 1.0)
        coefficients = self.coefficients  # (degree + 1, n_outputs, n_curves or 1...)
        if coefficients.shape[-1] == 1:  # all settings share one curve
            coefficients = coefficients.reshape(*coefficients.shape[:2], *(1,) * unit.ndim)
        else:
            coefficients = coefficients[..., self.index]
        if unit.size > _FEW:
            return np.asarray(chebval(unit[None], coefficients, tensor=False))  # Clenshaw
        degrees = np.arange(len(coefficients)).reshape(-1, *(1,) * unit.ndim)
        basis = np.cos(degrees * np.arccos(unit))  # T_k(x)
        return np.asarray((coefficients * basis[:, None]).sum(axis=0))
