-- Every query of the store, by name; those about claims and stages have files of their own. queries.py reads them.
--
-- What stands between `--{history` and `--}` is only in the variant that writes history: where it is off, it costs
-- nothing. The same goes for `call`, where a send has a name. Each query finds the queue by name and gives a row whenever the queue exists, so that none means
-- "no such queue". Every access to messages goes through an index; a test looks at each plan.

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
    DELETE FROM tallies t USING gone WHERE t.queue = gone.id RETURNING t.last_id
), newest AS (  -- queue 0 keeps the highest id of all queues that are gone
    INSERT INTO tallies AS t (queue, slot, messages, bytes, last_id)
    SELECT 0, 0, 0, 0, last_id FROM counted WHERE last_id IS NOT NULL ORDER BY last_id DESC LIMIT 1
    ON CONFLICT (queue, slot) DO UPDATE SET last_id = greatest(t.last_id, excluded.last_id)
), left_over AS (
    INSERT INTO remains (queue) SELECT id FROM gone
)
UPDATE meta SET revision = revision + 1 WHERE EXISTS (SELECT FROM gone) RETURNING true;

-- name: records
SELECT name, value FROM records WHERE kind = %(kind)s;

-- name: save_record
WITH saved AS (
    INSERT INTO records (kind, name, value) VALUES (%(kind)s, %(name)s, %(value)b)
    ON CONFLICT (kind, name) DO UPDATE SET value = excluded.value
)
UPDATE meta SET revision = revision + 1;

-- name: drop_record
WITH gone AS (DELETE FROM records WHERE kind = %(kind)s AND name = %(name)s)
UPDATE meta SET revision = revision + 1;

-- name: last_id
SELECT last_id::text FROM tallies WHERE last_id IS NOT NULL ORDER BY last_id DESC LIMIT 1;

-- Put

-- name: put_plain
-- Messages that are alike and ask for nothing special.
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
    SELECT * FROM unnest(%(ids)s::uuid[], %(bodies)b::bytea[]) WITH ORDINALITY AS g (id, body, place)
), added AS (
    INSERT INTO messages (id, sent_at, due_at, visible_at, queue, size, rank, about, body)
    SELECT g.id, %(sent_at)s, %(due_at)s, %(due_at)s, shelf.id, octet_length(g.body), %(rank)s, %(about)s, g.body
    FROM given g, shelf
), tally AS (
    INSERT INTO tallies AS t (queue, slot, messages, bytes, last_id)
    SELECT id, mod(pg_backend_pid(), 32), %(count)s, %(bytes)s, %(last_id)s::uuid FROM shelf
    ON CONFLICT (queue, slot) DO UPDATE SET
        messages = t.messages + excluded.messages, bytes = t.bytes + excluded.bytes,
        last_id = greatest(t.last_id, excluded.last_id)
--{history
), told AS (
    INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes, bodies, content_types)
    SELECT %(count)s, 64 * %(count)s + CASE WHEN %(full)s THEN %(bytes)s ELSE 0 END, %(now)s,
        array_fill('sent'::text, ARRAY[%(count)s::int]), array_fill(name, ARRAY[%(count)s::int]),
        %(ids)s::uuid[]::text[], array_fill(0, ARRAY[%(count)s::int]),
        ARRAY(SELECT octet_length(body)::bigint FROM given ORDER BY place),
        CASE WHEN %(full)s THEN %(bodies)b::bytea[] END,
        CASE WHEN %(full)s THEN array_fill(%(content_type)s::text, ARRAY[%(count)s::int]) END
    FROM shelf
--}
)
SELECT id, EXISTS (SELECT FROM shelf) FROM found;

-- name: call_ids
SELECT d.ids FROM queues q JOIN dedup d ON d.queue = q.id AND d.call AND d.name = %(call)s WHERE q.name = %(queue)s;

-- name: lock_queue
-- Room is checked by one put at a time.
SELECT id FROM queues WHERE name = %(queue)s FOR NO KEY UPDATE;

-- name: claim_call
-- Enter a call by its name, unless it stands there already.
INSERT INTO dedup AS d (queue, call, name, ids, until)
SELECT id, true, %(call)s, %(given)s, %(call_until)s FROM queues WHERE name = %(queue)s
ON CONFLICT (queue, call, name) DO UPDATE SET ids = excluded.ids, until = excluded.until WHERE d.until <= %(now)s;

