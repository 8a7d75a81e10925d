"""Pulses and leaders as ways to order input."""
