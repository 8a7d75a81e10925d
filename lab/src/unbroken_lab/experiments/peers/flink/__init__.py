"""Flink beside Unbroken: how it is installed, configured and asked."""