-- name: claim_dedup
-- Enter messages by their dedup_id, those that do not stand there already; none if the whole call is a repetition.
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
SELECT lock_group(q.id, g.name)
FROM queues q, (SELECT name FROM unnest(%(groups)s::text[]) AS name ORDER BY name) g
WHERE q.name = %(queue)s;

-- name: put
-- After the locks and claims above, in the same transaction: add what is new, answer what stands.
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
    SELECT g.*, coalesce(d.ids, g.id::text) AS stands
    FROM given g CROSS JOIN shelf
    LEFT JOIN dedup d ON d.queue = shelf.id AND NOT d.call AND d.name = g.dedup_id
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
    INSERT INTO messages (id, sent_at, due_at, visible_at, queue, size, rank, blocked, recipient, grp, about, body)
    SELECT f.id, f.sent_at, f.due_at, f.due_at, shelf.id, f.size, f.rank,
        f.grp IS NOT NULL AND (f.nth > 1 OR (
            -- not EXISTS, which may be answered from a list of all heads
            SELECT true FROM messages h WHERE h.queue = shelf.id AND h.grp = f.grp AND NOT h.blocked LIMIT 1
        ) IS NOT NULL),
        f.recipient, f.grp, f.about, f.body
    FROM fresh f, shelf WHERE (SELECT ok FROM fits) ORDER BY f.place
), tally AS (
    INSERT INTO tallies AS t (queue, slot, messages, bytes, last_id)
    SELECT shelf.id, mod(pg_backend_pid(), 32), more.messages, more.bytes,
        (SELECT id FROM fresh ORDER BY id DESC LIMIT 1)
    FROM shelf, more WHERE more.messages > 0
    ON CONFLICT (queue, slot) DO UPDATE SET
        messages = t.messages + excluded.messages, bytes = t.bytes + excluded.bytes,
        last_id = greatest(t.last_id, excluded.last_id)
--{history
), told AS (
    INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes, bodies, content_types)
    SELECT more.messages, 64 * more.messages + CASE WHEN %(full)s THEN more.bytes ELSE 0 END, %(now)s,
        array_fill('sent'::text, ARRAY[more.messages::int]), array_fill(shelf.name, ARRAY[more.messages::int]),
        ARRAY(SELECT id::text FROM fresh ORDER BY place), array_fill(0, ARRAY[more.messages::int]),
        ARRAY(SELECT size::bigint FROM fresh ORDER BY place),
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
-- A repetition gets the answer of the first time, which names the messages that stood already.
UPDATE dedup d SET ids = %(answer)s FROM queues q
WHERE q.name = %(queue)s AND d.queue = q.id AND d.call AND d.name = %(call)s;

-- Take

-- name: take
-- What anybody may have; nothing, and a word about it, if something must be put back into line first.
WITH shelf AS (
    SELECT id, name FROM queues WHERE name = %(queue)s
--include: expired
), ready AS MATERIALIZED (
--include: common
--include: taken

-- name: take_own
-- What anybody may have, and what this consumer is the recipient of.
WITH shelf AS (
    SELECT id, name FROM queues WHERE name = %(queue)s
--include: expired
), common AS MATERIALIZED (
--include: common
), own AS MATERIALIZED (
    SELECT m.queue, m.id, m.rank, m.size, m.visible_at, m.taken_at, m.receipt, m.consumer
    FROM messages m
    WHERE m.queue = (SELECT id FROM shelf) AND m.recipient = %(consumer)s AND NOT m.blocked AND NOT m.leased
        AND m.visible_at <= %(now)s AND NOT (SELECT there FROM expired)
    ORDER BY m.rank, m.id LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
), ready AS MATERIALIZED (
    SELECT * FROM common UNION ALL SELECT * FROM own ORDER BY rank, id LIMIT %(limit)s
--include: taken

-- part: expired
), expired AS MATERIALIZED (
    SELECT %(look)s AND EXISTS (
        SELECT FROM messages m
        WHERE m.queue = (SELECT id FROM shelf) AND m.leased AND m.visible_at <= %(now)s
            AND (m.receipt IS NOT NULL OR m.visible_at > m.sent_at)
    ) AS there
-- end

-- part: common
    SELECT m.queue, m.id, m.rank, m.size, m.visible_at, m.taken_at, m.receipt, m.consumer
    FROM messages m
    WHERE m.queue = (SELECT id FROM shelf) AND m.recipient IS NULL AND NOT m.blocked AND NOT m.leased
        AND m.visible_at <= %(now)s AND NOT (SELECT there FROM expired)
    ORDER BY m.rank, m.id LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
-- end

-- part: taken
), chosen AS MATERIALIZED (
    SELECT * FROM (
        SELECT *, sum(size) OVER (ORDER BY rank, id ROWS UNBOUNDED PRECEDING) AS total,
            row_number() OVER (ORDER BY rank, id) AS place
        FROM ready
    ) r WHERE total <= %(max_bytes)s OR place = 1
), taken AS (
    UPDATE messages m SET
        visible_at = %(until)s, taken_at = %(now)s, leased = true, receipt = %(token)s, consumer = %(consumer)s,
        receives = m.receives + 1
    FROM chosen c WHERE m.queue = c.queue AND m.id = c.id
    RETURNING c.place, m.id, m.sent_at, m.due_at, m.rank, m.receives, m.about, m.body, m.size,
        c.visible_at AS was_visible_at, c.taken_at AS was_taken_at, c.receipt AS was_receipt,
        c.consumer AS was_consumer
--{history
), happened AS (
    SELECT t.place, e.* FROM taken t CROSS JOIN LATERAL (
        VALUES
            (1, 'expired', t.id, t.receives - 1, t.size, t.was_consumer, null::bigint,
                greatest(0, t.was_visible_at - t.was_taken_at), 'lease'),
            (2, 'received', t.id, t.receives, t.size, %(consumer)s::text,
                greatest(0, %(now)s::bigint - t.was_visible_at), null, null)
    ) AS e (step, event, id, receives, size, consumer, wait, held, reason)
    WHERE e.step = 2 OR (t.was_receipt IS NOT NULL AND t.was_taken_at IS NOT NULL)
), told AS (
    INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes, consumers, waits, helds, reasons)
    SELECT count(*), 64 * count(*), %(now)s,
        array_agg(event ORDER BY place, step), array_fill((SELECT name FROM shelf), ARRAY[count(*)::int]),
        array_agg(id::text ORDER BY place, step), array_agg(receives ORDER BY place, step),
        array_agg(size::bigint ORDER BY place, step), array_agg(consumer ORDER BY place, step),
        array_agg(wait ORDER BY place, step), array_agg(held ORDER BY place, step),
        array_agg(reason ORDER BY place, step)
    FROM happened HAVING count(*) > 0
--}
)
SELECT t.id::text, t.sent_at, t.due_at, t.rank, t.receives, t.about, t.body, (SELECT there FROM expired)
FROM shelf LEFT JOIN taken t ON true ORDER BY t.place;
-- end

-- name: return_expired
-- Leases that have run out stand in line again. Their receipts stay good until somebody takes them.
WITH back AS (
    UPDATE messages m SET leased = false FROM (
        SELECT m.queue, m.id FROM messages m
        WHERE m.queue = (SELECT id FROM queues WHERE name = %(queue)s) AND m.leased AND m.visible_at <= %(now)s
            AND (m.receipt IS NOT NULL OR m.visible_at > m.sent_at)
        ORDER BY m.visible_at, m.id LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) e WHERE m.queue = e.queue AND m.id = e.id
    RETURNING 1
)
SELECT count(*) FROM back;

-- Changes of single messages, each on its fence

-- name: drop
WITH shelf AS (
    SELECT id, name FROM queues WHERE name = %(queue)s
), gone AS (
    DELETE FROM messages m USING
--include: asked
    WHERE m.queue = (SELECT id FROM shelf) AND m.id = a.id
--include: fence
    RETURNING a.place, m.id, m.size, m.grp, m.blocked, m.receives, m.consumer, m.receipt, m.taken_at
), tally AS (
    INSERT INTO tallies AS t (queue, slot, messages, bytes)
    SELECT (SELECT id FROM shelf), mod(pg_backend_pid(), 32), -count(*), -sum(size) FROM gone HAVING count(*) > 0
    ON CONFLICT (queue, slot) DO UPDATE SET
        messages = t.messages + excluded.messages, bytes = t.bytes + excluded.bytes
--{history
), told AS (
    INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes, consumers, helds, reasons)
    SELECT count(*), 64 * count(*), %(now)s,
        array_fill(%(event)s::text, ARRAY[count(*)::int]),
        array_fill((SELECT name FROM shelf), ARRAY[count(*)::int]),
        array_agg(id::text ORDER BY place), array_agg(receives ORDER BY place),
        array_agg(size::bigint ORDER BY place), array_agg(consumer ORDER BY place),
        array_agg(CASE WHEN receipt IS NOT NULL THEN greatest(0, %(now)s - taken_at) END ORDER BY place),
        array_fill(%(reason)s::text, ARRAY[count(*)::int])
    FROM gone HAVING count(*) > 0
--}
)
SELECT
    (SELECT count(*) FROM gone),
    (SELECT array_agg(place) FROM gone),
    (SELECT advance_groups((SELECT id FROM shelf), array_agg(DISTINCT grp ORDER BY grp))
     FROM gone WHERE grp IS NOT NULL AND NOT blocked HAVING count(*) > 0)
