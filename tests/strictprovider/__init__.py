"""A strict provider of language models, for tests: real HTTP, three formats, the real ones' refusals.

Start with `server.StrictProvider` (in this process) or `process.StrictProviderProcess` (in its own), write a script
with `script`, and use `rules.validate` where no HTTP is wanted.
"""
