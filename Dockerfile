# syntax=docker/dockerfile:1
# The image of a worker. Your agents go on top:
#
#   FROM agentrt:0.1.0
#   COPY my_agents.py /agents/
#   ENV AGENTRT_AGENTS=/agents/my_agents.py

# --- build: the package and what it needs, in a virtual environment ---------------------------------------------------
FROM python:3.13-slim AS build

# The providers whose SDKs are in the image; `embedded` has no place in a container.
ARG EXTRAS=openai,anthropic

WORKDIR /src
# Without pip: the environment is copied as it is, and the last stage installs nothing.
RUN python -m venv --without-pip /opt/agentrt
COPY pyproject.toml README.md LICENSE ./
COPY migrations/ migrations/
COPY agentrt/ agentrt/
RUN pip --python /opt/agentrt/bin/python install --no-cache-dir --compile ".[${EXTRAS}]"

# --- the image --------------------------------------------------------------------------------------------------------
FROM python:3.13-slim

# The base image's pip is a way to bring code in; nothing here needs it.
RUN rm -rf /usr/local/bin/pip* /usr/local/lib/python3.13/site-packages/pip* /usr/local/lib/python3.13/ensurepip

COPY --from=build /opt/agentrt /opt/agentrt

# A container's own address is not known beforehand; its logs are read by a program.
ENV PATH=/opt/agentrt/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONPATH=/agents \
    AGENTRT_HTTP_HOST=0.0.0.0 \
    AGENTRT_LOG_FORMAT=json

WORKDIR /agents
# Numeric, so that an orchestrator can see that it is not root; nobody else's, and without a home or a shell.
USER 10001:10001
EXPOSE 9464

# SIGTERM drains: give it the larger of AGENTRT_DRAIN_SECONDS and AGENTRT_DRAIN_TOOL_SECONDS, and 15 s more.
STOPSIGNAL SIGTERM
CMD ["agentrt", "worker"]