FROM shelf;

-- name: reschedule
WITH shelf AS (
    SELECT id, name FROM queues WHERE name = %(queue)s
--{history
), old AS MATERIALIZED (
    SELECT m.id, m.receives, m.size, m.consumer, m.receipt, m.taken_at
    FROM messages m
    WHERE m.queue = (SELECT id FROM shelf) AND m.id = ANY (%(ids)s::uuid[])
    ORDER BY m.id FOR UPDATE
--}
), changed AS (
    UPDATE messages m SET
        visible_at = %(visible_at)s,
        leased = NOT %(release)s AND m.receipt IS NOT NULL,
        receipt = CASE WHEN %(release)s THEN null ELSE m.receipt END,
        consumer = CASE WHEN %(release)s THEN null ELSE m.consumer END,
        taken_at = CASE WHEN %(release)s THEN null ELSE m.taken_at END
    FROM
--include: asked
--{history
    JOIN old o USING (id)
--}
    WHERE m.queue = (SELECT id FROM shelf) AND m.id = a.id
--include: fence
    RETURNING a.place, m.id, m.recipient
--{history
        , o.receives, o.size, o.consumer, o.receipt, o.taken_at
), told AS (
    INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes, consumers, helds)
    SELECT count(*), 64 * count(*), %(now)s,
        array_fill(%(event)s::text, ARRAY[count(*)::int]),
        array_fill((SELECT name FROM shelf), ARRAY[count(*)::int]),
        array_agg(id::text ORDER BY place), array_agg(receives ORDER BY place),
        array_agg(size::bigint ORDER BY place), array_agg(consumer ORDER BY place),
        array_agg(CASE WHEN receipt IS NOT NULL THEN greatest(0, %(now)s - taken_at) END ORDER BY place)
    FROM changed HAVING count(*) > 0
--}
)
SELECT
    (SELECT count(*) FROM changed),
    (SELECT array_agg(place) FROM changed),
    (SELECT array_agg(recipient) FROM changed)
