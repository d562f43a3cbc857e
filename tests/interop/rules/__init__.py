"""The rules of the publish protocol over real gRPC: one module for each rule, several client streams each."""
