"""The agreed log of cuts and pushed rows, and when its leader cuts the next pulse."""
