"""An hour with publishers that come, go, dawdle and do not listen: the node's memory must not grow."""
