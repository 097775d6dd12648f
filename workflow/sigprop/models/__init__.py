"""One transformer block that obeys a scheme, and the samplers that draw its random weights."""
