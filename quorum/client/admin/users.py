"""The client's calls for users and their permissions."""

from __future__ import annotations

from quorum.client.admin.calls import AdminCalls
from quorum.client.admin.records import UserInfo
from quorum.client.values import require_flag, require_text, require_texts
from quorum.v1 import admin_pb2


class UserCalls(AdminCalls):
    """The user calls of Client."""

    async def set_user(
        self,
        user: str,
        password: str = "",
        *,
        administers: bool = False,
        monitors: bool = False,
        timeout_ms: int | None = None,
    ) -> bool:
        """Make a user or change it. True if that changed anything.

        password: at least 8 characters; empty: as it is, and a new user logs in with a certificate or a token only.
        administers: it may do everything. monitors: it may see everything but messages. Its permissions stay. When a
        user changes, its sessions are opened again.
        """
        require_texts(user=user, password=password)
        require_flag("administers", administers)
        require_flag("monitors", monitors)
        request = admin_pb2.SetUserRequest(
            user=user, password=password, administers=administers, monitors=monitors
        )
        return bool((await self._admin("SetUser", request, timeout_ms)).changed)

    async def set_permissions(
        self, user: str, configure: str, write: str, read: str, *, timeout_ms: int | None = None
    ) -> bool:
        """Replace a user's permissions. True if that changed anything. Each is a pattern that matches whole names of
        queues and exchanges, `*` for any characters; empty: none."""
        require_texts(user=user, configure=configure, write=write, read=read)
        request = admin_pb2.SetPermissionsRequest(user=user, configure=configure, write=write, read=read)
        return bool((await self._admin("SetPermissions", request, timeout_ms)).changed)

    async def delete_user(self, user: str, *, timeout_ms: int | None = None) -> None:
        """Delete a user, and end its sessions."""
        require_text("user", user)
        await self._admin("DeleteUser", admin_pb2.DeleteUserRequest(user=user), timeout_ms)

    async def users(self, *, timeout_ms: int | None = None) -> list[UserInfo]:
        """All users, sorted by name."""
        response = await self._admin("ListUsers", admin_pb2.ListUsersRequest(), timeout_ms)
        return [UserInfo.of(user) for user in response.users]
