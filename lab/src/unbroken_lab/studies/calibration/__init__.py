"""What a flow costs on this machine: measured segment by segment, and kept for predictions."""
