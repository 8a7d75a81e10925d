"""Order logs: where the leader of a shard publishes its orders, in ZooKeeper or in Kafka."""
