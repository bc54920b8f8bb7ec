"""Load and reports. `run` starts members and load processes, `load` is one such process, `report` prints.

A figure here is a figure of the service: batches are encoded once before the measurement, every load
generator is a process of its own that does nothing per message, and its own CPU time is reported beside the
members'.
"""
