"""One replica of a shard: inboxes, cuts, the gate that its query asks, and its subscriptions."""
