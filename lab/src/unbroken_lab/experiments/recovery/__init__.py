"""What a lost node costs, and how long it takes until everything is as before."""
