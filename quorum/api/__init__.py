"""The API of a member: sessions of clients, for any protocol, and what serves them over gRPC and HTTP.

The folders are layers. A module imports from its own folder and from the layers below. From the lowest to the highest:
1. `status`, `owners`, `shares`, `turns` and `connections`: what all others may use;
2. `security`;
3. `hub`;
4. `session`;
5. `dead_letters` and `grpc`;
6. `services`, `bulk` and `http`;
7. `server` and `process`, with what only the process uses.
"""