FROM shelf;

-- part: asked
    (   -- in order of ids, in which everybody who waits for rows locks them
        SELECT * FROM unnest(%(ids)s::uuid[], %(receipts)s::text[]) WITH ORDINALITY AS a (id, receipt, place) ORDER BY id
    ) a
-- end

-- part: fence
        AND m.visible_at <> NEVER
        AND (m.receipt = a.receipt OR a.receipt = '*'
             OR (a.receipt = '' AND (m.receipt IS NULL OR m.visible_at <= %(now)s)))
-- end

-- name: present
-- Which of these messages are there, and in a claim: what was not changed is stale or leased, the rest is missing.
SELECT m.id::text, m.visible_at = NEVER FROM queues q JOIN messages m ON m.queue = q.id
WHERE q.name = %(queue)s AND m.id = ANY (%(ids)s::uuid[]);

-- name: lock_message
-- One message as it is now, for an edit in the same transaction.
SELECT q.id, m.id::text, m.sent_at, m.due_at, m.rank, m.receives, m.about, m.body, m.visible_at, m.receipt, m.consumer
FROM queues q LEFT JOIN LATERAL (
    SELECT * FROM messages m WHERE m.queue = q.id AND m.id = %(id)s::uuid FOR UPDATE
) m ON true
WHERE q.name = %(queue)s;

