"""Seeded fuzzing of everything that reads bytes which others made; ``make fuzz`` runs it."""
