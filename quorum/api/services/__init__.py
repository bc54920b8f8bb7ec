"""The gRPC services but for `quorum.v1.Bulk`: the session's adapter, publishing, browsing, administration and health.

A service converts requests and answers. Sessions, groups and the catalog decide.
"""
