"""Users of the service, and what each may do.

A permission is a pattern of names (policies.matches), as policies have: it allows the right for every queue and
exchange whose whole name matches. An empty pattern allows nothing. Two rights are for the cluster: *monitor* sees
everything, *administer* may do everything.

The catalog never sees a password. It has the text that a member made from it (api/security/passwords.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fifo.commands import MAX_NAME_BYTES
from fifo.effects import Ok, Refused, Reply
from fifo.frozen_dataclasses import dataclass
from quorum.catalog.arguments import ArgumentError, check_text
from quorum.catalog.lease_times import UNSEEN
from quorum.catalog.policies import matches

MAX_USERS = 1_000
MAX_SECRET_BYTES = 255
"""Maximum length of the text that stands for a password."""


@dataclass(frozen=True, slots=True)
class User:
    """A user. secret: stands for the password; empty: the user cannot log in with one, only with a certificate.
    configure, write, read: patterns of the names of queues and exchanges."""

    name: str
    secret: str
    administers: bool = False
    monitors: bool = False
    configure: str = ""
    write: str = ""
    read: str = ""

    def may(self, right: str, name: str) -> bool:
        """Whether the user has a right for a queue or exchange. right: configure, write or read."""
        pattern = getattr(self, right)
        return self.administers or (bool(pattern) and matches(pattern, name))

    @property
    def may_monitor(self) -> bool:
        return self.monitors or self.administers


@dataclass(frozen=True, slots=True)
class SetUser:
    """Creates or changes a user. secret: empty: as it is. seen: as in commands.SeenChanges."""

    name: str
    secret: str
    administers: bool
    monitors: bool
    seen: int = UNSEEN


@dataclass(frozen=True, slots=True)
class SetPermissions:
    """Replaces a user's permissions. seen: as in commands.SeenChanges."""

    name: str
    configure: str
    write: str
    read: str
    seen: int = UNSEEN


@dataclass(frozen=True, slots=True)
class RemoveUser:
    """Removes a user. seen: as in commands.SeenChanges."""

    name: str
    seen: int = UNSEEN


UserCommand = SetUser | SetPermissions | RemoveUser


class Users:
    """All users at one moment, by name, in order. A change makes a new object."""

    def __init__(self, users: Iterable[User] = ()) -> None:
        self.by_name = {user.name: user for user in sorted(users, key=lambda each: each.name)}

    def __len__(self) -> int:
        return len(self.by_name)

    def _with(self, user: User) -> Users:
        return Users([*(each for each in self.by_name.values() if each.name != user.name), user])

    def _administrators(self) -> list[str]:
        return [user.name for user in self.by_name.values() if user.administers]

    def changed(self, command: UserCommand) -> tuple[Users, Reply]:
        """The users after a command, and its reply, whose count is 1 if that changes anything."""
        try:
            check(command)
        except ArgumentError as error:
            return self, Refused("bad_argument", str(error))
        known = self.by_name.get(command.name)
        if isinstance(command, SetUser):
            made = replace(
                known or User(command.name, ""),
                secret=command.secret or (known.secret if known else ""),
                administers=command.administers,
                monitors=command.monitors,
            )
            if known is None and len(self) >= MAX_USERS:
                return self, Refused("limit", f"there are {len(self)} users; at most {MAX_USERS} are allowed")
        elif known is None:
            return self, Refused("not_found", f"there is no user {command.name!r}")
        elif isinstance(command, SetPermissions):
            made = replace(known, configure=command.configure, write=command.write, read=command.read)
        else:
            made = None
        if self._administrators() == [command.name] and not (made and made.administers):
            return self, Refused(
                "last_administrator",
                f"{command.name!r} is the only administrator; make another user one before",
            )
        if not self._administrators() and not (made and made.administers):
            return self, Refused(
                "last_administrator", "the first user of a cluster has to be an administrator"
            )
        if made == known:
            return self, Ok(0)
        if made is None:
            return Users(each for each in self.by_name.values() if each.name != command.name), Ok(1)
        return self._with(made), Ok(1)


def check(command: UserCommand) -> None:
    """Raises ArgumentError if a command is never allowed."""
    check_user_name(command.name)
    if isinstance(command, SetUser) and len(command.secret.encode()) > MAX_SECRET_BYTES:
        raise ArgumentError(f"a secret of more than {MAX_SECRET_BYTES} bytes")
    if isinstance(command, SetPermissions):
        for right in ("configure", "write", "read"):
            pattern = getattr(command, right)
            if pattern:
                check_text(f"{right} pattern", pattern)


def check_new_user_name(name: str) -> None:
    """As check_user_name, before a name becomes part of a command. There, the text for a wrong length is part of the
    reply, so it stays as it is."""
    size = len(name.encode())
    if not 1 <= size <= MAX_NAME_BYTES:
        raise ArgumentError(f"a user name of {size} bytes; allowed: 1..{MAX_NAME_BYTES}")
    check_user_name(name)


def check_user_name(name: str) -> None:
    """Raises ArgumentError for a name that no user can have: a colon ends it in HTTP's basic authentication."""
    check_text("user name", name)
    if ":" in name:
        raise ArgumentError(f"user name {name!r} has a colon; allowed: any other characters")
