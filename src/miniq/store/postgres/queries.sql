-- The queries of the store by name, loaded by queries.py. Those for claims and stages are in claims.sql and stages.sql.
--
-- A row of `messages` may be a block (schema.sql). A query that needs only some messages of a block changes nothing
-- and returns the block's id; `split` then divides it into several rows, and the query is run again.
--
-- Lines between `--{history` and `--}` are only in the variant that writes history, so history costs nothing while it
-- is off; likewise `call`, for sends with a name, `told`, for changes that other brokers hear of, and `results`, for changes
-- that keep results. Each query finds the queue by name and returns a row if the queue exists, so that no row means "no such queue". Every access to `messages` uses an index; a test checks each plan.
--
-- A plan may be made while the tables are empty, and is kept. Where rows are looked up by a list, the list therefore
-- contains the queue as well: otherwise the planner may consider a scan of the whole queue just as good.

-- Queues and records

-- name: queues
SELECT name, settings FROM queues;

-- name: revision
SELECT revision FROM meta;

-- name: create_queue
WITH made AS (
    INSERT INTO queues (name, settings) VALUES (%(queue)s, %(settings)s) ON CONFLICT (name) DO NOTHING RETURNING id
)
UPDATE meta SET revision = revision + 1 WHERE EXISTS (SELECT FROM made) RETURNING true;

-- name: save_queue
WITH made AS (
    INSERT INTO queues (name, settings) VALUES (%(queue)s, %(settings)s)
    ON CONFLICT (name) DO UPDATE SET settings = excluded.settings
)
UPDATE meta SET revision = revision + 1 RETURNING true;

-- name: lock_settings
SELECT settings FROM queues WHERE name = %(queue)s FOR UPDATE;

-- name: delete_queue
WITH gone AS (
    DELETE FROM queues WHERE name = %(queue)s RETURNING id
), counted AS (
    DELETE FROM tallies t USING gone WHERE t.queue = gone.id RETURNING t.last_id, t.messages, t.bytes
), newest AS (  -- queue 0 keeps the highest id of all queues that are gone
    INSERT INTO tallies AS t (queue, slot, messages, bytes, last_id)
    SELECT 0, 0, 0, 0, last_id FROM counted WHERE last_id IS NOT NULL ORDER BY last_id DESC LIMIT 1
    ON CONFLICT (queue, slot) DO UPDATE SET last_id = greatest(t.last_id, excluded.last_id)
), left_over AS (
    INSERT INTO remains (queue) SELECT id FROM gone
--{history
), told AS (
    INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes, reasons, messages)
    SELECT 1, 64, %(now)s, ARRAY['purged'], ARRAY[%(queue)s::text], ARRAY[''], ARRAY[0], ARRAY[sum(bytes)::bigint],
        ARRAY['deleted'], sum(messages)
    FROM counted HAVING sum(messages) > 0
--}
)
UPDATE meta SET revision = revision + 1 WHERE EXISTS (SELECT FROM gone) RETURNING revision;

-- name: records
SELECT name, value FROM records WHERE kind = %(kind)s;

-- name: save_record
INSERT INTO records (kind, name, value) VALUES (%(kind)s, %(name)s, %(value)b)
ON CONFLICT (kind, name) DO UPDATE SET value = excluded.value;

-- name: add_record
WITH added AS (
    INSERT INTO records (kind, name, value) VALUES (%(kind)s, %(name)s, %(value)b)
    ON CONFLICT (kind, name) DO NOTHING RETURNING true
)
UPDATE meta SET revision = revision + 1 WHERE EXISTS (SELECT FROM added);

-- name: drop_record
DELETE FROM records WHERE kind = %(kind)s AND name = %(name)s;

-- name: revise
-- The last statement of a change: a transaction that holds this row waits for no other.
UPDATE meta SET revision = revision + 1 RETURNING revision;

-- name: create_record
-- This and the next two change a record that is what it was, and return a row if they did.
WITH changed AS (
    INSERT INTO records (kind, name, value) VALUES (%(kind)s, %(name)s, %(value)b)
    ON CONFLICT (kind, name) DO NOTHING RETURNING kind
--{told
), told AS (
    UPDATE meta SET revision = revision + 1 WHERE EXISTS (SELECT FROM changed)
--}
)
SELECT true FROM changed;

-- name: replace_record
WITH changed AS (
    UPDATE records SET value = %(value)b WHERE kind = %(kind)s AND name = %(name)s AND value = %(was)b RETURNING kind
--{told
), told AS (
    UPDATE meta SET revision = revision + 1 WHERE EXISTS (SELECT FROM changed)
--}
)
SELECT true FROM changed;

-- name: remove_record
WITH changed AS (
    DELETE FROM records WHERE kind = %(kind)s AND name = %(name)s AND value = %(was)b RETURNING kind
--{told
), told AS (
    UPDATE meta SET revision = revision + 1 WHERE EXISTS (SELECT FROM changed)
--}
)
SELECT true FROM changed;

-- name: last_id
SELECT last_id::text FROM tallies WHERE last_id IS NOT NULL ORDER BY last_id DESC LIMIT 1;

-- Put

-- name: put_plain
-- Adds messages that differ only in id and body, already divided into rows.
WITH found AS (
    SELECT id, name FROM queues WHERE name = %(queue)s
--{call
), claimed AS (
    INSERT INTO dedup AS d (queue, call, name, ids, until)
    SELECT id, true, %(call)s, %(given)s, %(call_until)s FROM found
    ON CONFLICT (queue, call, name) DO UPDATE SET ids = excluded.ids, until = excluded.until WHERE d.until <= %(now)s
    RETURNING queue
--}
), shelf AS (
    SELECT id, name FROM found
--{call
    WHERE EXISTS (SELECT FROM claimed)
--}
), given AS (
    SELECT * FROM unnest(
        %(firsts)s::uuid[], %(lasts)s::uuid[], %(starts)s::int[], %(counts)s::int[], %(bodies)b::bytea[]
    ) AS g (id, last, start, count, body)
), added AS (
    INSERT INTO messages (id, sent_at, due_at, visible_at, later, queue, size, rank, about, body, count, last, sizes)
    SELECT g.id, %(sent_at)s, %(due_at)s, %(due_at)s, %(due_at)s::bigint > %(now)s::bigint, shelf.id,
        octet_length(g.body), %(rank)s, %(about)s, g.body, g.count, g.last,
        CASE WHEN g.count > 1 THEN (%(sizes)s::int[])[g.start : g.start + g.count - 1] END
    FROM given g, shelf
), tally AS (
    INSERT INTO tallies AS t (queue, slot, messages, bytes, last_id)
    SELECT id, mod(pg_backend_pid(), 32), %(count)s, %(bytes)s, %(last_id)s::uuid FROM shelf
--include: tallied
--{history
), told AS (
    INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes, bodies, content_types)
    SELECT %(count)s, 64 * %(count)s + CASE WHEN %(full)s THEN %(bytes)s ELSE 0 END, %(now)s,
        array_fill('sent'::text, ARRAY[%(count)s::int]), array_fill(name, ARRAY[%(count)s::int]),
        %(ids)s::text[], array_fill(0, ARRAY[%(count)s::int]), %(sizes)s::bigint[], %(each_body)b::bytea[],
        CASE WHEN %(full)s THEN array_fill(%(content_type)s::text, ARRAY[%(count)s::int]) END
    FROM shelf
--}
)
SELECT id, EXISTS (SELECT FROM shelf) FROM found;

-- name: call_ids
SELECT d.ids FROM queues q JOIN dedup d ON d.queue = q.id AND d.call AND d.name = %(call)s WHERE q.name = %(queue)s;

-- name: lock_queue
-- Only one put at a time checks the limits of the queue.
SELECT id FROM queues WHERE name = %(queue)s FOR NO KEY UPDATE;

-- name: room_used
-- What a queue holds, while its row is locked.
SELECT coalesce(sum(t.messages), 0)::bigint, coalesce(sum(t.bytes), 0)::bigint
FROM queues q JOIN tallies t ON t.queue = q.id WHERE q.name = %(queue)s;

-- name: claim_call
-- Records a named call, unless it is on record.
INSERT INTO dedup AS d (queue, call, name, ids, until)
SELECT id, true, %(call)s, %(given)s, %(call_until)s FROM queues WHERE name = %(queue)s
ON CONFLICT (queue, call, name) DO UPDATE SET ids = excluded.ids, until = excluded.until WHERE d.until <= %(now)s;

