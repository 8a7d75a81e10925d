"""How long it takes until nodes that stand in for each other fail together: formulas and a simulation."""
