"""A node's session with ZooKeeper, and the controller while the node is elected."""
