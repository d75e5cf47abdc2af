-- The queries for stages; see queries.sql. A call that uploads to a stage or commits it first locks its row in
-- `stages`, in the same transaction, and then reads its state again.

-- name: add_stage
INSERT INTO stages (queue, job, batch, partition, attempt, made_at, until)
SELECT id, %(job)s, %(batch)s, %(partition)s, %(attempt)s, %(now)s, %(until)s FROM queues WHERE name = %(queue)s
ON CONFLICT (queue, job, batch, partition, attempt) DO NOTHING;

-- name: lock_stage
SELECT s.id FROM queues q JOIN stages s ON s.queue = q.id
WHERE q.name = %(queue)s AND s.job = %(job)s AND s.batch = %(batch)s AND s.partition = %(partition)s
    AND s.attempt = %(attempt)s
FOR UPDATE OF s;

-- name: find_part
SELECT q.id, s.id, s.until, p.messages, p.bytes
FROM queues q
LEFT JOIN stages s ON s.queue = q.id AND s.job = %(job)s AND s.batch = %(batch)s AND s.partition = %(partition)s
    AND s.attempt = %(attempt)s
LEFT JOIN stage_parts p ON p.stage = s.id AND p.part = %(part)s
WHERE q.name = %(queue)s;

-- name: add_part
WITH added AS (
    INSERT INTO stage_parts (stage, part, messages, bytes, alone, stretches)
    VALUES (%(stage)s, %(part)s, %(messages)s, %(bytes)s, %(alone)s, %(stretches)s)
)
UPDATE stages SET until = greatest(until, %(until)s) WHERE id = %(stage)s;

-- name: drop_stage
DELETE FROM stages WHERE id = %(stage)s;

-- name: stages
SELECT s.job, s.batch, s.partition, s.attempt, p.parts, p.messages, p.bytes, s.made_at, s.until, p.alone
FROM queues q
LEFT JOIN stages s ON s.queue = q.id AND s.until > %(now)s
LEFT JOIN LATERAL (
    SELECT count(*) AS parts, sum(messages) AS messages, sum(bytes)::bigint AS bytes, sum(alone) AS alone
    FROM stage_parts WHERE stage = s.id
) p ON true
WHERE q.name = %(queue)s
ORDER BY s.job, s.batch, s.partition, s.attempt;

-- name: discard_stages
WITH gone AS (
    DELETE FROM stages WHERE queue = (SELECT id FROM queues WHERE name = %(queue)s) AND job = %(job)s
        AND batch = %(batch)s
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone) FROM queues WHERE name = %(queue)s;

-- name: claim_commit
-- Records a commit, unless it is on record.
INSERT INTO dedup AS d (queue, call, name, ids, until)
SELECT id, true, %(call)s, '', %(until)s FROM queues WHERE name = %(queue)s
ON CONFLICT (queue, call, name) DO UPDATE SET ids = excluded.ids, until = excluded.until WHERE d.until <= %(now)s
RETURNING queue;

-- name: find_commit
-- The queue, and the answer to a call if it is on record.
SELECT q.id, d.ids FROM queues q
LEFT JOIN dedup d ON d.queue = q.id AND d.call AND d.name = %(call)s AND d.until > %(now)s
WHERE q.name = %(queue)s;

-- name: lock_stages
SELECT id, partition, attempt, until FROM stages
WHERE queue = %(shelf)s AND job = %(job)s AND batch = %(batch)s ORDER BY partition, attempt FOR UPDATE;

-- name: stage_parts
SELECT p.stage, p.part, p.stretches, p.alone
FROM unnest(%(stages)s::bigint[]) WITH ORDINALITY AS l (stage, place) JOIN stage_parts p USING (stage)
ORDER BY l.place, p.part;

-- name: staged
SELECT s.messages, s.delay, s.rank, s.sizes, s.ttls, s.abouts, s.content_types, s.bodies
FROM unnest(%(stages)s::bigint[]) WITH ORDINALITY AS l (stage, place) JOIN staged s USING (stage)
ORDER BY l.place, s.part, s.nth;

-- name: claim_staged_dedup
-- Records the dedup ids that are not on record, each for its first message. The ids follow later.
INSERT INTO dedup AS d (queue, call, name, ids, until)
SELECT %(shelf)s, false, s.dedup_id, s.mark, %(dedup_until)s FROM (
    SELECT DISTINCT ON (s.dedup_id) s.dedup_id, concat_ws(' ', s.stage, s.part, s.nth) AS mark
    FROM unnest(%(stages)s::bigint[]) WITH ORDINALITY AS l (stage, place) JOIN staged s USING (stage)
    WHERE s.dedup_id IS NOT NULL ORDER BY s.dedup_id, l.place, s.part, s.nth
) s
ON CONFLICT (queue, call, name) DO UPDATE SET ids = excluded.ids, until = excluded.until WHERE d.until <= %(now)s;

-- name: lock_staged_groups
-- See `lock_groups`.
WITH shelf AS MATERIALIZED (
    SELECT %(shelf)s::int AS id, pg_advisory_xact_lock_shared(1, %(shelf)s::int)
)
SELECT lock_group(shelf.id, g.grp) FROM shelf, (
    SELECT DISTINCT s.grp FROM unnest(%(stages)s::bigint[]) AS l (stage) JOIN staged s USING (stage)
    WHERE s.grp IS NOT NULL ORDER BY s.grp
) g;