-- name: claim_dedup
-- Records the dedup ids that are not on record; none if the whole call is repeated.
INSERT INTO dedup AS d (queue, call, name, ids, until)
SELECT q.id, false, g.name, g.id, %(dedup_until)s
FROM queues q, unnest(%(names)s::text[], %(firsts)s::text[]) AS g (name, id)
WHERE q.name = %(queue)s AND (
    %(call)s::text IS NULL
    OR EXISTS (SELECT FROM dedup c WHERE c.queue = q.id AND c.call AND c.name = %(call)s AND c.ids = %(given)s)
)
ORDER BY g.name
ON CONFLICT (queue, call, name) DO UPDATE SET ids = excluded.ids, until = excluded.until WHERE d.until <= %(now)s;

-- name: lock_groups
-- No purge removes the heads behind which messages are about to join: `lock_whole_queue` waits for these transactions,
-- and they for it. That lock comes before those of groups.
WITH shelf AS MATERIALIZED (
    SELECT id, pg_advisory_xact_lock_shared(1, id) FROM queues WHERE name = %(queue)s
)
SELECT lock_group(shelf.id, g.name)
FROM shelf, (SELECT name FROM unnest(%(groups)s::text[]) AS name ORDER BY name) g;

-- name: put
-- In the transaction of the locks and records above: adds new messages; returns the recorded ids of the others.
WITH shelf AS (
    SELECT id, name FROM queues WHERE name = %(queue)s
), given AS (
    SELECT * FROM unnest(
        %(ids)s::uuid[], %(sent)s::bigint[], %(due)s::bigint[], %(sizes)s::int[], %(ranks)s::smallint[],
        %(recipients)s::text[], %(groups)s::text[], %(dedups)s::text[], %(abouts)s::text[], %(content_types)s::text[],
        %(bodies)b::bytea[]
    ) WITH ORDINALITY AS g (id, sent_at, due_at, size, rank, recipient, grp, dedup_id, about, content_type, body, place)
), call AS (
    SELECT d.ids FROM dedup d, shelf WHERE d.queue = shelf.id AND d.call AND d.name = %(call)s::text
), standing AS (
    SELECT g.*, coalesce(
        (SELECT d.ids FROM dedup d WHERE d.queue = shelf.id AND NOT d.call AND d.name = g.dedup_id), g.id::text
    ) AS stands
    FROM given g CROSS JOIN shelf
), fresh AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY grp ORDER BY place) AS nth FROM standing
    WHERE stands = id::text AND (%(call)s::text IS NULL OR (SELECT ids FROM call) = %(given)s)
), more AS (
    SELECT count(*) AS messages, coalesce(sum(size), 0)::bigint AS bytes FROM fresh
), held AS (
    SELECT coalesce(sum(t.messages), 0)::bigint AS messages, coalesce(sum(t.bytes), 0)::bigint AS bytes
    FROM tallies t, shelf WHERE t.queue = shelf.id
), fits AS MATERIALIZED (
    SELECT CASE
        WHEN more.messages > 0 AND (
            (%(max_length)s::bigint > 0 AND held.messages + more.messages > %(max_length)s)
            OR (%(max_bytes)s::bigint > 0 AND held.bytes + more.bytes > %(max_bytes)s)
        ) THEN refuse_full(held.messages, held.bytes, more.messages, more.bytes)
        ELSE true END AS ok
    FROM held, more
), added AS (
    INSERT INTO messages (id, sent_at, due_at, visible_at, later, queue, size, rank, blocked, recipient, grp, about, body)
    SELECT f.id, f.sent_at, f.due_at, f.due_at, f.due_at > %(now)s, shelf.id, f.size, f.rank,
        f.grp IS NOT NULL AND (f.nth > 1 OR (
            -- not EXISTS, for which the planner may list all groups
            SELECT true FROM messages h WHERE h.queue = shelf.id AND h.grp = f.grp LIMIT 1
        ) IS NOT NULL),
        f.recipient, f.grp, f.about, f.body
    FROM fresh f, shelf WHERE (SELECT ok FROM fits) ORDER BY f.place
), tally AS (
    INSERT INTO tallies AS t (queue, slot, messages, bytes, last_id)
    SELECT shelf.id, mod(pg_backend_pid(), 32), more.messages, more.bytes,
        (SELECT id FROM fresh ORDER BY id DESC LIMIT 1)
    FROM shelf, more WHERE more.messages > 0
--include: tallied
--{history
), told AS (
    INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes, reasons, bodies, content_types)
    SELECT more.messages, 64 * more.messages + CASE WHEN %(full)s THEN more.bytes ELSE 0 END, %(now)s,
        array_fill('sent'::text, ARRAY[more.messages::int]), array_fill(shelf.name, ARRAY[more.messages::int]),
        ARRAY(SELECT id::text FROM fresh ORDER BY place), array_fill(0, ARRAY[more.messages::int]),
        ARRAY(SELECT size::bigint FROM fresh ORDER BY place),
        CASE WHEN %(reason)s::text IS NOT NULL THEN array_fill(%(reason)s::text, ARRAY[more.messages::int]) END,
        CASE WHEN %(full)s THEN ARRAY(SELECT body FROM fresh ORDER BY place) END,
        CASE WHEN %(full)s THEN ARRAY(SELECT content_type FROM fresh ORDER BY place) END
    FROM shelf, more WHERE more.messages > 0
--}
)
SELECT
    CASE
        WHEN %(call)s::text IS NOT NULL AND (SELECT ids FROM call) <> %(given)s THEN (SELECT ids FROM call)
        ELSE (SELECT string_agg(stands, ',' ORDER BY place) FROM standing)
    END,
    ARRAY(SELECT recipient FROM fresh ORDER BY place)
FROM shelf;

-- name: record_call
-- A repeated call gets the first answer, which has the ids of messages that were on record.
UPDATE dedup d SET ids = %(answer)s FROM queues q
WHERE q.name = %(queue)s AND d.queue = q.id AND d.call AND d.name = %(call)s;

-- Take

