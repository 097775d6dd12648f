"""Monte Carlo of random softmax rows, alongside their exact moments."""