-- name: edit
WITH edited AS (
    UPDATE messages SET
        due_at = %(due_at)s, rank = %(rank)s, size = %(size)s, about = %(about)s, body = %(body)b,
        visible_at = CASE WHEN %(reset)s THEN %(due_at)s ELSE visible_at END,
        leased = leased AND NOT %(reset)s,
        receipt = CASE WHEN %(reset)s THEN null ELSE receipt END,
        consumer = CASE WHEN %(reset)s THEN null ELSE consumer END,
        taken_at = CASE WHEN %(reset)s THEN null ELSE taken_at END
    WHERE queue = %(shelf)s AND id = %(id)s::uuid
    RETURNING queue, recipient, receives
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
SELECT recipient FROM edited;

-- name: move
-- After the groups of the target are locked, in the same transaction.
WITH shelf AS (
    SELECT id, name FROM queues WHERE name = %(queue)s
), target AS (
    SELECT id, name FROM queues WHERE name = %(to)s
), given AS (
    SELECT * FROM unnest(
        %(ids)s::uuid[], %(receipts)s::text[], %(sent)s::bigint[], %(due)s::bigint[], %(sizes)s::int[],
        %(ranks)s::smallint[], %(recipients)s::text[], %(groups)s::text[], %(abouts)s::text[],
        %(content_types)s::text[], %(bodies)b::bytea[]
    ) WITH ORDINALITY AS g (id, receipt, sent_at, due_at, size, rank, recipient, grp, about, content_type, body, place)
), matching AS MATERIALIZED (
    SELECT m.id, m.receives, m.size, m.consumer, m.receipt, m.taken_at, m.grp, m.blocked, a.place
    FROM messages m JOIN given a ON m.queue = (SELECT id FROM shelf) AND m.id = a.id
--include: fence
    WHERE (SELECT id FROM target) IS NOT NULL
    ORDER BY m.id FOR UPDATE OF m
), heads AS MATERIALIZED (
    SELECT g.id, row_number() OVER (PARTITION BY g.grp ORDER BY g.place) > 1 OR (
        -- not EXISTS, which may be answered from a list of all heads
        SELECT true FROM messages h WHERE h.queue = (SELECT id FROM target) AND h.grp = g.grp AND NOT h.blocked LIMIT 1
    ) IS NOT NULL AS blocked
    FROM given g JOIN matching USING (id) WHERE g.grp IS NOT NULL
), moved AS (
    UPDATE messages m SET
        queue = (SELECT id FROM target), sent_at = g.sent_at, due_at = g.due_at, visible_at = g.due_at, taken_at = null,
        size = g.size, receives = 0, rank = g.rank, blocked = coalesce(h.blocked, false), leased = false,
        receipt = null, consumer = null, recipient = g.recipient, grp = g.grp, about = g.about, body = g.body
    FROM matching o JOIN given g USING (id) LEFT JOIN heads h USING (id)
    WHERE m.queue = (SELECT id FROM shelf) AND m.id = o.id
    RETURNING g.place, m.id, g.size, g.body, g.content_type, g.recipient, o.size AS old_size, o.receives, o.consumer,
        o.receipt, o.taken_at, o.grp AS old_grp, o.blocked AS old_blocked
), tally AS (
    INSERT INTO tallies AS t (queue, slot, messages, bytes, last_id)
    SELECT side.queue, mod(pg_backend_pid(), 32), side.messages, side.bytes, side.last_id FROM (
        SELECT (SELECT id FROM shelf) AS queue, -count(*) AS messages, -sum(old_size) AS bytes, null::uuid AS last_id
        FROM moved HAVING count(*) > 0
        UNION ALL
        SELECT (SELECT id FROM target), count(*), sum(size), (SELECT id FROM moved ORDER BY id DESC LIMIT 1)
        FROM moved HAVING count(*) > 0
    ) side ORDER BY side.queue
    ON CONFLICT (queue, slot) DO UPDATE SET
        messages = t.messages + excluded.messages, bytes = t.bytes + excluded.bytes,
        last_id = greatest(t.last_id, excluded.last_id)
--{history
), happened AS (
    SELECT m.place, e.* FROM moved m CROSS JOIN LATERAL (
        VALUES
            (1, %(event)s::text, %(queue)s::text, m.id, m.receives, m.old_size, m.consumer,
                CASE WHEN m.receipt IS NOT NULL THEN greatest(0, %(now)s::bigint - m.taken_at) END,
                %(reason)s::text, null::bytea, null::text),
            (2, 'sent', %(to)s::text, m.id, 0, m.size, null, null, %(event)s::text,
                CASE WHEN %(keep_to)s = 'full' THEN m.body END,
                CASE WHEN %(keep_to)s = 'full' THEN m.content_type END)
    ) AS e (step, event, queue, id, receives, size, consumer, held, reason, body, content_type)
    WHERE CASE e.step WHEN 1 THEN %(keep)s <> 'off' ELSE %(keep_to)s <> 'off' END
), told AS (
    INSERT INTO history (
        count, bytes, at, events, queues, ids, receives, sizes, consumers, helds, reasons, bodies, content_types)
    SELECT count(*), 64 * count(*) + coalesce(sum(octet_length(body)), 0), %(now)s,
        array_agg(event ORDER BY place, step), array_agg(queue ORDER BY place, step),
        array_agg(id::text ORDER BY place, step), array_agg(receives ORDER BY place, step),
        array_agg(size::bigint ORDER BY place, step), array_agg(consumer ORDER BY place, step),
        array_agg(held ORDER BY place, step), array_agg(reason ORDER BY place, step),
        array_agg(body ORDER BY place, step), array_agg(content_type ORDER BY place, step)
    FROM happened HAVING count(*) > 0
--}
)
SELECT
    (SELECT array_agg(place) FROM moved),
    (SELECT array_agg(recipient) FROM moved),
    (SELECT advance_groups((SELECT id FROM shelf), array_agg(DISTINCT old_grp ORDER BY old_grp))
     FROM moved WHERE old_grp IS NOT NULL AND NOT old_blocked HAVING count(*) > 0),
    (SELECT id FROM target)
FROM shelf;

-- name: lock_whole_queue
-- Who purges waits for claims that are being made or acked.
SELECT id FROM queues WHERE name = %(queue)s FOR UPDATE;

-- name: clear
WITH shelf AS (
    SELECT id, name FROM queues WHERE name = %(queue)s
), gone AS (
    DELETE FROM messages WHERE queue = (SELECT id FROM shelf) RETURNING size
), total AS (
    SELECT count(*) AS messages, coalesce(sum(size), 0)::bigint AS bytes FROM gone
), tally AS (
    INSERT INTO tallies AS t (queue, slot, messages, bytes)
    SELECT shelf.id, mod(pg_backend_pid(), 32), -total.messages, -total.bytes FROM shelf, total WHERE total.messages > 0
    ON CONFLICT (queue, slot) DO UPDATE SET
        messages = t.messages + excluded.messages, bytes = t.bytes + excluded.bytes
), finished AS (
    UPDATE readers SET acked = last WHERE queue = (SELECT id FROM shelf) AND acked < last
), ended AS (
    UPDATE claims c SET until = 0 FROM readers r
    WHERE r.queue = (SELECT id FROM shelf) AND c.readers = r.id AND c.until IS DISTINCT FROM 0
--{history
), told AS (
    INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes, messages)
    SELECT 1, 64, %(now)s, ARRAY['purged'], ARRAY[shelf.name], ARRAY[''], ARRAY[0], ARRAY[total.bytes], total.messages
    FROM shelf, total WHERE total.messages > 0
--}
)
SELECT total.messages FROM shelf, total;

