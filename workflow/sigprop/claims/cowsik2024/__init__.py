"""Claims of Cowsik et al. 2024 (arXiv 2403.02579)."""
