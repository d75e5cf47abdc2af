"""Who takes part."""

from __future__ import annotations

from bench.peers.base import Peer
from bench.peers.beanstalk import Beanstalkd
from bench.peers.nats_jetstream import JetStream
from bench.peers.ours import MiniQ
from bench.peers.rabbit import RabbitMQ
from bench.peers.redis_streams import RedisStreams
from bench.peers.skip_locked import SkipLocked

OURS = ("MiniQ HTTP", "MiniQ ZeroMQ")
PEERS: tuple[Peer, ...] = (
    MiniQ("MiniQ HTTP", "http"),
    MiniQ("MiniQ ZeroMQ", "tcp"),
    RedisStreams(),
    Beanstalkd(),
    JetStream(),
    RabbitMQ(),
    SkipLocked(),
)
