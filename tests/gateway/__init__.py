"""Tests of the package `gateway`: no socket, no sleep, except where the module is a shell."""
