"""The lifecycle kernel: plugins come and go while everything else stays consistent.

keys      what services are asked for by, and the realms that keep equal keys apart
effects   what a plugin does that must be undone, undone in reverse
hooks     typed events, and listeners that vanish with their plugin
context   all that a plugin is given
fibers    a mounted plugin: one task, one table of legal moves
runtime   the fibers of one process, their services, and a picture of both
"""
