"""One module per experiment: settings in, tidy table out."""
