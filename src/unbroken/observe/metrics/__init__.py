"""What monitoring systems ask a node: metrics for Prometheus, and whether the node is ready and alive."""
