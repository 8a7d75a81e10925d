"""Watching a flow that runs: its results, a node that it loses, bytes and processor time, and figures of them."""
