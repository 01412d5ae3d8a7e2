"""What services are asked for by, and the realms that keep equal keys apart."""

from typing import Generic, TypeVar

from attrs import frozen

T = TypeVar("T")


@frozen
class ServiceKey(Generic[T]):
    """Names a service of type ``T``. Keys of one name are one key, wherever they were made."""

    name: str


@frozen(eq=False)
class Realm:
    """In each realm a key has one provider. Told apart by identity; the label is for people."""

    label: str


ROOT_REALM = Realm("root")
