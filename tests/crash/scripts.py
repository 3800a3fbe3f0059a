"""What sessions are put through: scripts whose model, tools and user behave the same however often they are asked.

A script is told by the conversation alone, so that it goes on where a dead worker left it. What a user does in mid-run
is done by a tool or the model's side, with a ``request_id``: a second owner that runs into it again does it not twice.
"""

from tests.crash import calm, rough, turns

SCRIPTS = {
    script.name: script
    for script in (
        calm.PLAIN,
        calm.TOOLS,
        calm.AT_ONCE,
        calm.ASKING,
        calm.SHIPPING,
        calm.ORDERING,
        rough.STEERED,
        rough.STOPPED,
        rough.CANCELLED,
        rough.CANCELLED_UNHEARD,
        rough.STORMY,
        turns.LATE,
        turns.REPEATING,
        turns.BLOCKED,
        turns.FAILING,
        turns.BUDGET,
        turns.OBSOLETE,
        turns.ABANDONED,
        turns.CROWDED,
    )
}
