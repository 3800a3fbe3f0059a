"""`python -m tests.strictprovider --port 0 --script echo`: prints its URL, serves until it is ended."""

from __future__ import annotations

import argparse
import asyncio
import re

from .rules import ANY_CALL_ID, WIRE_CALL_ID
from .script import Script, load
from .server import Policy, StrictProvider


def main() -> None:
    parser = argparse.ArgumentParser(prog="strictprovider", description="a strict provider of language models")
    parser.add_argument("--port", type=int, default=0, help="0 for any free one")
    parser.add_argument("--script", default="echo", help="a name in script.py, or package.module:function")
    parser.add_argument("--any-call-id", action="store_true", help="accept the provider's own call ids, too")
    parser.add_argument("--key", action="append", help="an accepted API key; any if never given")
    asked = parser.parse_args()
    try:
        script = load(asked.script)
    except (ImportError, LookupError) as error:
        parser.error(str(error))
    asyncio.run(serve(script, asked))


async def serve(script: Script, asked: argparse.Namespace) -> None:
    call_id: re.Pattern[str] = ANY_CALL_ID if asked.any_call_id else WIRE_CALL_ID
    policy = Policy(call_id=call_id, keys=asked.key)
    async with StrictProvider(script, policy=policy, port=asked.port) as provider:
        print(provider.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
