"""What all gRPC services share: admission of calls, limits of requests, and conversion of errors and arguments.

The services import this room, and it imports none of them.
"""
