"""The deterministic machines: one queue, and one group of queues that shares a Raft log.

Pure: no clock, no random, no I/O, no iteration over sets. The same state and the same entry give the same replies,
effects and snapshot bytes on every member. Read `commands`, then `effects`, then `group_machine`.

The folders are layers. A module imports from its own layer and from those below. From the lowest to the highest:
1. `messages`;
2. `consumers`;
3. `pins`, `staging` and `subscriptions`;
4. `queue_machine`;
5. `group_machine`;
6. `queries` and `persistence`.
"""
