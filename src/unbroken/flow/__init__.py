"""What a user declares: a dataflow, its settings, and everything that is checked before it starts."""
