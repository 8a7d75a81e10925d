"""Measurements: every figure in the documentation is printed by a command of this package."""
