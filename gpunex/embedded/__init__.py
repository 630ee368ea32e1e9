"""Real services for trying and testing: PostgreSQL, a Redis-protocol server and a development chain, run from wheels.

This package imports nothing of Django, so that it can run before the settings are read: it makes the environment that
they are read from. Everything lives under ``.gpunex/<cluster>/`` of the checkout; nothing listens beyond loopback.
"""
