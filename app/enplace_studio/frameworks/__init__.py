"""Frameworks in the studio: opening models, profiling them, running plans on this machine.

A framework runs only in a worker process; nothing here imports one.
"""
