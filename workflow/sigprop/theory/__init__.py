"""Closed forms and quadrature in float64, one module per paper. No torch, no instruments."""
