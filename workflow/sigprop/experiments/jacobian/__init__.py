"""Exact Jacobian norms of single random attention layers, beside Lemma 3.1."""