-- name: take
-- Messages without a recipient. If messages that are due must be put in line first, takes nothing and says so.
WITH shelf AS (
    SELECT id, name FROM queues WHERE name = %(queue)s
--include: due
), ready AS MATERIALIZED (
--include: line
--include: taken

-- name: gather
-- What a take gets that may have several messages of a group: rows in order, locked, in the transaction of `take_batch`.
WITH shelf AS (
    SELECT id FROM queues WHERE name = %(queue)s
--include: due
)
SELECT ids, together,
    CASE
        WHEN (SELECT there FROM due) THEN 'due'
        WHEN ids = '{}' AND EXISTS (
--include: block
        ) THEN 'locked'
    END
FROM shelf CROSS JOIN LATERAL line_up(
    shelf.id, %(consumer)s, %(now)s, CASE WHEN (SELECT there FROM due) THEN 0 ELSE %(limit)s::int END, %(max_bytes)s);

-- name: take_batch
WITH shelf AS (
    SELECT id, name FROM queues WHERE name = %(queue)s
), due AS (
    SELECT false AS there
), gathered AS MATERIALIZED (
    SELECT shelf.id AS queue, g.*
    FROM shelf CROSS JOIN unnest(%(ids)s::uuid[], %(together)s::boolean[]) WITH ORDINALITY AS g (id, together, place)
), ready AS MATERIALIZED (
    SELECT m.queue, m.id, g.place AS rank, m.count, m.visible_at, m.taken_at, m.receipt, m.consumer, e.size, e.nth,
        g.together
    FROM gathered g JOIN messages m ON m.queue = g.queue AND m.id = g.id
    CROSS JOIN LATERAL unnest(coalesce(m.sizes, ARRAY[m.size])) WITH ORDINALITY AS e (size, nth)
    ORDER BY g.place, e.nth LIMIT %(limit)s
--include: fitting
        blocked = m.blocked OR f.together,
--include: leased

-- name: take_own
-- Messages without a recipient, and those of this consumer.
WITH shelf AS (
    SELECT id, name FROM queues WHERE name = %(queue)s
--include: due
), common AS MATERIALIZED (
--include: line
), own AS MATERIALIZED (
    SELECT m.queue, m.id, m.rank, m.count, m.visible_at, m.taken_at, m.receipt, m.consumer, m.size, 1::bigint AS nth
    FROM messages m
    WHERE m.queue = (SELECT id FROM shelf) AND m.recipient = %(consumer)s AND NOT m.blocked AND NOT m.later
        AND m.visible_at <= %(now)s AND NOT (SELECT there FROM due)
    ORDER BY m.rank, m.id LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
), ready AS MATERIALIZED (
    SELECT * FROM common UNION ALL SELECT * FROM own ORDER BY rank, id, nth LIMIT %(limit)s
--include: taken

-- part: tallied
    ON CONFLICT (queue, slot) DO UPDATE SET
        messages = t.messages + excluded.messages, bytes = t.bytes + excluded.bytes,
        last_id = greatest(t.last_id, excluded.last_id)
-- end

-- part: remembered
), remembered AS (
    INSERT INTO results (queue, id, status, finished_at, until, result, error)
    SELECT (SELECT id FROM shelf), r.id, r.status, r.finished_at, %(kept_until)s, nullif(r.result, ''), r.error
    FROM finished JOIN unnest(
        %(kept)s::uuid[], %(kept_status)s::text[], %(kept_at)s::bigint[], %(kept_results)b::bytea[],
        %(kept_errors)s::text[]
    ) AS r (id, status, finished_at, result, error) ON r.id = finished.id
    ON CONFLICT (queue, id) DO UPDATE SET
        status = excluded.status, finished_at = excluded.finished_at, until = excluded.until,
        result = excluded.result, error = excluded.error
-- end

-- part: due
), due AS MATERIALIZED (
    SELECT %(look)s AND EXISTS (
        SELECT FROM (VALUES (true), (false)) AS side (leased) CROSS JOIN LATERAL (
            SELECT FROM messages m
            WHERE m.queue = (SELECT id FROM shelf) AND m.later AND m.leased = side.leased
                AND m.visible_at <= %(now)s
            LIMIT 1
        ) next
    ) AS there
-- end

-- part: line
    -- A row per message, so that no more rows are locked than the limit needs. An ORDER BY after the lock would sort
    -- all ready messages.
    SELECT r.queue, r.id, r.rank, r.count, r.visible_at, r.taken_at, r.receipt, r.consumer, e.size, e.nth
    FROM (
        SELECT m.* FROM messages m
        WHERE m.queue = (SELECT id FROM shelf) AND m.recipient IS NULL AND NOT m.blocked AND NOT m.later
            AND m.visible_at <= %(now)s AND NOT (SELECT there FROM due)
        ORDER BY m.rank, m.id
        FOR UPDATE SKIP LOCKED
    ) r CROSS JOIN LATERAL unnest(coalesce(r.sizes, ARRAY[r.size])) WITH ORDINALITY AS e (size, nth)
    LIMIT %(limit)s
-- end

-- part: taken
--include: fitting
--include: leased
-- end

-- part: fitting
), fitting AS MATERIALIZED (
    SELECT * FROM (
        SELECT *, sum(size) OVER (ORDER BY rank, id, nth ROWS UNBOUNDED PRECEDING) AS total,
            row_number() OVER (ORDER BY rank, id, nth) AS place
        FROM ready
    ) r WHERE total <= %(max_bytes)s OR place = 1
), cut AS MATERIALIZED (  -- only the last row can be a block of which not all fit
    SELECT id, nth FROM fitting WHERE place = (SELECT max(place) FROM fitting) AND nth < count
), taken AS (
    UPDATE messages m SET
-- end

-- part: leased
        visible_at = %(until)s, taken_at = %(now)s, later = true, receipt = %(token)s, consumer = %(consumer)s,
        receives = mod(m.receives, TAKEN_BACK) + 1,
        error = CASE WHEN f.receipt IS NOT NULL AND f.taken_at IS NOT NULL THEN LEASE_EXPIRED ELSE m.error END
    FROM fitting f
    WHERE f.nth = f.count AND NOT EXISTS (SELECT FROM cut) AND m.queue = f.queue AND m.id = f.id
    RETURNING f.place, m.id, m.sent_at, m.due_at, m.rank, m.receives, m.about, m.body, m.size, m.count, m.sizes, m.error,
        f.visible_at AS was_visible_at, f.taken_at AS was_taken_at, f.receipt AS was_receipt,
        f.consumer AS was_consumer
--{history
), happened AS (
    SELECT t.place, u.nth, e.* FROM taken t CROSS JOIN LATERAL unpacked(t.id, t.size, t.sizes) u CROSS JOIN LATERAL (
        VALUES
            (1, 'expired', u.id, t.receives - 1, u.size, t.was_consumer, null::bigint,
                greatest(0, t.was_visible_at - t.was_taken_at), 'lease'),
            (2, 'received', u.id, t.receives, u.size, %(consumer)s::text,
                greatest(0, %(now)s::bigint - t.was_visible_at), null, null)
    ) AS e (step, event, id, receives, size, consumer, wait, held, reason)
    WHERE CASE e.step
        WHEN 1 THEN t.was_receipt IS NOT NULL AND t.was_taken_at IS NOT NULL
        ELSE is_fit(t.about, t.sent_at, t.receives - 1, %(now)s, %(since)s, %(most)s)
    END
), told AS (
    INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes, consumers, waits, helds, reasons)
    SELECT count(*), 64 * count(*), %(now)s,
        array_agg(event ORDER BY place, nth, step), array_fill((SELECT name FROM shelf), ARRAY[count(*)::int]),
        array_agg(id::text ORDER BY place, nth, step), array_agg(receives ORDER BY place, nth, step),
        array_agg(size::bigint ORDER BY place, nth, step), array_agg(consumer ORDER BY place, nth, step),
        array_agg(wait ORDER BY place, nth, step), array_agg(held ORDER BY place, nth, step),
        array_agg(reason ORDER BY place, nth, step)
    FROM happened HAVING count(*) > 0
--}
)
SELECT t.id::text, t.sent_at, t.due_at, t.rank, t.receives, t.about, t.body, t.sizes,
    CASE
        WHEN (SELECT there FROM due) THEN 'due'
        WHEN EXISTS (SELECT FROM cut) THEN (SELECT concat_ws(' ', 'cut', id, nth) FROM cut)
        WHEN NOT EXISTS (SELECT FROM ready) AND EXISTS (
--include: block
        ) THEN 'locked'
    END,
    CASE WHEN t.was_receipt IS NOT NULL AND t.was_taken_at IS NOT NULL THEN t.count ELSE 0 END, t.error
FROM shelf LEFT JOIN taken t ON true ORDER BY t.place;
-- end

-- part: block
            -- locked by another call, perhaps only to split it
            SELECT FROM messages m
            WHERE m.queue = shelf.id AND m.recipient IS NULL AND NOT m.blocked AND NOT m.later
                AND m.visible_at <= %(now)s AND m.count > 1
-- end

-- name: in_flight
-- How many messages of a queue are leased, while its row is locked.
SELECT coalesce((
    SELECT sum(m.count) FROM messages m
    WHERE m.queue = q.id AND m.later AND m.leased AND m.visible_at > %(now)s
), 0)::bigint
FROM queues q WHERE q.name = %(queue)s;

-- name: draw
UPDATE queues q SET tokens = b.tokens - b.drawn, drawn_at = greatest(q.drawn_at, %(now)s)
FROM (
    SELECT id, tokens, least(%(count)s, floor(tokens + 1e-9)) AS drawn FROM (
        SELECT id, least(%(most)s, coalesce(
            tokens + %(rate)s * greatest(0, %(now)s - drawn_at) / 1000000.0, %(most)s))::double precision AS tokens
        FROM queues WHERE name = %(queue)s FOR NO KEY UPDATE
    ) filled
) b
WHERE q.id = b.id RETURNING b.drawn::integer;

-- name: split
-- Divides blocks into rows of `step` messages each, in the same state. Blocks in a claim stay as they are. A purge,
-- which would not see the new rows, waits for it (`lock_whole_queue`).
WITH shelf AS MATERIALIZED (
    SELECT id, pg_advisory_xact_lock_shared(1, id) FROM queues WHERE name = %(queue)s
), asked AS MATERIALIZED (
    SELECT shelf.id AS queue, a.id FROM shelf CROSS JOIN unnest(%(ids)s::uuid[]) AS a (id) ORDER BY a.id
), gone AS (
    DELETE FROM messages m USING asked a
    WHERE m.queue = a.queue AND m.id = a.id AND m.count > %(step)s AND m.visible_at <> NEVER
    RETURNING m.id, m.sent_at, m.due_at, m.visible_at, m.taken_at, m.queue, m.size, m.receives, m.rank, m.later,
        m.receipt, m.consumer, m.about, m.error, m.sizes,
        m.body || ''::bytea AS body  -- read once, not for each message
)
INSERT INTO messages (
    id, sent_at, due_at, visible_at, taken_at, queue, size, receives, rank, later, receipt, consumer, about, error, body,
    count, last, sizes
)
SELECT id_at(g.id, p.place), g.sent_at, g.due_at, g.visible_at, g.taken_at, g.queue, p.size, g.receives, g.rank,
    g.later, g.receipt, g.consumer, g.about, g.error, substring(g.body FROM p.start FOR p.size), p.count,
    CASE WHEN p.count > 1 THEN id_at(g.id, p.place + p.count - 1) END, CASE WHEN p.count > 1 THEN p.sizes END
FROM gone g CROSS JOIN LATERAL (
    SELECT min(nth) - 1 AS place, count(*)::int AS count, min(start) AS start, sum(size)::int AS size,
        array_agg(size ORDER BY nth) AS sizes
    FROM unpacked(g.id, g.size, g.sizes) GROUP BY (nth - 1) / %(step)s::int
) p;

-- name: return_due
-- Puts messages that are due in line: delayed ones, and those whose lease expired. Receipts stay valid until a message
-- is taken again.
WITH shelf AS (
    SELECT id FROM queues WHERE name = %(queue)s
--include: batches
), fronts AS MATERIALIZED (
    SELECT count(lock_group(f.queue, f.grp)) AS locked FROM (
        SELECT DISTINCT next.queue, next.grp
        FROM (VALUES (true), (false)) AS side (leased) CROSS JOIN LATERAL (
            SELECT m.queue, m.grp, m.blocked, m.receives FROM messages m
            WHERE m.queue = (SELECT id FROM shelf) AND m.later AND m.leased = side.leased AND m.visible_at <= %(now)s
            ORDER BY m.visible_at, m.id LIMIT %(limit)s
        ) next
        WHERE next.blocked AND next.receives > 0 AND (SELECT there FROM batches) ORDER BY next.grp
    ) f
), back AS (
    UPDATE messages m SET later = false FROM (
        SELECT next.* FROM (VALUES (true), (false)) AS side (leased) CROSS JOIN LATERAL (
            SELECT m.queue, m.id FROM messages m
            WHERE m.queue = (SELECT id FROM shelf) AND m.later
                AND m.leased = side.leased AND m.visible_at <= %(now)s AND (SELECT locked FROM fronts) >= 0
            ORDER BY m.visible_at, m.id LIMIT %(limit)s
            FOR UPDATE SKIP LOCKED
        ) next
    ) e WHERE m.queue = e.queue AND m.id = e.id
    RETURNING m.grp, m.blocked, m.receives
)
SELECT count(*), (
    SELECT advance_groups((SELECT id FROM shelf), array_agg(DISTINCT grp ORDER BY grp), %(now)s)
    FROM back WHERE blocked AND receives > 0 HAVING count(*) > 0
) FROM back;

-- Changes of single messages, each under its fence

-- name: drop
WITH shelf AS (
    SELECT id, name FROM queues WHERE name = %(queue)s
--include: asked
), gone AS (
    DELETE FROM messages m USING asked a
    WHERE (SELECT whole FROM state) AND m.queue = a.queue AND m.id BETWEEN a.first AND a.upto
--include: fence
    RETURNING a.place, m.id, m.size, m.grp, m.blocked, m.receives, m.consumer, m.receipt, m.visible_at, m.taken_at,
        m.count, m.sizes, a.receipt = '' AND m.receipt IS NOT NULL AND m.taken_at IS NOT NULL AS expired
), tally AS (
    INSERT INTO tallies AS t (queue, slot, messages, bytes)
    SELECT (SELECT id FROM shelf), mod(pg_backend_pid(), 32), -sum(count), -sum(size) FROM gone HAVING count(*) > 0
--include: tallied
--{history
), happened AS (
    SELECT g.place, e.* FROM gone g CROSS JOIN LATERAL unpacked(g.id, g.size, g.sizes) u CROSS JOIN LATERAL (
        VALUES
            (1, 'expired', u.id, g.receives, u.size, g.consumer, greatest(0, g.visible_at - g.taken_at), 'lease'),
            (2, %(event)s::text, u.id, g.receives - %(extra)s::int, u.size, g.consumer,
                CASE WHEN g.receipt IS NOT NULL THEN greatest(0, %(now)s::bigint - g.taken_at) END, %(reason)s::text)
    ) AS e (step, event, id, receives, size, consumer, held, reason)
    WHERE e.step = 2 OR g.expired
), told AS (
    INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes, consumers, helds, reasons)
    SELECT count(*), 64 * count(*), %(now)s,
        array_agg(event ORDER BY place, id, step), array_fill((SELECT name FROM shelf), ARRAY[count(*)::int]),
        array_agg(id::text ORDER BY place, id, step), array_agg(receives ORDER BY place, id, step),
        array_agg(size::bigint ORDER BY place, id, step), array_agg(consumer ORDER BY place, id, step),
        array_agg(held ORDER BY place, id, step), array_agg(reason ORDER BY place, id, step)
    FROM happened HAVING count(*) > 0
--}
--{results
), finished AS (
    SELECT u.id FROM gone g CROSS JOIN LATERAL unpacked(g.id, g.size, g.sizes) u
--include: remembered
--}
), done AS (
    SELECT id, count FROM gone
--include: done
    (SELECT advance_groups((SELECT id FROM shelf), array_agg(DISTINCT grp ORDER BY grp), %(now)s)
     FROM gone WHERE grp IS NOT NULL AND (NOT blocked OR receives > 0) HAVING count(*) > 0),
    (SELECT coalesce(sum(count), 0) FROM gone WHERE expired)
FROM shelf;

-- name: reschedule
WITH shelf AS (
    SELECT id, name FROM queues WHERE name = %(queue)s
--include: asked
), old AS MATERIALIZED (
    SELECT a.queue, a.place, m.id, m.receives, m.consumer, m.receipt, m.taken_at
    FROM asked a JOIN messages m ON m.queue = a.queue AND m.id BETWEEN a.first AND a.upto
--include: fence
    WHERE (SELECT whole FROM state)
    FOR UPDATE OF m
), timed AS MATERIALIZED (  -- with the moment for messages that were received so often
    SELECT o.*, coalesce(t.visible_at, %(visible_at)s::bigint) AS visible_at
    FROM old o LEFT JOIN unnest(%(numbers)s::int[], %(moments)s::bigint[]) AS t (receives, visible_at)
        ON t.receives = o.receives
), changed AS (
    UPDATE messages m SET
        visible_at = o.visible_at,
        later = o.visible_at > %(now)s::bigint,
        receipt = CASE WHEN %(release)s THEN null ELSE m.receipt END,
        consumer = CASE WHEN %(release)s THEN null ELSE m.consumer END,
        taken_at = CASE WHEN %(release)s THEN null ELSE m.taken_at END,
        receives = CASE
            WHEN %(unused)s AND o.receipt IS NOT NULL THEN
                CASE WHEN m.receives = 1 AND m.grp IS NOT NULL THEN TAKEN_BACK ELSE m.receives - 1 END
            ELSE m.receives
        END,
        error = coalesce(%(error)s, m.error)
    FROM timed o WHERE m.queue = o.queue AND m.id = o.id
    RETURNING o.place, m.id, m.recipient, m.count, m.size, m.sizes, m.grp, m.blocked, o.receives, o.consumer, o.receipt,
        o.taken_at
--{history
), told AS (
    INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes, consumers, helds, errors)
    SELECT count(*), (64 + coalesce(length(%(error)s::text), 0)) * count(*), %(now)s,
        array_fill(%(event)s::text, ARRAY[count(*)::int]),
        array_fill((SELECT name FROM shelf), ARRAY[count(*)::int]),
        array_agg(u.id::text ORDER BY place, u.id), array_agg(receives - %(extra)s::int ORDER BY place, u.id),
        array_agg(u.size::bigint ORDER BY place, u.id), array_agg(consumer ORDER BY place, u.id),
        array_agg(CASE WHEN receipt IS NOT NULL THEN greatest(0, %(now)s - taken_at) END ORDER BY place, u.id),
        CASE WHEN %(error)s::text IS NOT NULL THEN array_fill(%(error)s::text, ARRAY[count(*)::int]) END
    FROM changed c CROSS JOIN LATERAL unpacked(c.id, c.size, c.sizes) u HAVING count(*) > 0
--}
), done AS (
    SELECT id, count FROM changed
--include: done
    (SELECT array_agg(recipient) FROM changed c, generate_series(1, c.count)) || (
        SELECT advance_groups((SELECT id FROM shelf), array_agg(DISTINCT grp ORDER BY grp), %(now)s)
        FROM changed WHERE blocked AND receives > 0 HAVING count(*) > 0
    ),
    0
FROM shelf;

-- part: asked
), asked AS MATERIALIZED (  -- ids that follow each other and have one fence, with the start of their run
    SELECT shelf.id AS queue, a.*
    FROM shelf CROSS JOIN unnest(%(floors)s::uuid[], %(firsts)s::uuid[], %(lasts)s::uuid[], %(receipts)s::text[])
        WITH ORDINALITY AS a (floor, first, upto, receipt, place)
    ORDER BY a.first  -- all calls that wait for rows lock them in order of ids
--include: batches
), fronts AS MATERIALIZED (  -- a change of a front locks its group first, and then rows
    SELECT count(lock_group(f.queue, f.grp)) AS locked FROM (
        SELECT DISTINCT m.queue, m.grp
        FROM asked a JOIN messages m ON m.queue = a.queue AND m.id BETWEEN a.first AND a.upto
        WHERE m.blocked AND m.receives > 0 AND (SELECT there FROM batches) ORDER BY m.grp
    ) f
), blocks AS MATERIALIZED (
    SELECT m.queue, m.id, a.receipt, a.first <= m.id AND m.last <= a.upto AS whole
    FROM asked a JOIN messages m ON m.queue = a.queue AND m.id BETWEEN a.floor AND a.upto AND m.last >= a.first
--include: fence
), held AS MATERIALIZED (  -- those that were not split, dropped or leased since
    SELECT m.id
    FROM blocks a JOIN messages m ON m.queue = a.queue AND m.id = a.id
--include: fence
    WHERE NOT EXISTS (SELECT FROM blocks WHERE NOT whole)
    FOR UPDATE OF m
), state AS MATERIALIZED (
    SELECT (SELECT count(*) FROM held) = (SELECT count(*) FROM blocks) AND (SELECT locked FROM fronts) >= 0 AS whole
-- end

-- part: batches
), batches AS MATERIALIZED (  -- whether several messages of a group may be in flight
    SELECT EXISTS (
        SELECT FROM messages m WHERE m.queue = (SELECT id FROM shelf) AND m.blocked AND m.receives > 0
    ) AS there
-- end

-- part: done
)
SELECT
    (SELECT whole FROM state),
    ARRAY(SELECT id::text FROM blocks WHERE NOT whole ORDER BY id),
    (SELECT coalesce(sum(count), 0) FROM done),
    CASE WHEN (SELECT sum(count) FROM done) < %(count)s THEN (SELECT string_agg(concat(id, '*', count), ',') FROM done) END,
