"""The script for spark-submit, in a folder of its own, which Python puts before all others."""
