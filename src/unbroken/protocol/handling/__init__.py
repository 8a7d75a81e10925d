"""What a node does with the events of its kernel, by what they are about."""
