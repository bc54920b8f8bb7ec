"""The benches. `run` starts members and load processes, `load` is one such process, `report` prints.

The figures measure the service, not the load: batches are encoded once before the measurement, every load generator is
its own process that does no work per message, and its CPU time is reported beside the members'.
"""
