"""The processes of a deployment: ZooKeeper membership and layout, the controller, nodes, and their owners."""
