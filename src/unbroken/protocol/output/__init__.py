"""Results on their way out: outboxes, delivery to sinks, and digests that siblings compare."""
