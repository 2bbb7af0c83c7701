"""The libraries, by name. Words in `lacks`, and what a test with `without=` them asks for:

    no_local            basic.consume with no-local
    nack                basic.nack
    internal            exchange.declare with internal
    tx                  transactions
    publish_all         many publishes on their way before the first confirm
    returned_body       the message that basic.return brings
    amq_names           declaring a name that begins with amq.
    raw_expiration      an expiration that is no number
    double_ack          a second ack of the same delivery
    mode_switch         tx.select on a channel with confirms
"""
from amqp091.clients.aio import AioPika
from amqp091.clients.base import Client
from amqp091.clients.node import AmqpLib
from amqp091.clients.pika_ import Pika
from amqp091.clients.pyamqp import Kombu, PyAmqp
from amqp091.clients.storm import Storm

CLIENTS: tuple[type[Client], ...] = (Pika, AioPika, Storm, PyAmqp, Kombu, AmqpLib)

__all__ = ["CLIENTS"]
