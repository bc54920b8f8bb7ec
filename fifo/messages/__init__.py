"""The messages of one queue: where they are, and their life."""
