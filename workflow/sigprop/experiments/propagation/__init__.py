"""Forward propagation in random encoders: correlation, norm, rank and entropy by layer."""
