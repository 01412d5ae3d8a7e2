"""Every exception this package raises, sorted by who can act on it.

All share one parent, :class:`SessiondError`, which is never raised itself, so that a caller can
tell "sessiond said no" from a bug. Foreign exceptions (``sqlite3``, ``json``, ``OSError``) are
translated where they occur and kept as ``__cause__``.

- Mend the value:       :class:`NotStrictJson`, :class:`RejectedEvent`
- Read again, retry:    :class:`SequenceConflict`
- Stop using the log:   :class:`LogClosed`
- Look at the disk:     :class:`StoreError` and its kinds
- Ask differently:      :class:`InvocationError` and its kinds, :class:`RouteUnavailable`
- Change the options:   :class:`ConfigurationError`
- Mend the plugin:      :class:`KernelError` and its kinds
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class SessiondError(Exception):
    """The common parent of every error of this package; only its kinds are raised."""

    def __init__(self, message: str) -> None:
        if type(self) is SessiondError:
            raise TypeError("SessiondError is a parent only: raise one of its kinds")
        super().__init__(message)


# --- the value at hand is wrong ---------------------------------------------------------------


class NotStrictJson(SessiondError):
    """A value or text is not strict JSON.

    ``place`` is a JSON Pointer (RFC 6901) into the value, empty for the value as a whole or
    where a text could not be parsed at all.
    """

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(f"{place}: {reason}" if place else reason)
        self.reason = reason
        self.place = place


class RejectedEvent(SessiondError):
    """An event is malformed or breaks a rule of its session; nothing was written."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SequenceConflict(SessiondError):
    """The append named a sequence other than the one it would have received."""

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"expected sequence {expected}, but the next is {actual}")
        self.expected = expected
        self.actual = actual


class LogClosed(SessiondError):
    """The session log was closed by its owner; the append wrote nothing."""

    def __init__(self, message: str = "the session log is closed") -> None:
        super().__init__(message)


# --- the file or the disk is at fault ---------------------------------------------------------


class StoreError(SessiondError):
    """The database file cannot be used as asked: refused, unreadable, or damaged.

    ``path`` is the file as the caller named it (None for a session kept in memory), ``fault``
    the reason in one line.
    """

    def __init__(self, fault: str, path: Path | str | None = None) -> None:
        super().__init__(f"{path}: {fault}" if path is not None else fault)
        self.fault = fault
        self.path = path


class UnsoundSession(StoreError):
    """A stored session breaks its chain, its schemas or its rules at ``sequence``.

    The events before ``sequence`` are sound.
    """

    def __init__(self, fault: str, path: Path | str | None, session_id: str, sequence: int) -> None:
        super().__init__(f"session {session_id!r}, sequence {sequence}: {fault}", path)
        self.reason = fault
        self.session_id = session_id
        self.sequence = sequence


class AppendFailed(StoreError):
    """The transaction failed and nothing of it was written; a later append may succeed."""


class OutcomeUnknown(StoreError):
    """The transaction failed in a way that leaves open whether it was written.

    The writer has stopped. The next start reads what the file holds.
    """


class StoreStopped(StoreError):
    """The writer stopped after an earlier failure; this append wrote nothing. Reads go on."""


# --- the request at hand cannot be served -----------------------------------------------------


class InvocationError(SessiondError):
    """An invocation request is refused; ``invocation_id`` names it. Only its kinds are raised."""

    def __init__(self, message: str, invocation_id: str) -> None:
        if type(self) is InvocationError:
            raise TypeError("InvocationError is a parent only: raise one of its kinds")
        super().__init__(message)
        self.invocation_id = invocation_id


class InvocationUnknown(InvocationError):
    """No such invocation is live or recorded."""


class InvocationLive(InvocationError):
    """The id names an invocation that is still queued or running."""


class InvocationMismatch(InvocationError):
    """The id was used before with another input text."""


class InvocationSettled(InvocationError):
    """The invocation has its outcome and can no longer be cancelled."""


class ShuttingDown(InvocationError):
    """The Host is stopping and takes no invocation."""


class RouteUnavailable(SessiondError):
    """No model adapter is mounted for the asked (provider, model) pair."""

    def __init__(self, provider: str, model: str) -> None:
        super().__init__(f"no model is mounted at route {provider}/{model}")
        self.provider = provider
        self.model = model


class ConfigurationError(SessiondError):
    """An option or the environment asks for something the Host cannot do."""


class ListenError(SessiondError):
    """The listener cannot be bound to the asked address and port."""


# --- a plugin does what it must not -----------------------------------------------------------


class KernelError(SessiondError):
    """A plugin, or whoever mounts one, breaks a rule of its life; only its kinds are raised."""

    def __init__(self, message: str) -> None:
        if type(self) is KernelError:
            raise TypeError("KernelError is a parent only: raise one of its kinds")
        super().__init__(message)


class IllegalMove(KernelError):
    """A fiber was to move to a state that its own does not lead to; nothing changed."""


class UndeclaredService(KernelError):
    """A plugin asked for a service that it does not declare to require."""


class ServiceConflict(KernelError):
    """The key has a provider in that realm already."""


class ContextClosed(KernelError):
    """The plugin is neither loading nor active, so nothing can be done in its name."""


class ForeignTask(KernelError):
    """An Effect was to be entered in a task other than the plugin's own."""


class EffectTimeout(KernelError):
    """Leaving an Effect took longer than it may; it was cancelled, and the rest was undone."""

    def __init__(self, label: str, deadline_s: float) -> None:
        super().__init__(f"{label}: not undone within {deadline_s:g} s")
        self.label = label
        self.deadline_s = deadline_s


class EffectEnded(KernelError):
    """An Effect cancelled the plugin it belongs to, without saying why."""


class Unmounted(KernelError):
    """The plugin that was waited for is gone."""
