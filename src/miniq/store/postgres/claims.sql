-- The queries for claims; see queries.sql. A call that makes, acks or releases claims of a group first locks its row in
-- `readers`, in the same transaction, and then reads its state again.

-- name: open_claims
INSERT INTO readers AS r (queue, name, epoch, uid)
SELECT id, %(group)s, 1, %(uid)s FROM queues WHERE name = %(queue)s
ON CONFLICT (queue, name) DO UPDATE SET epoch = r.epoch + 1, uid = coalesce(nullif(r.uid, ''), excluded.uid)
RETURNING epoch, acked, last, uid;

-- name: add_readers
INSERT INTO readers (queue, name) SELECT id, %(group)s FROM queues WHERE name = %(queue)s
ON CONFLICT (queue, name) DO NOTHING;

-- name: dump_readers
SELECT name, epoch, acked, last, uid FROM readers WHERE queue = (SELECT id FROM queues WHERE name = %(queue)s) ORDER BY name;

-- name: load_readers
INSERT INTO readers (queue, name, epoch, acked, last, uid)
SELECT id, %(group)s, %(epoch)s, %(last)s, %(last)s, %(id)s FROM queues WHERE name = %(queue)s;

-- name: lock_readers
-- The lock on the queue delays a purge until the transaction ends.
SELECT r.id FROM queues q JOIN readers r ON r.queue = q.id AND r.name = %(group)s
WHERE q.name = %(queue)s
FOR KEY SHARE OF q FOR UPDATE OF r;

-- name: readers
-- A group, and one of its claims if it is readable.
SELECT q.id, r.id, r.epoch, r.acked, r.last, r.uid, c.number, c.messages, c.bytes, c.made_at, c.acked_at, c.reader
FROM queues q
LEFT JOIN readers r ON r.queue = q.id AND r.name = %(group)s
LEFT JOIN claims c ON c.readers = r.id AND c.number = %(number)s AND (c.until IS NULL OR c.until > %(now)s)
WHERE q.name = %(queue)s;

-- name: claim_groups
SELECT r.name, r.epoch, r.acked, r.last, r.uid, c.number, c.messages, c.bytes, c.made_at, c.acked_at, c.reader
FROM queues q
LEFT JOIN readers r ON r.queue = q.id AND (r.epoch > 0 OR r.last > 0)
LEFT JOIN claims c ON c.readers = r.id AND (c.until IS NULL OR c.until > %(now)s)
WHERE q.name = %(queue)s
ORDER BY r.name, c.number;

-- name: all_claim_groups
SELECT q.name, r.name, r.epoch, r.acked, r.last, r.uid,
    c.number, c.messages, c.bytes, c.made_at, c.acked_at, c.reader
FROM readers r
JOIN queues q ON q.id = r.queue
LEFT JOIN claims c ON c.readers = r.id AND (c.until IS NULL OR (c.until > %(now)s AND NOT %(held)s))
WHERE (r.epoch > 0 OR r.last > 0) AND (c.number IS NOT NULL OR NOT %(held)s)
ORDER BY q.name COLLATE "C", r.name, c.number;

-- name: held_claims
SELECT number, messages, bytes, made_at, acked_at, reader FROM claims
WHERE readers = %(readers)s AND number > %(acked)s AND number <= %(upto)s ORDER BY number;

-- name: mark_claim
-- See `decisions.marks`.
UPDATE claims c SET reader = %(reader)s FROM queues q JOIN readers r ON r.queue = q.id AND r.name = %(group)s
WHERE q.name = %(queue)s AND c.readers = r.id AND c.number = %(number)s AND c.until IS NULL
    AND (c.reader IS NULL OR (c.reader = '' AND %(reader)s <> ''));

