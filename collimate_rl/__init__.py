"""collimate-rl."""
