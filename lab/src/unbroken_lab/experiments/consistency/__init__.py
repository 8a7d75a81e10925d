"""Results while an input is missing, and until all of them are right."""
