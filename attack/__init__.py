"""Attacks on a server and a client of ours, each with a limit that it must keep."""
