"""What an operator asks of a running flow."""
