"""Values whose limits differ between Arrow, Python and the formats: decimals, times, years."""
