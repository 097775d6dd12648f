"""Training on translation: every method of Noci et al. 2022 on real sentence pairs."""
