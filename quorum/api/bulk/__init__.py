"""The gRPC service `quorum.v1.Bulk`: subscriptions, views and staging, with messages as Arrow blocks.

The modules that need pyarrow are imported at the first call that needs them (`calls.load`).
"""
