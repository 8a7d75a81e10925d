"""Studies on the simulator: reliability, the cost of strategies, plans for real flows."""
