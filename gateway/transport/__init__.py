"""The front door: the layer between the network and gRPC, on both sides of a connection.

The map is in `gateway/README.md`.
"""
