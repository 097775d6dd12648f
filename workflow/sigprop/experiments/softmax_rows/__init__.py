"""Monte Carlo of random softmax rows, beside their exact moments."""
