"""The simulator with every order of steps: nothing happens unless it is chosen, and time passes when it is told to."""
