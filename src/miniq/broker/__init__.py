"""The queue rules: what is valid, what is due, which consumer gets it, which long poll is woken."""

from miniq.broker.broker import Broker
from miniq.broker.clock import Clock, SystemClock

__all__ = ["Broker", "Clock", "SystemClock"]
