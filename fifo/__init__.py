"""The deterministic machines: one queue, and one group of queues that shares a Raft log.

Pure: no clock, no random, no I/O, no iteration over sets. The same state and the same entry give the same replies,
effects and snapshot bytes on every member. Read `commands`, then `effects`, then `group`.
"""
