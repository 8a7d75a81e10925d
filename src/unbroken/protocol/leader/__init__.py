"""Replicas that a leader orders: elections, and the orders it gives."""
