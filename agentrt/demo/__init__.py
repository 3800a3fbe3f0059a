"""``agentrt demo``: a session that survives a SIGKILL, shown live."""
