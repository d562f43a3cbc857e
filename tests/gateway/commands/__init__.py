"""Tests of `gateway.commands`."""
