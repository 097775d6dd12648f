"""Closed-form phase diagrams, critical lines and update maps (Cowsik et al. 2024)."""
