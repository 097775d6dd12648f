"""Closed forms and quadrature in float64, one module per paper. Never imports torch or instruments."""
