"""What is agreed in ZooKeeper: documents, elections and order logs."""
