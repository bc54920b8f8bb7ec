"""The part of quorum.v1.Admin for users and their permissions."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

from fifo.effects import Ok
from quorum.api import status
from quorum.api.grpc.handlers import Context, unary_once
from quorum.api.hub.catalog_view import CatalogView
from quorum.api.hub.hub import Hub
from quorum.api.security.passwords import check_password, secret_of
from quorum.catalog.users import RemoveUser, SetPermissions, SetUser, UserCommand, check, check_new_user_name
from quorum.v1 import admin_pb2 as pb

HASHED_AT_ONCE = 1


class UserService:
    """Methods for users; AdminService has the others."""

    _hub: Hub

    def __init__(self) -> None:
        super().__init__()
        self._making_secrets = asyncio.Semaphore(HASHED_AT_ONCE)

    @unary_once
    async def SetUser(self, request: pb.SetUserRequest, context: Context) -> pb.SetUserResponse:
        check_new_user_name(request.user)
        secret = ""
        if request.password:
            try:
                check_password(request.password)
            except ValueError as error:
                raise status.invalid("bad_argument", str(error)) from error
            async with self._making_secrets:
                secret = await asyncio.to_thread(secret_of, request.password)
        command = SetUser(request.user, secret, request.administers, request.monitors)
        return pb.SetUserResponse(changed=await self._change_user(command))

    @unary_once
    async def SetPermissions(
        self, request: pb.SetPermissionsRequest, context: Context
    ) -> pb.SetPermissionsResponse:
        command = SetPermissions(request.user, request.configure, request.write, request.read)
        return pb.SetPermissionsResponse(changed=await self._change_user(command))

    @unary_once
    async def DeleteUser(self, request: pb.DeleteUserRequest, context: Context) -> pb.DeleteUserResponse:
        await self._change_user(RemoveUser(request.user))
        return pb.DeleteUserResponse()

    async def _change_user(self, command: UserCommand) -> bool:
        check_new_user_name(command.name)
        check(command)

        def checked(catalog: CatalogView) -> UserCommand:
            users, reply = catalog.users.changed(command)
            if isinstance(reply, Ok):
                self._hub.access.check_administrators(users)
            return replace(command, seen=catalog.changes)

        reply = await self._hub.own_session.change(checked)
        await self._hub.requests.current_catalog()
        assert isinstance(reply, Ok)
        return bool(reply.count)

    @unary_once
    async def ListUsers(self, request: pb.ListUsersRequest, context: Context) -> pb.ListUsersResponse:
        catalog = await self._hub.requests.current_catalog()
        users, queues = catalog.users, catalog.queues()
        owned = await asyncio.to_thread(lambda: Counter(queue.owner for queue in queues))
        response = pb.ListUsersResponse()
        for user in users.by_name.values():
            response.users.add(
                user=user.name,
                administers=user.administers,
                monitors=user.monitors,
                configure=user.configure,
                write=user.write,
                read=user.read,
                has_password=bool(user.secret),
                queues=owned[user.name],
            )
        return response
