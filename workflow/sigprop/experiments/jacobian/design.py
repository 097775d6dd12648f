"""The temperature at which theory equates query and value gradients."""

from sigprop.experiments.jacobian.settings import Cell, JacobianSettings
from sigprop.theory.noci2022_gradients import tau_star


def run(settings: JacobianSettings) -> list[float]:
    """The temperature of every cell: its own, or tau* where its settings say `balance`."""
    return [cell.tau or _balance(cell) for cell in settings.cells()]


def _balance(cell: Cell) -> float:
    sizes = (cell.n_tokens, cell.d_model, cell.sigma_x, cell.rho)
    return float(tau_star(*sizes, 1 / cell.d_v, 1 / cell.d_k))
