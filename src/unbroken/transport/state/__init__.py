"""State of replicas between nodes: pinned at a donor, copied, verified."""
