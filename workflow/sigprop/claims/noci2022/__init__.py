"""Claims of Noci et al. 2022 (arXiv 2206.03126)."""
