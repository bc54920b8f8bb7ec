"""Snapshots and checkpoints: the state of a group as bytes, and its check."""