-- end

-- part: fence
        AND m.visible_at <> NEVER
        AND (m.receipt = a.receipt OR a.receipt = '*'
             OR (a.receipt = '' AND (m.receipt IS NULL OR m.visible_at <= %(now)s)))
-- end

-- name: present
-- Which of these messages exist, and whether they are in a claim: unchanged ones are stale or leased, others missing.
WITH asked AS MATERIALIZED (
    SELECT q.id AS queue, a.* FROM queues q CROSS JOIN unnest(%(floors)s::uuid[], %(ids)s::uuid[]) AS a (floor, id)
    WHERE q.name = %(queue)s
)
SELECT a.id::text, m.visible_at = NEVER
FROM asked a JOIN messages m
    ON m.queue = a.queue AND m.id BETWEEN a.floor AND a.id AND coalesce(m.last, m.id) >= a.id;

-- name: lock_message
-- The current state of one message, for an edit in the same transaction.
SELECT q.id, m.count, m.id::text, m.sent_at, m.due_at, m.rank, m.receives, m.about, m.body, m.sizes, m.visible_at,
    m.receipt, m.consumer, m.error, m.taken_at
FROM queues q LEFT JOIN LATERAL (
    SELECT * FROM messages m
    WHERE m.queue = q.id AND m.id BETWEEN %(floor)s::uuid AND %(id)s::uuid AND coalesce(m.last, m.id) >= %(id)s::uuid
    FOR UPDATE
) m ON true
WHERE q.name = %(queue)s;

