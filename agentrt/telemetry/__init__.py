"""Logs and metrics: the only package that knows structlog and prometheus_client."""
