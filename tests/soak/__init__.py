"""An hour with publishers that come, go, are slow or deaf: the node's memory must not grow."""