-- Looking

-- name: find
SELECT m.id::text, m.sent_at, m.due_at, m.rank, m.receives, m.about, m.body, m.visible_at, m.receipt, m.consumer
FROM queues q LEFT JOIN messages m ON m.queue = q.id AND m.id = %(id)s::uuid
WHERE q.name = %(queue)s;

-- name: held
SELECT m.id::text, m.sent_at, m.due_at, m.rank, m.receives, m.about, m.body, m.visible_at, m.receipt, m.consumer,
    q.name
FROM queues q JOIN messages m ON m.queue = q.id AND (m.receipt IS NOT NULL OR m.visible_at > m.sent_at)
WHERE m.receipt = %(token)s ORDER BY m.id;

-- name: scan
-- By id: all, or those that are ready.
WITH shelf AS (
    SELECT id FROM queues WHERE name = %(queue)s
), page AS (
    SELECT m.*, 0::bigint AS cursor FROM messages m
    WHERE m.queue = (SELECT id FROM shelf) AND m.id > %(after_id)s::uuid AND m.visible_at <= %(upto)s
    ORDER BY m.id LIMIT %(limit)s + 1
--include: page

-- name: scan_later
-- By the moment when they will be ready: those that are leased, or delayed.
WITH shelf AS (
    SELECT id FROM queues WHERE name = %(queue)s
), page AS (
    SELECT m.*, m.visible_at AS cursor FROM messages m
    WHERE m.queue = (SELECT id FROM shelf) AND m.leased = %(leased)s AND m.visible_at > %(now)s
        AND (m.visible_at, m.id) > (%(after_moment)s, %(after_id)s::uuid)
        AND (m.receipt IS NOT NULL OR m.visible_at > m.sent_at)
    ORDER BY m.visible_at, m.id LIMIT %(limit)s + 1
--include: page

-- part: page
), summed AS (
    SELECT *, sum(size) OVER (ORDER BY cursor, id ROWS UNBOUNDED PRECEDING) AS total,
        row_number() OVER (ORDER BY cursor, id) AS place
    FROM page
)
SELECT p.id::text, p.sent_at, p.due_at, p.rank, p.receives, p.about,
    CASE WHEN p.place <= %(limit)s AND (p.place = 1 OR p.total <= %(max_bytes)s) THEN p.body END,
    p.visible_at, p.receipt, p.consumer
FROM shelf LEFT JOIN summed p ON p.place = 1 OR p.total - p.size <= %(max_bytes)s
ORDER BY p.cursor, p.id;
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
        SELECT count(*) AS n FROM messages m
        WHERE m.queue = (SELECT id FROM shelf) AND m.leased = side.leased AND m.visible_at > %(now)s
            AND (m.receipt IS NOT NULL OR m.visible_at > m.sent_at)
    ) counted
), oldest AS (
    SELECT min(next.sent_at) AS sent_at FROM generate_series(-9, 0) AS r (rank) CROSS JOIN LATERAL (
        SELECT m.sent_at FROM messages m
        WHERE m.queue = (SELECT id FROM shelf) AND m.rank = r.rank AND m.recipient IS NULL AND NOT m.blocked
            AND NOT m.leased AND m.visible_at <= %(now)s
        ORDER BY m.rank, m.id LIMIT 1
    ) next
)
SELECT held.messages - later.delayed - later.leased, later.delayed, later.leased, held.bytes, oldest.sent_at
FROM shelf, held, later, oldest;

