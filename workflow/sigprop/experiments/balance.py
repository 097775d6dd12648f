"""Attention layers at the temperature where theory equates query and value gradients."""

import pandas as pd

from sigprop.experiments.balance_theory import balance
from sigprop.experiments.context import Context
from sigprop.experiments.jacobian import simulate
from sigprop.experiments.jacobian_schema import SCHEMA
from sigprop.experiments.jacobian_settings import JacobianSettings

Settings = JacobianSettings
__all__ = ["SCHEMA", "Settings", "run"]


def run(settings: JacobianSettings, context: Context) -> pd.DataFrame:
    """As `jacobian.run`; a module of its own because the theory sets what is simulated."""
    return simulate(settings, context, balance)
