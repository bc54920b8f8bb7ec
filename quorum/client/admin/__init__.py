"""The calls outside a session: queues, exchanges, users, policies, members, definitions, dead letters."""
