"""JSON lines, read and written: lines by a vectorised reader, those that it refuses value by value."""