-- name: record_expired
-- The lease of a message that an edit makes ready has expired.
INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes, consumers, helds, reasons)
VALUES (1, 64, %(now)s, ARRAY['expired'], ARRAY[%(queue)s::text], ARRAY[%(id)s::text], ARRAY[%(receives)s::int],
    ARRAY[%(old_size)s::bigint], ARRAY[%(consumer)s::text], ARRAY[%(held)s::bigint], ARRAY['lease']);

-- name: edit
WITH edited AS (
    UPDATE messages SET
        due_at = %(due_at)s, rank = %(rank)s, size = %(size)s, about = %(about)s, body = %(body)b,
        visible_at = CASE WHEN %(reset)s THEN %(due_at)s ELSE visible_at END,
        later = CASE WHEN %(reset)s THEN %(due_at)s::bigint > %(now)s::bigint ELSE later END,
        receipt = CASE WHEN %(reset)s THEN null ELSE receipt END,
        consumer = CASE WHEN %(reset)s THEN null ELSE consumer END,
        taken_at = CASE WHEN %(reset)s THEN null ELSE taken_at END,
        error = CASE WHEN %(expired)s THEN LEASE_EXPIRED ELSE error END
    WHERE queue = %(shelf)s AND id = %(id)s::uuid
    RETURNING queue, recipient, receives, grp, blocked
), tally AS (
    INSERT INTO tallies AS t (queue, slot, messages, bytes)
    SELECT queue, mod(pg_backend_pid(), 32), 0, %(size)s::int - %(old_size)s::int FROM edited
    ON CONFLICT (queue, slot) DO UPDATE SET bytes = t.bytes + excluded.bytes
--{history
), told AS (
    INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes, bodies, content_types)
    SELECT 1, 64 + CASE WHEN %(full)s THEN octet_length(%(body)b) ELSE 0 END, %(now)s,
        ARRAY['edited'], ARRAY[%(queue)s::text], ARRAY[%(id)s::text], ARRAY[receives], ARRAY[%(size)s::bigint],
        CASE WHEN %(full)s THEN ARRAY[%(body)b::bytea] END,
        CASE WHEN %(full)s THEN ARRAY[%(content_type)s::text] END
    FROM edited
--}
)
SELECT recipient, CASE
    WHEN %(reset)s AND blocked AND receives > 0 THEN advance_groups(queue, ARRAY[grp], %(now)s)
END
FROM edited;

