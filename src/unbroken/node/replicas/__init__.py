"""The replicas of a node as they really are: directories, queries, forks, copies."""
