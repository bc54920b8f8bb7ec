"""The client's session at a member: its stream, its publishers, consumers and transactions."""
