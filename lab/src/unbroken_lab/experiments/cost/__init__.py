"""What availability costs while nothing fails."""
