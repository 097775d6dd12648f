"""Style, statistics and panels for the notebooks. Never imports torch."""
