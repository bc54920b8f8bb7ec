"""The HTTP port: the JSON API, the web page, events and metrics.

A member imports this package only if it has an HTTP address. Requests are judged and counted as those of gRPC.
"""
