"""What is agreed in ZooKeeper: documents and elections."""
