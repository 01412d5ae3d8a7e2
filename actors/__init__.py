"""The domain of sessiond. A module imports only from those above it in this list.

errors        every exception, sorted by who can act on it
strict_json   JSON text and values that come back equal, or a refusal that names the place
values        frozen messages, tool calls, routes, and JSON values kept as text
events        the closed set of seven events, and their Envelope
validation    the schema files, and whether a payload fits its own
codec         event to strict JSON text and back; the digest of a row
history       the model history: which messages an event adds, and their running hash
transcript    the transcript: which entry an event adds
turns         the rules that tie events together, and what an unfinished Turn owes
rows          a stored row, and SQLite's errors in words
snapshot      the session in memory, and immutable O(1) views of it
layout        what a database of ours looks like
owner_lock    one Host a file
companions    what stands beside the file, and opening them together, read-only
reader        the SQLite file, read-only
store         the SQLite file, opened for writing
replay        stored rows back into a checked session
tasks         a task that runs beside a block of code, and ends after it
worker        a thread that makes one task's blocking calls
kernel        plugins that come and go: services, effects, hooks
writer        the one task that commits, replies and publishes
session_log   what others hold of all this
tools         tools and prompts that plugins contribute, and running one call
builtin_tools the tools that come with sessiond: clock and recall
routes        the adapter protocol, and the table of routes
providers     the model adapters
turn_hooks    the points of a Step at which plugins take part
recording     appending an event, and the log line that tells of it
agent         the Turn
invocations   the queue of Turns
plugins       all of this as plugins
"""