-- name: move
-- In the transaction that locked the groups of the target.
WITH shelf AS (
    SELECT id, name FROM queues WHERE name = %(queue)s
), target AS (
    SELECT id, name FROM queues WHERE name = %(to)s
), given AS MATERIALIZED (
    SELECT shelf.id AS queue, g.* FROM shelf CROSS JOIN unnest(
        %(ids)s::uuid[], %(receipts)s::text[], %(sent)s::bigint[], %(due)s::bigint[], %(sizes)s::int[],
        %(ranks)s::smallint[], %(recipients)s::text[], %(groups)s::text[], %(abouts)s::text[],
        %(content_types)s::text[], %(bodies)b::bytea[], %(floors)s::uuid[], %(errors)s::text[], %(new_ids)s::uuid[]
    ) WITH ORDINALITY AS g (
        id, receipt, sent_at, due_at, size, rank, recipient, grp, about, content_type, body, floor, error, new_id,
        place)
    ORDER BY g.id
--include: batches
), fronts AS MATERIALIZED (
    SELECT count(lock_group(f.queue, f.grp)) AS locked FROM (
        SELECT DISTINCT m.queue, m.grp FROM given a JOIN messages m ON m.queue = a.queue AND m.id = a.id
        WHERE m.blocked AND m.receives > 0 AND (SELECT there FROM batches) ORDER BY m.grp
    ) f
), blocks AS MATERIALIZED (
    SELECT m.id
    FROM given a JOIN messages m ON m.queue = a.queue AND m.id BETWEEN a.floor AND a.id AND m.last >= a.id
--include: fence
), matching AS MATERIALIZED (
    SELECT a.*, m.receives, m.size AS old_size, m.consumer, m.receipt AS old_receipt, m.visible_at AS old_visible_at,
        m.taken_at, m.grp AS old_grp, m.blocked AS old_blocked,
        a.receipt = '' AND m.receipt IS NOT NULL AND m.taken_at IS NOT NULL AS expired
    FROM given a JOIN messages m ON m.queue = a.queue AND m.id = a.id
--include: fence
    WHERE (SELECT id FROM target) IS NOT NULL AND NOT EXISTS (SELECT FROM blocks)
        AND (SELECT locked FROM fronts) >= 0
    FOR UPDATE OF m
), placed AS MATERIALIZED (
    SELECT g.*, g.grp IS NOT NULL AND (row_number() OVER (PARTITION BY g.grp ORDER BY g.place) > 1 OR (
        -- not EXISTS, for which the planner may list all groups
        SELECT true FROM messages h WHERE h.queue = (SELECT id FROM target) AND h.grp = g.grp LIMIT 1
    ) IS NOT NULL) AS blocked
    FROM matching g
), moved AS (
    UPDATE messages m SET
        queue = (SELECT id FROM target), id = g.new_id, sent_at = g.sent_at, due_at = g.due_at, visible_at = g.due_at,
        later = g.due_at > %(now)s, taken_at = null, size = g.size, receives = 0, rank = g.rank, blocked = g.blocked,
        receipt = null, consumer = null, recipient = g.recipient, grp = g.grp, about = g.about, body = g.body,
        error = null
    FROM placed g
    WHERE m.queue = g.queue AND m.id = g.id
    RETURNING g.place, g.id, g.new_id, g.size, g.body, g.content_type, g.recipient, g.old_size, g.receives, g.consumer,
        g.old_receipt AS receipt, g.old_visible_at, g.taken_at, g.old_grp, g.old_blocked, g.expired, g.error
), tally AS (
    INSERT INTO tallies AS t (queue, slot, messages, bytes, last_id)
    SELECT side.queue, mod(pg_backend_pid(), 32), side.messages, side.bytes, side.last_id FROM (
        SELECT (SELECT id FROM shelf) AS queue, -count(*) AS messages, -sum(old_size) AS bytes, null::uuid AS last_id
        FROM moved HAVING count(*) > 0
        UNION ALL
        SELECT (SELECT id FROM target), count(*), sum(size), (SELECT new_id FROM moved ORDER BY new_id DESC LIMIT 1)
        FROM moved HAVING count(*) > 0
    ) side ORDER BY side.queue
--include: tallied
--{history
), happened AS (
    SELECT m.place, e.* FROM moved m CROSS JOIN LATERAL (
        VALUES
            (0, 'expired', %(queue)s::text, m.id, m.receives, m.old_size, m.consumer,
                greatest(0, m.old_visible_at - m.taken_at), 'lease', null::bytea, null::text, null::text),
            (1, %(event)s::text, %(queue)s::text, m.id, m.receives - %(extra)s::int, m.old_size, m.consumer,
                CASE WHEN m.receipt IS NOT NULL THEN greatest(0, %(now)s::bigint - m.taken_at) END,
                %(reason)s::text, null::bytea, null::text, m.error),
            (2, 'sent', %(to)s::text, m.new_id, 0, m.size, null, null, %(event)s::text,
                CASE WHEN %(keep_to)s = 'full' THEN m.body END,
                CASE WHEN %(keep_to)s = 'full' THEN m.content_type END, null)
    ) AS e (step, event, queue, id, receives, size, consumer, held, reason, body, content_type, error)
    WHERE CASE e.step
        WHEN 0 THEN m.expired AND %(keep)s <> 'off'
        WHEN 1 THEN %(keep)s <> 'off'
        ELSE %(keep_to)s <> 'off'
    END
), told AS (
    INSERT INTO history (
        count, bytes, at, events, queues, ids, receives, sizes, consumers, helds, reasons, bodies, content_types,
        errors)
    SELECT count(*), 64 * count(*) + coalesce(sum(octet_length(body)), 0) + coalesce(sum(length(error)), 0), %(now)s,
        array_agg(event ORDER BY place, step), array_agg(queue ORDER BY place, step),
        array_agg(id::text ORDER BY place, step), array_agg(receives ORDER BY place, step),
        array_agg(size::bigint ORDER BY place, step), array_agg(consumer ORDER BY place, step),
        array_agg(held ORDER BY place, step), array_agg(reason ORDER BY place, step),
        array_agg(body ORDER BY place, step), array_agg(content_type ORDER BY place, step),
        array_agg(error ORDER BY place, step)
    FROM happened HAVING count(*) > 0
--}
--{results
), finished AS (
    SELECT id FROM moved
--include: remembered
--}
)
SELECT
    (SELECT array_agg(place) FROM moved),
    (SELECT array_agg(recipient) FROM moved),
    (SELECT advance_groups((SELECT id FROM shelf), array_agg(DISTINCT old_grp ORDER BY old_grp), %(now)s)
     FROM moved WHERE old_grp IS NOT NULL AND (NOT old_blocked OR receives > 0) HAVING count(*) > 0),
    (SELECT id FROM target),
    ARRAY(SELECT DISTINCT id::text FROM blocks),
    (SELECT count(*) FROM moved WHERE expired)
FROM shelf;

-- name: lock_whole_queue
-- A purge waits for claims that are being made or acked, messages that join groups, and blocks that are being split.
WITH shelf AS MATERIALIZED (
    SELECT id FROM queues WHERE name = %(queue)s FOR UPDATE
)
SELECT pg_advisory_xact_lock(1, id) FROM shelf;

-- name: clear_some
-- In the transaction that locked the queue: removes the next rows by id. The last of them if more may follow, and how many
-- messages and bytes they were.
WITH shelf AS (
    SELECT id FROM queues WHERE name = %(queue)s
), upto AS MATERIALIZED (
    SELECT m.id FROM messages m WHERE m.queue = (SELECT id FROM shelf) AND m.id > %(after)s::uuid
    ORDER BY m.id OFFSET %(limit)s::int - 1 LIMIT 1
), gone AS (
    DELETE FROM messages m
    WHERE m.queue = (SELECT id FROM shelf) AND m.id > %(after)s::uuid
        AND m.id <= coalesce((SELECT id FROM upto), 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    RETURNING m.size, m.count
)
SELECT (SELECT id::text FROM upto), coalesce(sum(count), 0)::bigint, coalesce(sum(size), 0)::bigint FROM gone;

-- name: forget_dedup
DELETE FROM dedup WHERE queue = (SELECT id FROM queues WHERE name = %(queue)s) AND NOT call;

-- name: clear
-- In the transaction that removed the messages.
WITH shelf AS (
    SELECT id, name FROM queues WHERE name = %(queue)s
), tally AS (
    INSERT INTO tallies AS t (queue, slot, messages, bytes)
    SELECT id, mod(pg_backend_pid(), 32), -%(messages)s::bigint, -%(bytes)s::bigint FROM shelf
    WHERE %(messages)s::bigint > 0
--include: tallied
), finished AS (
    UPDATE readers SET acked = last WHERE queue = (SELECT id FROM shelf) AND acked < last
), ended AS (
    UPDATE claims c SET until = 0 FROM readers r
    WHERE r.queue = (SELECT id FROM shelf) AND c.readers = r.id AND c.until IS DISTINCT FROM 0
--{history
), told AS (
    INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes, messages)
    SELECT 1, 64, %(now)s, ARRAY['purged'], ARRAY[name], ARRAY[''], ARRAY[0], ARRAY[%(bytes)s::bigint], %(messages)s
    FROM shelf WHERE %(messages)s::bigint > 0
--}
)
SELECT id FROM shelf;

