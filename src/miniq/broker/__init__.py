"""The queue rules, once: what is allowed, what is due, who gets it, who is woken."""

from miniq.broker.broker import Broker
from miniq.broker.clock import Clock, SystemClock

__all__ = ["Broker", "Clock", "SystemClock"]
