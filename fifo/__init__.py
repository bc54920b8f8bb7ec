"""The deterministic machines: one queue, and one group of queues that shares a Raft log.

Pure: no clock, no random, no I/O, no iteration over sets. The same state and the same entry give the same replies,
effects and snapshot bytes on every member. Read `commands`, then `effects`, then `group_machine`.

The folders are floors, and a module imports from its own floor and those below: `messages`, then `consumers`, then
`pins`, `staging` and `subscriptions`, then `queue_machine`, then `group_machine`, then `queries` and `persistence`.
"""