-- name: ack_claims
WITH held AS MATERIALIZED (
    SELECT %(shelf)s::int AS queue, number, place, id FROM claimed
    WHERE readers = %(readers)s AND number > %(acked)s AND number <= %(upto)s
), gone AS (
    DELETE FROM messages m USING held c WHERE m.queue = c.queue AND m.id = c.id
    RETURNING c.number, c.place, m.id, m.size, m.grp, m.receives, m.consumer, m.taken_at, m.count, m.sizes
), tally AS (
    INSERT INTO tallies AS t (queue, slot, messages, bytes)
    SELECT %(shelf)s, mod(pg_backend_pid(), 32), -sum(count), -sum(size) FROM gone HAVING count(*) > 0
--include: tallied
--{history
), told AS (
    INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes, consumers, helds)
    SELECT count(*), 64 * count(*), %(now)s,
        array_fill('acked'::text, ARRAY[count(*)::int]), array_fill(%(queue)s::text, ARRAY[count(*)::int]),
        array_agg(id::text ORDER BY nth), array_agg(receives ORDER BY nth), array_agg(size::bigint ORDER BY nth),
        array_agg(consumer ORDER BY nth), array_agg(greatest(0, %(now)s - taken_at) ORDER BY nth)
    FROM (
        SELECT u.id, u.size, g.receives, g.consumer, g.taken_at,
            row_number() OVER (ORDER BY g.number, g.place, u.nth) - 1 AS nth
        FROM gone g CROSS JOIN LATERAL unpacked(g.id, g.size, g.sizes) u
    ) g
    GROUP BY nth / 1000 ORDER BY nth / 1000
--}
), finished AS (
    UPDATE claims SET acked_at = %(now)s, until = %(keep_until)s
    WHERE readers = %(readers)s AND number > %(acked)s AND number <= %(upto)s
), moved AS (
    UPDATE readers SET acked = %(upto)s WHERE id = %(readers)s
)
SELECT
    (SELECT coalesce(sum(count), 0) FROM gone),
    (SELECT advance_groups(%(shelf)s, array_agg(DISTINCT grp ORDER BY grp), %(now)s)
     FROM gone WHERE grp IS NOT NULL HAVING count(*) > 0);

