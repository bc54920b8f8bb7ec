"""Queries of queues. A query changes no replicated state."""
