"""The publisher side: block files, the block maker, the publish protocol, Spark sources and sinks."""