-- name: next_visible
SELECT (
    SELECT min(next.visible_at) FROM (VALUES (true), (false)) AS side (leased) CROSS JOIN LATERAL (
        SELECT m.visible_at FROM messages m
        WHERE m.queue = q.id AND m.leased = side.leased AND m.visible_at > %(now)s AND m.visible_at < NEVER
            AND (m.receipt IS NOT NULL OR m.visible_at > m.sent_at)
        ORDER BY m.visible_at, m.id LIMIT 1
    ) next
)
FROM queues q WHERE q.name = %(queue)s;

-- History

-- name: lock_history
SELECT last FROM history_state FOR UPDATE;

-- name: number_history
-- Give offsets to what was committed, in the order in which it was begun. Under the lock above.
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
WITH page AS (
    SELECT *, sum(bytes) OVER (ORDER BY first ROWS UNBOUNDED PRECEDING) - bytes AS before FROM (
        SELECT * FROM history
        WHERE first >= coalesce(
            (SELECT h.first FROM history h WHERE h.first <= %(after)s + 1 ORDER BY h.first DESC LIMIT 1), 0)
        ORDER BY first LIMIT %(limit)s + 1
    ) h
)
SELECT first, at, events, queues, ids, receives, sizes, consumers, waits, helds, reasons, bodies, content_types, messages
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
), counted AS (
    DELETE FROM tallies WHERE queue = %(shelf)s
)
SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM names);

