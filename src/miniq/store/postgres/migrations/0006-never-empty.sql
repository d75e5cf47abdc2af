-- Rows of no queue, which nothing reads. A plan is kept while messages come and go. One that is made after the last
-- message has left, and VACUUM has counted none, would go through all messages for each that is asked for. With these
-- rows the planner never takes a table for empty, nor for one of few queues.
INSERT INTO messages (id, sent_at, due_at, visible_at, queue, size, rank, later, receipt, recipient, grp, body)
SELECT gen_random_uuid(), 0, 0, n, -1 - n % 1000, 0, -(n % 10), n % 5 > 2, CASE WHEN n % 5 = 3 THEN '' END,
    CASE WHEN n % 5 = 1 THEN n::text END, CASE WHEN n % 5 = 2 THEN n::text END, ''
FROM generate_series(1, 5000) n;
INSERT INTO dedup SELECT -1 - n % 100, n % 2 = 0, n::text, '', 9223372036854775807 - n FROM generate_series(1, 1000) n;
INSERT INTO claims (readers, number, messages, bytes, made_at)
SELECT -1 - n % 100, n, 0, 0, 0 FROM generate_series(1, 1000) n;
INSERT INTO claimed (readers, number, place, id, sent_at, due_at, size, receives, rank, body)
SELECT -1 - n % 100, n, 0, gen_random_uuid(), 0, 0, 0, 0, 0, '' FROM generate_series(1, 1000) n;
INSERT INTO stages (id, queue, job, batch, partition, attempt, made_at, until) OVERRIDING SYSTEM VALUE
SELECT -n, -1 - n % 100, n::text, n::text, '', '', 0, 9223372036854775807 - n FROM generate_series(1, 1000) n;
INSERT INTO stage_parts SELECT -n, 0, 0, 0, 0, 0 FROM generate_series(1, 1000) n;
INSERT INTO staged (stage, part, nth, messages, bytes, delay, rank, bodies)
SELECT -n, 0, 0, 0, 0, 0, 0, '{}' FROM generate_series(1, 1000) n;
