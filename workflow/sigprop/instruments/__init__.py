"""Measurements on tensors: correlation, norm, rank, entropy, Jacobians. Never imports theory."""
