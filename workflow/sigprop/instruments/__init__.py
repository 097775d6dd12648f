"""Measurements on tensors: correlation, norm, rank, entropy, Jacobian norms. Never imports theory."""