-- name: weigh_stages
-- What a commit would add, its recipients, and what the queue holds.
WITH fresh AS MATERIALIZED (
    SELECT s.messages, s.bytes, s.recipient
    FROM unnest(%(stages)s::bigint[]) AS l (stage) JOIN staged s USING (stage)
--include: is_fresh
), held AS (
    SELECT coalesce(sum(messages), 0)::bigint AS messages, coalesce(sum(bytes), 0)::bigint AS bytes
    FROM tallies WHERE queue = %(shelf)s
)
SELECT held.messages, held.bytes, (SELECT coalesce(sum(messages), 0)::bigint FROM fresh),
    (SELECT coalesce(sum(bytes), 0)::bigint FROM fresh),
    ARRAY(SELECT recipient FROM fresh WHERE recipient IS NOT NULL)
FROM held;

-- part: is_fresh
    WHERE s.dedup_id IS NULL OR (
        SELECT d.ids FROM dedup d WHERE d.queue = %(shelf)s AND NOT d.call AND d.name = s.dedup_id LIMIT 1
    ) = concat_ws(' ', s.stage, s.part, s.nth)
-- end

-- name: commit_part
-- In the transaction of the queries above. The id of a message is the first id plus its place. A stretch of plain
-- messages is one block.
WITH fresh AS MATERIALIZED (
    SELECT s.*, s.sizes IS NULL AND s.messages >= %(least)s AND s.bytes <= %(largest)s AS plain,
        row_number() OVER (PARTITION BY s.grp ORDER BY s.nth) AS in_group
    FROM (SELECT * FROM staged WHERE stage = %(stage)s AND part = %(part)s) s
--include: is_fresh
), made AS (
    SELECT (%(head)s || to_hex(%(first)s::bigint + f.nth * 128 + e.place - 1))::uuid AS id, f.nth, e.place, f.plain,
        f.delay, f.rank, f.recipient, f.grp, f.in_group, e.body, coalesce(e.size, octet_length(e.body)) AS size,
        CASE
            WHEN e.ttl IS NULL THEN e.about
            ELSE replace(e.about, '"expires_at":0', '"expires_at":' || (%(now)s::bigint + e.ttl))
        END AS about,
        coalesce(e.content_type, 'application/json') AS content_type
    FROM fresh f CROSS JOIN LATERAL unnest(f.bodies, f.sizes, f.ttls, f.abouts, f.content_types)
        WITH ORDINALITY AS e (body, size, ttl, about, content_type, place)
), added AS (
    INSERT INTO messages (id, sent_at, due_at, visible_at, later, queue, size, rank, blocked, recipient, grp, about, body)
    SELECT m.id, %(now)s, %(now)s + m.delay, %(now)s + m.delay, m.delay > 0, %(shelf)s, m.size, m.rank,
        m.grp IS NOT NULL AND (m.in_group > 1 OR (
            SELECT true FROM messages h WHERE h.queue = %(shelf)s AND h.grp = m.grp LIMIT 1
        ) IS NOT NULL),
        m.recipient, m.grp, m.about, m.body
    FROM made m WHERE NOT m.plain
), packed AS (
    INSERT INTO messages (id, sent_at, due_at, visible_at, later, queue, size, rank, about, body, count, last, sizes)
    SELECT (array_agg(id ORDER BY place))[1], %(now)s, %(now)s + delay, %(now)s + delay, delay > 0, %(shelf)s, sum(size),
        rank, about,
        string_agg(body, '' ORDER BY place), count(*), (array_agg(id ORDER BY place))[count(*)],
        array_agg(size ORDER BY place)
    FROM made WHERE plain GROUP BY nth, delay, rank, about
), named AS (
    UPDATE dedup d SET ids = (%(head)s || to_hex(%(first)s::bigint + f.nth * 128))::uuid::text
    FROM fresh f WHERE f.dedup_id IS NOT NULL AND d.queue = %(shelf)s AND NOT d.call AND d.name = f.dedup_id
--{history
), told AS (
    INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes, bodies, content_types)
    SELECT count(*), 64 * count(*) + CASE WHEN %(full)s THEN sum(size) ELSE 0 END, %(now)s,
        array_fill('sent'::text, ARRAY[count(*)::int]), array_fill(%(queue)s::text, ARRAY[count(*)::int]),
        array_agg(id::text ORDER BY nth, place), array_fill(0, ARRAY[count(*)::int]),
        array_agg(size::bigint ORDER BY nth, place),
        CASE WHEN %(full)s THEN array_agg(body ORDER BY nth, place) END,
        CASE WHEN %(full)s THEN array_agg(content_type ORDER BY nth, place) END
    FROM (SELECT *, row_number() OVER (ORDER BY nth, place) - 1 AS row FROM made) m
    GROUP BY row / 1000 ORDER BY row / 1000
--}
)
INSERT INTO tallies AS t (queue, slot, messages, bytes, last_id)
SELECT %(shelf)s, mod(pg_backend_pid(), 32), sum(messages), sum(bytes),
    (%(head)s || to_hex(%(first)s::bigint + max(nth * 128 + messages) - 1))::uuid
FROM fresh HAVING count(*) > 0
--include: tallied
;

-- name: finish_commit
WITH said AS (
    UPDATE dedup SET ids = %(answer)s WHERE queue = %(shelf)s AND call AND name = %(call)s
)
DELETE FROM stages WHERE queue = %(shelf)s AND job = %(job)s AND batch = %(batch)s;

-- name: tidy_stages
WITH gone AS (
    DELETE FROM stages WHERE id = ANY (ARRAY(
        SELECT id FROM stages WHERE until <= %(now)s ORDER BY until LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    )) RETURNING 1
)
SELECT count(*) FROM gone;

-- name: tidy_stages_of
WITH gone AS (
    DELETE FROM stages WHERE queue = %(shelf)s RETURNING 1
)
SELECT count(*) FROM gone;
