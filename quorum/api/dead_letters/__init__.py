"""The forwarding of dead letters, by the node that leads the group of their queue.

It publishes as a client does, through a session of its own.
"""
