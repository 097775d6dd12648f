"""One training loop for everything: schedules, optimizers, measurements, checkpoints."""
