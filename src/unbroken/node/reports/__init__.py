"""What a node reports about itself: its status, how late and how redundant it is, and calls that hang."""
