"""Tests of the package `datastream`: no socket, no sleep, except where the module is a shell."""