-- Reading

-- name: find
WITH shelf AS (
    SELECT id FROM queues WHERE name = %(queue)s
), asked AS MATERIALIZED (
    SELECT shelf.id AS queue, a.* FROM shelf CROSS JOIN unnest(%(floors)s::uuid[], %(ids)s::uuid[]) AS a (floor, id)
), found AS (
    SELECT u.id, m.sent_at, m.due_at, m.rank, m.receives, m.about, substring(m.body FROM u.start FOR u.size) AS body,
        m.visible_at, m.receipt, m.consumer, m.error
    FROM asked a JOIN messages m
        ON m.queue = a.queue AND m.id BETWEEN a.floor AND a.id AND coalesce(m.last, m.id) >= a.id
    CROSS JOIN LATERAL unpacked(m.id, m.size, m.sizes) u
    WHERE u.id = a.id
)
SELECT f.id::text, f.sent_at, f.due_at, f.rank, f.receives, f.about, f.body, null, f.visible_at, f.receipt, f.consumer,
    f.error
FROM shelf LEFT JOIN found f ON true;

-- name: held
SELECT m.id::text, m.sent_at, m.due_at, m.rank, m.receives, m.about, m.body, m.sizes, m.visible_at, m.receipt,
    m.consumer, m.error
FROM queues q JOIN messages m ON m.queue = q.id AND m.later AND m.leased AND m.visible_at = %(until)s
WHERE q.name = %(queue)s AND m.receipt = %(token)s ORDER BY m.id;

-- name: scan
-- By id: all messages, or the ready ones.
WITH shelf AS (
    SELECT id FROM queues WHERE name = %(queue)s
), page AS (
    SELECT m.*, 0::bigint AS cursor, u.id AS one, u.size AS bytes, u.start
    FROM (
        SELECT * FROM messages m
        WHERE m.queue = (SELECT id FROM shelf) AND m.id >= %(floor)s::uuid
            AND coalesce(m.last, m.id) > %(after_id)s::uuid AND m.visible_at <= %(upto)s
        ORDER BY m.id
    ) m CROSS JOIN LATERAL unpacked(m.id, m.size, m.sizes) u
    WHERE u.id > %(after_id)s::uuid
    ORDER BY m.id LIMIT %(limit)s + 1
--include: page

-- name: scan_later
-- By the time at which they become ready: leased messages, or delayed ones.
WITH shelf AS (
    SELECT id FROM queues WHERE name = %(queue)s
), page AS (
    SELECT m.*, m.visible_at AS cursor, u.id AS one, u.size AS bytes, u.start
    FROM (
        SELECT * FROM messages m
        WHERE m.queue = (SELECT id FROM shelf) AND m.later AND m.leased = %(leased)s
            AND m.visible_at > %(now)s AND (m.visible_at, m.id) >= (%(after_moment)s, %(floor)s::uuid)
        ORDER BY m.visible_at, m.id
    ) m CROSS JOIN LATERAL unpacked(m.id, m.size, m.sizes) u
    WHERE (m.visible_at, u.id) > (%(after_moment)s, %(after_id)s::uuid)
    ORDER BY m.visible_at, m.id LIMIT %(limit)s + 1
--include: page

-- part: page
), summed AS (
    SELECT *, sum(bytes) OVER (ORDER BY cursor, one ROWS UNBOUNDED PRECEDING) AS total,
        row_number() OVER (ORDER BY cursor, one) AS place
    FROM page
)
SELECT p.one::text, p.sent_at, p.due_at, p.rank, p.receives, p.about,
    CASE
        WHEN p.place <= %(limit)s AND (p.place = 1 OR p.total <= %(max_bytes)s)
        THEN substring(p.body FROM p.start FOR p.bytes)
    END,
    null, p.visible_at, p.receipt, p.consumer, p.error
FROM shelf LEFT JOIN summed p ON p.place = 1 OR p.total - p.bytes <= %(max_bytes)s
ORDER BY p.cursor, p.one;
-- end

-- name: counts
WITH shelf AS (
    SELECT id FROM queues WHERE name = %(queue)s
), held AS (
    SELECT coalesce(sum(messages), 0)::bigint AS messages, coalesce(sum(bytes), 0)::bigint AS bytes
    FROM tallies WHERE queue = (SELECT id FROM shelf)
), later AS (
    SELECT coalesce(sum(n) FILTER (WHERE NOT leased), 0)::bigint AS delayed,
        coalesce(sum(n) FILTER (WHERE leased), 0)::bigint AS leased
    FROM (VALUES (true), (false)) AS side (leased) CROSS JOIN LATERAL (
        SELECT sum(count) AS n FROM messages m
        WHERE m.queue = (SELECT id FROM shelf) AND m.later AND m.leased = side.leased
            AND m.visible_at > %(now)s
    ) counted
), oldest AS (
    SELECT min(next.sent_at) AS sent_at FROM generate_series(-9, 0) AS r (rank) CROSS JOIN LATERAL (
        SELECT m.sent_at FROM messages m
        WHERE m.queue = (SELECT id FROM shelf) AND m.rank = r.rank AND m.recipient IS NULL AND NOT m.blocked
            AND NOT m.later AND m.visible_at <= %(now)s
        ORDER BY m.rank, m.id LIMIT 1
    ) next
), due AS MATERIALIZED (  -- messages that are due and that no take has put in line yet
    SELECT due.* FROM (VALUES (true), (false)) AS side (leased) CROSS JOIN LATERAL (
        SELECT m.sent_at, m.recipient, m.grp, m.blocked FROM messages m
        WHERE m.queue = (SELECT id FROM shelf) AND m.later AND m.leased = side.leased AND m.visible_at <= %(now)s
            AND (NOT m.blocked OR m.receives > 0)
    ) due
), back AS (
    SELECT min(sent_at) AS sent_at FROM (
        SELECT sent_at, recipient FROM due WHERE NOT blocked
        UNION ALL
        SELECT first.sent_at, first.recipient FROM (SELECT DISTINCT grp FROM due WHERE blocked) g CROSS JOIN LATERAL (
            SELECT m.sent_at, m.recipient, m.visible_at FROM messages m
            WHERE m.queue = (SELECT id FROM shelf) AND m.grp = g.grp AND m.blocked AND m.receives > 0
            ORDER BY m.id LIMIT 1
        ) first
        WHERE first.visible_at <= %(now)s AND (
            SELECT true FROM messages m
            WHERE m.queue = (SELECT id FROM shelf) AND m.grp = g.grp AND m.blocked AND m.receives > 0 AND m.leased
                AND m.visible_at > %(now)s
            LIMIT 1
        ) IS NULL AND (
            SELECT true FROM messages m WHERE m.queue = (SELECT id FROM shelf) AND m.grp = g.grp AND NOT m.blocked LIMIT 1
        ) IS NULL
    ) m WHERE recipient IS NULL
)
SELECT held.messages - later.delayed - later.leased, later.delayed, later.leased, held.bytes,
    least(oldest.sent_at, back.sent_at)
FROM shelf, held, later, oldest, back;

-- name: holdings
SELECT m.consumer, sum(m.count)::bigint, max(m.taken_at)
FROM queues q JOIN messages m ON m.queue = q.id AND m.later AND m.leased AND m.visible_at > %(now)s
WHERE q.name = %(queue)s GROUP BY m.consumer;

-- name: next_visible
SELECT (
    SELECT min(next.visible_at) FROM (VALUES (true), (false)) AS side (leased) CROSS JOIN LATERAL (
        SELECT m.visible_at FROM messages m
        WHERE m.queue = q.id AND m.later AND m.leased = side.leased AND m.visible_at > %(now)s
            AND m.visible_at < NEVER
        ORDER BY m.visible_at, m.id LIMIT 1
    ) next
)
FROM queues q WHERE q.name = %(queue)s;

-- History

-- name: lock_history
SELECT last FROM history_state FOR UPDATE;

-- name: number_history
-- Assigns offsets to committed events in the order in which their changes began, under `lock_history`.
WITH pending AS MATERIALIZED (
    SELECT seq, count, bytes, sum(count) OVER (ORDER BY seq) AS upto
    FROM (SELECT seq, count, bytes FROM history WHERE first IS NULL ORDER BY seq LIMIT %(limit)s) h
), numbered AS (
    UPDATE history h SET first = s.last + p.upto - p.count + 1
    FROM pending p, history_state s WHERE h.seq = p.seq
)
UPDATE history_state SET
    last = last + coalesce((SELECT sum(count) FROM pending), 0)::bigint,
    bytes = bytes + coalesce((SELECT sum(bytes) FROM pending), 0)::bigint
RETURNING (SELECT count(*) FROM pending);

-- name: history
-- Up to `limit` events after an offset, as far as they fit; the first and the last row may have more.
WITH page AS (
    SELECT *, sum(bytes) OVER (ORDER BY first ROWS UNBOUNDED PRECEDING) - bytes AS before FROM (
        SELECT * FROM history
        WHERE first >= coalesce(
            (SELECT h.first FROM history h WHERE h.first <= %(after)s + 1 ORDER BY h.first DESC LIMIT 1), 0)
            AND first <= (SELECT greatest(%(after)s, s.first - 1) FROM history_state s) + %(limit)s
        ORDER BY first
    ) h
)
SELECT first, at, events, queues, ids, receives, sizes, consumers, waits, helds, reasons, bodies, content_types, messages,
    errors, targets
FROM page WHERE before <= %(max_bytes)s ORDER BY first;

-- name: history_span
SELECT first, last, bytes, (SELECT at FROM history h WHERE h.first IS NOT NULL ORDER BY h.first LIMIT 1)
FROM history_state;

-- name: trim_history
WITH gone AS (
    DELETE FROM history WHERE first IS NOT NULL AND first <= %(upto)s AND first + count - 1 <= %(upto)s
    RETURNING first + count AS next, bytes
)
UPDATE history_state SET
    first = greatest(first, coalesce((SELECT max(next) FROM gone), first)),
    bytes = bytes - coalesce((SELECT sum(bytes) FROM gone), 0)::bigint;

-- Upkeep

-- name: tidy_dedup
WITH gone AS (
    DELETE FROM dedup WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM dedup WHERE until <= %(now)s ORDER BY until LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    )) RETURNING 1
)
SELECT count(*) FROM gone;

