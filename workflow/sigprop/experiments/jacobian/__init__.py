"""Exact Jacobian norms of single random attention layers, alongside Lemma 3.1."""
