"""Models behind the port ``agentrt.ports.Model``."""
