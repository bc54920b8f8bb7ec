"""The event loop's side of the border to the Raft thread: the `Hub` and its parts.

No module here knows a protocol, or what a client's session does with its answers.
"""
