"""Results for input that is incomplete: forks, and how their results are reconciled."""
