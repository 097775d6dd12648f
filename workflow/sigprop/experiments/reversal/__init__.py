"""Training on digit reversal (Noci et al. 2022, Figures 5 and 6)."""
