"""Models behind the port ``agentrt.ports.Model``.

``scripted`` needs nothing; ``provider`` is a provider's model by name. What imports the providers' layer (half a second
and 60 MB, an SDK on top) is ``adapter`` and what it uses: only ``provider`` imports it, when a model is first needed.
"""