-- name: claim
-- The next messages of a claim, without a recipient.
WITH ready AS MATERIALIZED (
--include: claimable
--include: claim

-- name: claim_own
-- The same, including messages of this consumer.
WITH common AS MATERIALIZED (
--include: claimable
), own AS MATERIALIZED (
    SELECT m.queue, m.id, m.rank, m.count, m.visible_at, m.taken_at, m.receipt, m.consumer,
        is_fit(m.about, m.sent_at, mod(m.receives, TAKEN_BACK), %(now)s, %(since)s, %(most)s) AS fit, m.size, 1::bigint AS nth
    FROM messages m
    WHERE m.queue = %(shelf)s AND m.recipient = %(consumer)s AND NOT m.blocked AND NOT m.later
        AND m.visible_at <= %(now)s AND (m.rank, m.id) > (%(after_rank)s, %(after_id)s::uuid)
    ORDER BY m.rank, m.id LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
), ready AS MATERIALIZED (
    SELECT * FROM common UNION ALL SELECT * FROM own ORDER BY rank, id, nth LIMIT %(limit)s
--include: claim

-- part: claimable
    SELECT r.queue, r.id, r.rank, r.count, r.visible_at, r.taken_at, r.receipt, r.consumer, r.fit, e.size, e.nth
    FROM (
        SELECT m.*, is_fit(m.about, m.sent_at, mod(m.receives, TAKEN_BACK), %(now)s, %(since)s, %(most)s) AS fit
        FROM messages m
        WHERE m.queue = %(shelf)s AND m.recipient IS NULL AND NOT m.blocked AND NOT m.later AND m.visible_at <= %(now)s
            AND (m.rank, m.id) > (%(after_rank)s, %(after_id)s::uuid)
        ORDER BY m.rank, m.id
        FOR UPDATE SKIP LOCKED
    ) r CROSS JOIN LATERAL unnest(coalesce(r.sizes, ARRAY[r.size])) WITH ORDINALITY AS e (size, nth)
    LIMIT %(limit)s
-- end

-- part: claim
), counted AS (
    SELECT *, row_number() OVER line AS place, count(*) FILTER (WHERE fit) OVER line AS nth_fit,
        count(*) FILTER (WHERE NOT fit) OVER line AS unfit, coalesce(sum(size) FILTER (WHERE fit) OVER line, 0) AS total
    FROM ready WINDOW line AS (ORDER BY rank, id, nth ROWS UNBOUNDED PRECEDING)
), met AS MATERIALIZED (  -- up to the first that does not go in, or until enough were met that are not fit
    SELECT * FROM counted
    WHERE (nth_fit = 0 OR %(count)s + nth_fit = 1 OR %(bytes)s + total <= %(max_bytes)s)
        AND unfit - (NOT fit)::int < %(unfit)s
), cut AS MATERIALIZED (  -- the last row, if it is a block of which not all go in; those that are not fit can wait
    SELECT id, nth FROM met
    WHERE place = (SELECT max(place) FROM met) AND nth < count
        AND (fit OR place = (SELECT count(*) FROM ready) AND unfit < %(unfit)s)
), taken AS (
    UPDATE messages m SET
        visible_at = NEVER, taken_at = %(now)s, later = true, receipt = %(token)s, consumer = %(group)s,
        receives = mod(m.receives, TAKEN_BACK) + 1,
        error = CASE WHEN met.receipt IS NOT NULL AND met.taken_at IS NOT NULL THEN LEASE_EXPIRED ELSE m.error END
    FROM met
    WHERE met.fit AND met.nth = met.count AND NOT EXISTS (SELECT FROM cut) AND m.queue = met.queue AND m.id = met.id
    RETURNING %(count)s + met.nth_fit - m.count AS place, m.id, m.sent_at, m.due_at, m.rank, m.receives, m.about, m.body,
        m.size, m.count, m.sizes, met.visible_at AS was_visible_at, met.taken_at AS was_taken_at,
        met.receipt AS was_receipt, met.consumer AS was_consumer
), copied AS (
    INSERT INTO claimed (readers, number, place, id, sent_at, due_at, size, receives, rank, about, body, count, sizes)
    SELECT %(readers)s, %(number)s, place, id, sent_at, due_at, size, receives, rank, about, body, count, sizes FROM taken
--{history
), happened AS (
    SELECT t.place + u.nth - 1 AS place, e.*
    FROM taken t CROSS JOIN LATERAL unpacked(t.id, t.size, t.sizes) u CROSS JOIN LATERAL (
        VALUES
            (1, 'expired', u.id, t.receives - 1, u.size, t.was_consumer, null::bigint,
                greatest(0, t.was_visible_at - t.was_taken_at), 'lease'),
            (2, 'received', u.id, t.receives, u.size, %(group)s::text,
                greatest(0, %(now)s::bigint - t.was_visible_at), null, null)
    ) AS e (step, event, id, receives, size, consumer, wait, held, reason)
    WHERE e.step = 2 OR (t.was_receipt IS NOT NULL AND t.was_taken_at IS NOT NULL)
), told AS (
    INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes, consumers, waits, helds, reasons)
    SELECT count(*), 64 * count(*), %(now)s,
        array_agg(event ORDER BY place, step), array_fill(%(queue)s::text, ARRAY[count(*)::int]),
        array_agg(id::text ORDER BY place, step), array_agg(receives ORDER BY place, step),
        array_agg(size::bigint ORDER BY place, step), array_agg(consumer ORDER BY place, step),
        array_agg(wait ORDER BY place, step), array_agg(held ORDER BY place, step),
        array_agg(reason ORDER BY place, step)
    FROM happened GROUP BY place / 1000 ORDER BY place / 1000
--}
), last AS (
    SELECT rank, id FROM ready ORDER BY rank DESC, id DESC LIMIT 1
), passed AS (
    SELECT m.*, met.nth FROM met JOIN messages m ON m.queue = met.queue AND m.id = met.id WHERE NOT met.fit
)
SELECT (SELECT concat_ws(' ', id, nth) FROM cut), (SELECT count(*) FROM ready), (SELECT count(*) FROM met),
    (SELECT count(*) FROM met WHERE fit), (SELECT coalesce(sum(size), 0)::bigint FROM met WHERE fit),
    last.rank, last.id::text,
    (SELECT count(*) FROM met WHERE fit AND receipt IS NOT NULL AND taken_at IS NOT NULL),
    u.id::text, p.sent_at, p.due_at, p.rank, p.receives, p.about, substring(p.body FROM u.start FOR u.size), null,
    p.visible_at, p.receipt, p.consumer, p.error
FROM (VALUES (1)) AS one LEFT JOIN last ON true LEFT JOIN passed p ON true
LEFT JOIN LATERAL unpacked(p.id, p.size, p.sizes) u ON u.nth = p.nth
ORDER BY p.rank, u.id;
-- end

-- name: add_claim
WITH made AS (
    INSERT INTO claims (readers, number, messages, bytes, made_at, reader)
    VALUES (%(readers)s, %(number)s, %(count)s, %(bytes)s, %(now)s, null)
)
UPDATE readers SET last = %(number)s WHERE id = %(readers)s;

