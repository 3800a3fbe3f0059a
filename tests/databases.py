"""A database per test, cloned from a migrated template."""

import asyncio
import hashlib
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg

CHECKOUT = Path(__file__).parent.parent
_TEMPLATE_LOCK = 0x61676E74  # one builder at a time, among all test processes


def with_database(url: str, database: str) -> str:
    """The URL of another database on the same server."""
    return urlsplit(url)._replace(path=f"/{database}").geturl()


def with_role(url: str, role: str) -> str:
    """The URL for another user, without a password."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}").geturl()


@asynccontextmanager
async def fresh_database(server_url: str, *, migrated: bool):
    """Make a database, yield its URL, and drop it with whatever is still connected."""
    name = f"agentrt_test_{uuid4().hex}"
    admin = await asyncpg.connect(server_url)
    try:
        template = await _template(admin, server_url) if migrated else "template0"
        await admin.execute(f"create database {name} template {template}")
        try:
            yield with_database(server_url, name)
        finally:
            await admin.execute(f"drop database if exists {name} with (force)")
    finally:
        await admin.close()


async def _template(admin: asyncpg.Connection, server_url: str) -> str:
    """The template for the migrations as they are now; made by the first test that needs it on a server."""
    name = _template_name(CHECKOUT)
    exists = "select exists (select from pg_database where datname = $1)"
    if await admin.fetchval(exists, name):
        return name
    await admin.execute("select pg_advisory_lock($1)", _TEMPLATE_LOCK)
    try:
        if not await admin.fetchval(exists, name):
            await _build(admin, server_url, name)
    finally:
        await admin.execute("select pg_advisory_unlock($1)", _TEMPLATE_LOCK)
    return name


async def _build(admin: asyncpg.Connection, server_url: str, name: str) -> None:
    from agentrt.postgres.migrate import migrate

    unfinished = f"{name}_unfinished"
    await admin.execute(f"drop database if exists {unfinished} with (force)")
    await admin.execute(f"create database {unfinished} template template0")
    await migrate(with_database(server_url, unfinished))
    await admin.execute(f"alter database {unfinished} with allow_connections false")  # nobody can change it any more
    await admin.execute(f"alter database {unfinished} rename to {name}")


def drop_template(server_url: str, checkout: Path) -> None:
    """Drop the template of another checkout's migrations, if it was made and is not ours as well."""
    name = _template_name(checkout)
    if name != _template_name(CHECKOUT):
        asyncio.run(_drop(server_url, name))


async def _drop(server_url: str, name: str) -> None:
    admin = await asyncpg.connect(server_url)
    try:
        await admin.execute(f"drop database if exists {name} with (force)")
    finally:
        await admin.close()


def _template_name(checkout: Path) -> str:
    digest = hashlib.sha256()
    for path in (checkout / "agentrt" / "postgres" / "migrate.py", *sorted((checkout / "migrations").glob("*.sql"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"agentrt_template_{digest.hexdigest()[:16]}"
