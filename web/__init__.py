"""The Host: the HTTP application, the listener, the assembly, the command line.

Imports :mod:`actors`, which never imports this package.
"""
