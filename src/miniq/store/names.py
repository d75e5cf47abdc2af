"""The names under which stores remember named calls and committed batches."""

from __future__ import annotations

STORE, STORE_ID = "store", "id"
"""The kind and name of the record that holds the store's id."""
COMMITTED = "publish\0"
"""Prefix of the call names of commits."""
SCOPED = "key\0"
"""Prefix of the call names of senders with an API key; the key's id follows. Senders without one share all others."""
TOPIC = "topic\0"
"""Prefix of the names of publications and of their dedup ids; the id of the topic follows."""
RESERVED = (COMMITTED, SCOPED, TOPIC)
"""Rejected in names that senders choose."""
CALL = "\0"
"""Prefix of call names where they share a table with dedup ids. Rejected in dedup ids."""


def commit_name(job: str, batch: str) -> str:
    """The name of the call that commits a batch."""
    return f"{COMMITTED}{job}\0{batch}"


def scoped_name(scope: str, name: str) -> str:
    """The name under which a sender's call is remembered; `scope` is the id of its API key, or empty."""
    return f"{SCOPED}{scope}\0{name}" if scope else name


def publication_name(topic: str, name: str) -> str:
    """The name of a named publication; `topic` is the id of the topic."""
    return f"{TOPIC}{topic}\0call\0{name}"


def topic_job(topic: str, job: str) -> str:
    """The job of the stages of a topic, which are kept among those of the queue `HOME`; `topic` is the topic's id."""
    return f"{TOPIC}{topic}\0{job}"


def own_job(job: str) -> str:
    """The name that the caller gave to the job of a stage."""
    return job.rpartition("\0")[2]


def is_of_topic(job: str) -> bool:
    """Whether a stage with this job is that of a topic."""
    return job.startswith(TOPIC)


def published_name(topic: str, dedup_id: str) -> str:
    """The name under which a dedup id of a topic is remembered, as that of a call."""
    return f"{TOPIC}{topic}\0id\0{dedup_id}"


def call_record(name: str) -> str:
    """The key of a call in the table of dedup records."""
    return CALL + name


def is_call(record: str) -> bool:
    """Whether a dedup record holds the ids of a call (as `ids.spans`); the record of a commit holds a count."""
    return record.startswith(CALL) and not record.startswith(COMMITTED, len(CALL))
