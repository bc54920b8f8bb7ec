"""Consumers, their checked-out messages, and the choice of messages for each of them."""
