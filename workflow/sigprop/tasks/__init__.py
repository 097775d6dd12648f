"""Inputs and data: correlated Gaussian tokens; later digit reversal and translation."""
