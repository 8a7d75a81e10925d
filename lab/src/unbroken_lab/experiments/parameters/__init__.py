"""What a flow that is measured and the experiment on it have to agree on: rows, keys, configurations."""
