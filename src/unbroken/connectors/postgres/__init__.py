"""PostgreSQL as a sink."""
