"""Consumers, what they hold, and what each of them is given."""
