"""Gradients of a random linear readout through random encoders, layer by layer."""
