"""Inputs and data: tokens of given geometry, digit reversal, counting, translation."""
