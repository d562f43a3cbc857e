"""Tests of the package `publishers`: no socket, no sleep, except where the module is a shell."""