-- name: remains
SELECT queue, until FROM remains;

-- name: tidy_messages
WITH gone AS (
    DELETE FROM messages WHERE queue = %(shelf)s AND id = ANY (ARRAY(
        SELECT id FROM messages WHERE queue = %(shelf)s ORDER BY id LIMIT %(limit)s
    )) RETURNING 1
), names AS (
    DELETE FROM dedup WHERE queue = %(shelf)s RETURNING 1
), kept AS (
    DELETE FROM results WHERE queue = %(shelf)s AND id = ANY (ARRAY(
        SELECT id FROM results WHERE queue = %(shelf)s ORDER BY id LIMIT %(limit)s
    )) RETURNING 1
), counted AS (
    DELETE FROM tallies WHERE queue = %(shelf)s
)
SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM names) + (SELECT count(*) FROM kept);

-- name: keep_remains
UPDATE remains SET until = %(until)s WHERE queue = %(shelf)s;

-- name: drop_remains
DELETE FROM remains WHERE queue = %(shelf)s;

-- Copying

-- name: all_records
SELECT kind, name, value FROM records ORDER BY kind, name;

-- name: dump_messages
-- First messages in no group, and the heads and fronts of groups, then those that wait.
SELECT m.id::text, m.sent_at, m.due_at, m.rank, m.receives, m.about, m.body, m.sizes, m.visible_at, m.receipt,
    m.consumer, m.error, m.taken_at
FROM messages m
WHERE m.queue = (SELECT id FROM queues WHERE name = %(queue)s) AND m.id > %(after)s::uuid
    AND (m.blocked AND m.receives = 0) = %(waiting)s
ORDER BY m.queue, m.id LIMIT %(limit)s;

-- name: dump_dedup
SELECT call, name, ids, until FROM dedup
WHERE queue = (SELECT id FROM queues WHERE name = %(queue)s) AND (call, name) > (%(call)s, %(after)s)
ORDER BY call, name LIMIT %(limit)s;

-- name: load_messages
-- The next take finds those that are due.
WITH shelf AS (
    SELECT id FROM queues WHERE name = %(queue)s
), given AS (
    SELECT *, row_number() OVER (PARTITION BY grp ORDER BY place) AS nth FROM unnest(
        %(ids)s::uuid[], %(sent)s::bigint[], %(due)s::bigint[], %(sizes)s::int[], %(ranks)s::smallint[],
        %(recipients)s::text[], %(groups)s::text[], %(abouts)s::text[], %(bodies)b::bytea[], %(visible)s::bigint[],
        %(taken)s::bigint[], %(receives)s::int[], %(receipts)s::text[], %(consumers)s::text[], %(errors)s::text[]
    ) WITH ORDINALITY AS g (
        id, sent_at, due_at, size, rank, recipient, grp, about, body, visible_at, taken_at, receives, receipt, consumer,
        error, place
    )
), added AS (
    INSERT INTO messages (
        id, sent_at, due_at, visible_at, taken_at, queue, size, receives, rank, blocked, later, receipt, consumer,
        recipient, grp, about, body, error
    )
    SELECT g.id, g.sent_at, g.due_at, g.visible_at, g.taken_at, shelf.id, g.size, g.receives, g.rank,
        g.grp IS NOT NULL AND (g.nth > 1 OR (
            -- not EXISTS, for which the planner may list all groups
            SELECT true FROM messages h WHERE h.queue = shelf.id AND h.grp = g.grp LIMIT 1
        ) IS NOT NULL),
        g.receipt IS NOT NULL OR g.visible_at > g.sent_at, g.receipt, g.consumer, g.recipient, g.grp, g.about, g.body,
        g.error
    FROM given g, shelf ORDER BY g.place
)
INSERT INTO tallies AS t (queue, slot, messages, bytes, last_id)
SELECT shelf.id, mod(pg_backend_pid(), 32), count(*), sum(g.size), (SELECT id FROM given ORDER BY id DESC LIMIT 1)
FROM given g, shelf GROUP BY shelf.id
--include: tallied
;

-- name: load_fronts
-- Of a front that was loaded the first message can be taken, once a take finds that its leases are over.
WITH asked AS MATERIALIZED (
    SELECT q.id AS queue, g.name FROM queues q CROSS JOIN unnest(%(groups)s::text[]) AS g (name)
    WHERE q.name = %(queue)s
), held AS (
    UPDATE messages m SET blocked = true FROM asked a
    WHERE m.queue = a.queue AND m.grp = a.name AND NOT m.blocked AND (
        SELECT true FROM messages f WHERE f.queue = a.queue AND f.grp = a.name AND f.blocked AND f.receives > 0 LIMIT 1
    )
    RETURNING 1
)
SELECT advance_groups(id, %(groups)s::text[], 0) FROM queues
WHERE name = %(queue)s AND (SELECT count(*) FROM held) >= 0;

-- name: load_dedup
INSERT INTO dedup (queue, call, name, ids, until)
SELECT q.id, g.* FROM queues q, unnest(%(calls)s::boolean[], %(names)s::text[], %(said)s::text[], %(untils)s::bigint[]) g
WHERE q.name = %(queue)s;

-- name: load_last_id
INSERT INTO tallies AS t (queue, slot, messages, bytes, last_id) VALUES (0, 0, 0, 0, %(id)s::uuid)
ON CONFLICT (queue, slot) DO UPDATE SET last_id = greatest(t.last_id, excluded.last_id);

-- name: begin_history
UPDATE history_state SET first = %(first)s, last = %(first)s::bigint - 1, bytes = 0;

-- name: load_history
WITH added AS (
    INSERT INTO history (
        first, count, bytes, at, events, queues, ids, receives, sizes, consumers, waits, helds, reasons, bodies,
        content_types, messages, errors, targets
    ) VALUES (
        %(first)s, %(count)s, %(bytes)s, %(at)s, %(events)s::text[], %(queues)s::text[], %(ids)s::text[],
        %(receives)s::int[], %(sizes)s::bigint[], %(consumers)s::text[], %(waits)s::bigint[], %(helds)s::bigint[],
        %(reasons)s::text[], %(bodies)s::bytea[], %(content_types)s::text[], %(messages)s, %(errors)s::text[],
        %(targets)s::text[]
    )
)
UPDATE history_state SET last = last + %(count)s, bytes = bytes + %(bytes)s;
