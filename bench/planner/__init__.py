"""How the cost of a plan grows with the connections."""