-- name: keep_remains
UPDATE remains SET until = %(until)s WHERE queue = %(shelf)s;

-- name: drop_remains
DELETE FROM remains WHERE queue = %(shelf)s;

-- Copying

-- name: all_records
SELECT kind, name, value FROM records ORDER BY kind, name;

-- name: dump_messages
-- Heads and what is in no group (not blocked) are asked for first, then those that wait.
SELECT m.id::text, m.sent_at, m.due_at, m.rank, m.receives, m.about, m.body, m.visible_at, m.receipt, m.consumer,
    m.taken_at
FROM messages m
WHERE m.queue = (SELECT id FROM queues WHERE name = %(queue)s) AND m.id > %(after)s::uuid AND m.blocked = %(blocked)s
ORDER BY m.queue, m.id LIMIT %(limit)s;

-- name: dump_dedup
SELECT call, name, ids, until FROM dedup WHERE queue = (SELECT id FROM queues WHERE name = %(queue)s);

-- name: load_messages
-- A lease that has run out is found as such by the next take.
WITH shelf AS (
    SELECT id FROM queues WHERE name = %(queue)s
), given AS (
    SELECT *, row_number() OVER (PARTITION BY grp ORDER BY place) AS nth FROM unnest(
        %(ids)s::uuid[], %(sent)s::bigint[], %(due)s::bigint[], %(sizes)s::int[], %(ranks)s::smallint[],
        %(recipients)s::text[], %(groups)s::text[], %(abouts)s::text[], %(bodies)b::bytea[], %(visible)s::bigint[],
        %(taken)s::bigint[], %(receives)s::int[], %(receipts)s::text[], %(consumers)s::text[]
    ) WITH ORDINALITY AS g (
        id, sent_at, due_at, size, rank, recipient, grp, about, body, visible_at, taken_at, receives, receipt, consumer,
        place
    )
), added AS (
    INSERT INTO messages (
        id, sent_at, due_at, visible_at, taken_at, queue, size, receives, rank, blocked, leased, receipt, consumer,
        recipient, grp, about, body
    )
    SELECT g.id, g.sent_at, g.due_at, g.visible_at, g.taken_at, shelf.id, g.size, g.receives, g.rank,
        g.grp IS NOT NULL AND (g.nth > 1 OR (
            -- not EXISTS, which may be answered from a list of all heads
            SELECT true FROM messages h WHERE h.queue = shelf.id AND h.grp = g.grp AND NOT h.blocked LIMIT 1
        ) IS NOT NULL),
        g.receipt IS NOT NULL, g.receipt, g.consumer, g.recipient, g.grp, g.about, g.body
    FROM given g, shelf ORDER BY g.place
)
INSERT INTO tallies AS t (queue, slot, messages, bytes, last_id)
SELECT shelf.id, mod(pg_backend_pid(), 32), count(*), sum(g.size), (SELECT id FROM given ORDER BY id DESC LIMIT 1)
FROM given g, shelf GROUP BY shelf.id
ON CONFLICT (queue, slot) DO UPDATE SET
    messages = t.messages + excluded.messages, bytes = t.bytes + excluded.bytes,
    last_id = greatest(t.last_id, excluded.last_id);

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
        content_types, messages
    ) VALUES (
        %(first)s, %(count)s, %(bytes)s, %(at)s, %(events)s::text[], %(queues)s::text[], %(ids)s::text[],
        %(receives)s::int[], %(sizes)s::bigint[], %(consumers)s::text[], %(waits)s::bigint[], %(helds)s::bigint[],
        %(reasons)s::text[], %(bodies)s::bytea[], %(content_types)s::text[], %(messages)s
    )
)
UPDATE history_state SET last = last + %(count)s, bytes = bytes + %(bytes)s;
