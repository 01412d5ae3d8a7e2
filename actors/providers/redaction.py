"""The key of a provider: kept out of sight, and taken out of what the provider sends back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from attrs import field, frozen

from actors.errors import ConfigurationError

if TYPE_CHECKING:
    from actors.strict_json import JsonValue

REDACTED = "[redacted]"
MIN_SEARCHED_CHARS = 16
"""What a key has at least for model output to be searched for it: a shorter one may well be a
word that the model means."""

_sendable = re.compile(r"[\x21-\x7e]+")


def _stripped(key: str | None) -> str | None:
    return None if key is None else key.strip()


@frozen(eq=False)
class Secret:
    """A key, or None for a provider that asks for none. It leaves as a header alone.

    Its text is in no ``repr`` and no exception. Blanks around it, such as the newline at the end
    of a file, do not belong to it.

    Raises:
        ConfigurationError: it is empty, or no HTTP header can carry it.
    """

    _key: str | None = field(repr=False, converter=_stripped)

    def __attrs_post_init__(self) -> None:
        if self._key is None:
            return
        if not self._key:
            raise ConfigurationError("the key of the model provider is empty")
        if _sendable.fullmatch(self._key) is None:
            raise ConfigurationError(
                "the key of the model provider holds characters that no HTTP header can carry"
            )

    def header(self) -> dict[str, str]:
        """Return the HTTP header that shows the key to the provider; none without one."""
        return {} if self._key is None else {"Authorization": f"Bearer {self._key}"}

    def out_of_text(self, text: str) -> str:
        """Return model output with the key, wherever it stands whole, replaced."""
        key = self._key
        if key is None or len(key) < MIN_SEARCHED_CHARS:
            return text
        # Again, for what stood around one key may, with the mark, be another. It ends: the mark
        # is shorter than any key that is searched for.
        while key in text:
            text = text.replace(key, REDACTED)
        return text

    def out_of_json(self, text: str) -> str:
        """Return JSON text of a model, well-formed or not, with the key replaced.

        Also where it is spelled with escapes: there it is not the key yet, and becomes it as
        soon as a tool parses its arguments. Nothing else of the text changes.
        """
        text, key = self.out_of_text(text), self._key
        if key is None or len(key) < MIN_SEARCHED_CHARS or "\\" not in text:
            return text
        return re.sub("".join(map(_spelled, key)), REDACTED, text)

    def out_of_value(self, value: JsonValue) -> JsonValue:
        """Return model output with the key replaced in every string, names of members included.

        Of two members that then have the same name the later one stays.
        """
        if isinstance(value, str):
            return self.out_of_text(value)
        if isinstance(value, list):
            return [self.out_of_value(member) for member in value]
        if isinstance(value, dict):
            return {
                self.out_of_text(name): self.out_of_value(member) for name, member in value.items()
            }
        return value

    def out_of_error(self, text: str) -> str:
        """Return foreign words about an error with the key replaced, however short it is."""
        text = self.out_of_text(text)
        return text if self._key is None else text.replace(self._key, REDACTED)


def _spelled(character: str) -> str:
    """Return a pattern of all the ways in which JSON text can spell a character."""
    return rf"(?:\\?{re.escape(character)}|\\u(?i:{ord(character):04x}))"
