"""The part of the composition root that sets the limits of the hub and of sessions."""
from __future__ import annotations

from fluxmq._core.hub.hub import Hub
from fluxmq.engine.sessions.limits import Limits
from fluxmq.model import limits
from fluxmq.model.config import Config

__all__ = ["session_limits", "set_limits"]


def set_limits(hub: Hub, config: Config) -> None:
    """Stores the configuration of clients where the hot path reads it."""
    broker, session = config.broker, config.session
    hub.set_limits(
        qos_max=broker.max_qos, topic_levels_max=broker.max_topic_levels, payload_bytes_max=broker.max_message_size,
        user_properties_max=broker.max_user_properties, topic_alias_max=broker.topic_alias_max,
        topic_alias_out_max=broker.outbound_topic_alias_max, receive_max=broker.receive_maximum,
        buffer_high=session.send_buffer_high, buffer_low=session.send_buffer_low,
        disconnect_on_full=session.disconnect_on_full)
    hub.retained.count_max = broker.max_retained_messages
    hub.retained.bytes_max = broker.max_retained_bytes
    hub.disk.backlog_max = limits.JOURNAL_BACKLOG_BYTES_MAX
    hub.disk.ahead_max = limits.JOURNAL_AHEAD_TIMES_MAX * config.storage.journal_file_size


def session_limits(config: Config) -> Limits:
    """The configuration of sessions."""
    return Limits(
        sessions_max=config.session.max_sessions,
        expiry_max_s=int(config.session.max_expiry_interval),
        subscriptions_max=config.broker.max_subscriptions_per_client,
        state_bytes_max=config.session.max_state_bytes,
        topic_levels_max=config.broker.max_topic_levels,
        queue_max=config.session.max_offline_queue_size,
        queue_bytes_max=config.session.max_offline_queue_bytes,
        queue_rejects=config.session.offline_queue_policy == "reject",
        qos_max=config.broker.max_qos,
    )
