"""What Spark says of a segment before it runs: schemas, keys, and everything that must be refused."""
