"""What sessiond costs, beside plain SQLite doing the same work in the same run.

``run`` is the command; ``lines`` says what a line and its result are; ``workload`` and ``raw`` are
the two sides' material. Each of the others measures one family of lines.
"""
