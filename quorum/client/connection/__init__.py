"""How the client reaches the members: their addresses, and TLS."""
