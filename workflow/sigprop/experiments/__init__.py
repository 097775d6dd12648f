"""Experiments: settings in, a tidy table out. One folder per kind, see `config.KINDS`."""
