"""An hour with publishers that come, go, dawdle and do not listen: what a node holds must not grow."""
