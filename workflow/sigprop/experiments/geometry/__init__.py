"""Token geometry of random networks, forward and backward (Cowsik et al. 2024)."""
