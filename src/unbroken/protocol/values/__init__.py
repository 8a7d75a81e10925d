"""Values that all parts of the protocol share: names, units, layouts, strategies."""
