"""The Spark side of a replica: its source and sink, its query, its state and what it may compute."""
