"""What pruning leaves in the history: the messages of flows that have not ended, whose results others may ask for."""

from __future__ import annotations

from delayedq.core.metadata import FLOW

#: A part of the condition of a statement that deletes history. Of a message of no flow, one column is looked at.
UNNEEDED = f""" AND (metadata IS NULL OR metadata NOT LIKE '%%"{FLOW}":%%' OR NOT EXISTS (
    SELECT 1 FROM delayedq_flowmember AS member
    JOIN delayedq_flowstep AS step ON step.id = member.step_id
    JOIN delayedq_flow AS flow ON flow.id = step.flow_id
    WHERE member.message_id = delayedq_finishedmessage.id AND flow.ended_at IS NULL
))"""
