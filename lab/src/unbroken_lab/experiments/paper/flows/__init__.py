"""The flows that the experiments run, each a file of its own as a user would write it."""
