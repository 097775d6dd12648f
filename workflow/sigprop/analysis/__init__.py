"""Readers and statistics of tables, for claims, figures and pages alike. Draws nothing."""
