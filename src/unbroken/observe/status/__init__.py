"""The status of nodes and flows: one versioned schema, how it is read from nodes, and what it amounts to."""
