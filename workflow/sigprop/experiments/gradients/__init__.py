"""Gradients of a random linear read-out through random encoders, layer by layer."""
