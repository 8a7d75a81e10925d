"""Structured Streaming beside Unbroken: restarted on one machine, or on a cluster of its own."""
