"""The temperature at which theory equates query and value gradients."""

from sigprop.experiments.jacobian_settings import Case
from sigprop.theory.noci2022_gradients import tau_star


def balance(case: Case) -> float:
    """The cell's own tau, or tau* where its settings say `balance`."""
    if case.tau:
        return case.tau
    variances = (1 / case.d_v, 1 / case.d_k)
    return float(tau_star(case.n_tokens, case.d_model, case.sigma_x, case.rho, *variances))
