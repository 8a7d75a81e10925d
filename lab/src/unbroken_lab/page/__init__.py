"""The live page of a simulated flow."""