-- name: claimed
-- Some messages of a claim, as far as they fit. The first and last row may hold more than was requested.
WITH claim AS (
    SELECT c.readers, c.number FROM queues q
    JOIN readers r ON r.queue = q.id AND r.name = %(group)s
    JOIN claims c ON c.readers = r.id AND c.number = %(number)s AND (c.until IS NULL OR c.until > %(now)s)
    WHERE q.name = %(queue)s
), page AS MATERIALIZED (
    SELECT * FROM claimed
    WHERE readers = (SELECT readers FROM claim) AND number = (SELECT number FROM claim)
        AND place > %(start)s - 128 AND place + count > %(start)s AND place < %(stop)s
    ORDER BY place LIMIT %(limit)s
), summed AS (
    SELECT *, sum(CASE WHEN place >= %(start)s THEN size ELSE 0 END) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) AS total
    FROM page
)
SELECT id::text, sent_at, due_at, rank, receives, about, body, sizes, place, count, size
FROM summed WHERE total - size < %(max_bytes)s OR place <= %(start)s ORDER BY place;

-- name: release_claims
-- The recipients to wake, and the number of messages for each.
WITH held AS MATERIALIZED (
    SELECT %(shelf)s::int AS queue, c.number, c.place, c.id, k.made_at FROM claimed c JOIN claims k USING (readers, number)
    WHERE c.readers = %(readers)s AND c.number > %(acked)s AND k.number > %(acked)s
), back AS (
    UPDATE messages m SET visible_at = %(now)s, later = false, receipt = null, consumer = null, taken_at = null
    FROM held c WHERE m.queue = c.queue AND m.id = c.id
    RETURNING c.number, c.place, c.made_at, m.id, m.size, m.receives, m.recipient, m.grp, m.blocked, m.count, m.sizes
--{history
), told AS (
    INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes, consumers, helds)
    SELECT count(*), 64 * count(*), %(now)s,
        array_fill('released'::text, ARRAY[count(*)::int]), array_fill(%(queue)s::text, ARRAY[count(*)::int]),
        array_agg(id::text ORDER BY nth), array_agg(receives ORDER BY nth), array_agg(size::bigint ORDER BY nth),
        array_fill(%(group)s::text, ARRAY[count(*)::int]),
        array_agg(greatest(0, %(now)s - made_at) ORDER BY nth)
    FROM (
        SELECT u.id, u.size, b.receives, b.made_at, row_number() OVER (ORDER BY b.number, b.place, u.nth) - 1 AS nth
        FROM back b CROSS JOIN LATERAL unpacked(b.id, b.size, b.sizes) u
    ) b
    GROUP BY nth / 1000 ORDER BY nth / 1000
--}
), ended AS (
    UPDATE claims SET until = 0 WHERE readers = %(readers)s AND number > %(acked)s
), moved AS (
    UPDATE readers SET acked = last WHERE id = %(readers)s
)
SELECT recipient, sum(count) FROM back GROUP BY recipient
UNION ALL
SELECT unnest(heads), 0 FROM (
    SELECT advance_groups(%(shelf)s, array_agg(DISTINCT grp ORDER BY grp), %(now)s) AS heads
    FROM back WHERE blocked HAVING count(*) > 0
) h;

-- name: tidy_claimed
-- Messages of claims that are no longer readable.
WITH gone AS (
    DELETE FROM claimed c USING (
        SELECT c.readers, c.number, c.place FROM claims k JOIN claimed c USING (readers, number)
        WHERE k.until <= %(now)s ORDER BY k.until LIMIT %(limit)s
    ) old WHERE c.readers = old.readers AND c.number = old.number AND c.place = old.place
    RETURNING 1
)
SELECT count(*) FROM gone;

-- name: tidy_claims
WITH gone AS (
    DELETE FROM claims k USING (
        SELECT k.readers, k.number FROM claims k
        WHERE k.until <= %(now)s
            AND NOT EXISTS (SELECT FROM claimed c WHERE c.readers = k.readers AND c.number = k.number)
        ORDER BY k.until LIMIT %(limit)s
    ) old WHERE k.readers = old.readers AND k.number = old.number
    RETURNING 1
)
SELECT count(*) FROM gone;

-- name: tidy_readers
-- The groups of a deleted queue: first their claims end, then the two queries above remove them.
WITH ended AS (
    UPDATE claims k SET until = 0 FROM readers r
    WHERE r.queue = %(shelf)s AND k.readers = r.id AND k.until IS DISTINCT FROM 0
), gone AS (
    DELETE FROM readers r
    WHERE r.queue = %(shelf)s AND NOT EXISTS (SELECT FROM claims k WHERE k.readers = r.id)
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone) + (
    SELECT count(*) FROM readers r JOIN claims k ON k.readers = r.id WHERE r.queue = %(shelf)s);
