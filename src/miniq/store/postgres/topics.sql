-- Publications: rows for several queues in one transaction. Loaded with queries.sql, whose conventions apply.

-- name: claim_published
-- Records names that are not on record, with the answers given, and returns these.
INSERT INTO dedup AS d (queue, call, name, ids, until)
SELECT q.id, true, g.name, g.ids, %(until)s
FROM queues q, unnest(%(names)s::text[], %(given)s::text[]) AS g (name, ids)
WHERE q.name = %(queue)s
ORDER BY g.name
ON CONFLICT (queue, call, name) DO UPDATE SET ids = excluded.ids, until = excluded.until WHERE d.until <= %(now)s
RETURNING d.name;

-- name: published
SELECT d.name, d.ids
FROM queues q CROSS JOIN unnest(%(names)s::text[]) AS g (name) CROSS JOIN LATERAL (
    SELECT e.name, e.ids FROM dedup e WHERE e.queue = q.id AND e.call AND e.name = g.name LIMIT 1
) d
WHERE q.name = %(queue)s;

-- name: publish
-- Adds rows to queues: `to` and `rows` say which queue gets which row, and `dues` when it is due. A row is a message or
-- a block, whose sizes are those from `start` on. Returns the queues that exist.
WITH shelf AS MATERIALIZED (
    SELECT q.id, q.name, g.nth
    FROM unnest(%(queues)s::text[]) WITH ORDINALITY AS g (name, nth) JOIN queues q ON q.name = g.name
), given AS MATERIALIZED (
    SELECT * FROM unnest(
        %(firsts)s::uuid[], %(lasts)s::uuid[], %(starts)s::int[], %(counts)s::int[], %(wholes)s::int[],
        %(ranks)s::smallint[], %(recipients)s::text[], %(groups)s::text[], %(abouts)s::text[], %(bodies)b::bytea[]
    ) WITH ORDINALITY AS g (id, last, start, count, size, rank, recipient, grp, about, body, place)
), copy AS (
    SELECT shelf.id AS queue, p.due_at, p.place,
        row_number() OVER (PARTITION BY shelf.id, g.grp ORDER BY p.place) AS nth
    FROM unnest(%(to)s::int[], %(rows)s::int[], %(dues)s::bigint[]) AS p (nth, place, due_at)
    JOIN shelf ON shelf.nth = p.nth JOIN given g ON g.place = p.place
), added AS (
    INSERT INTO messages (
        id, sent_at, due_at, visible_at, later, queue, size, rank, blocked, recipient, grp, about, body, count, last, sizes
    )
    SELECT g.id, %(now)s, c.due_at, c.due_at, c.due_at > %(now)s, c.queue, g.size, g.rank,
        g.grp IS NOT NULL AND (c.nth > 1 OR (
            -- also of those that are all blocked, because several are in flight; not EXISTS, as in `put`
            SELECT true FROM messages h WHERE h.queue = c.queue AND h.grp = g.grp LIMIT 1
        ) IS NOT NULL),
        g.recipient, g.grp, g.about, g.body, g.count, g.last,
        CASE WHEN g.count > 1 THEN (%(sizes)s::int[])[g.start : g.start + g.count - 1] END
    FROM copy c JOIN given g ON g.place = c.place ORDER BY c.queue, c.place
), tally AS (
    INSERT INTO tallies AS t (queue, slot, messages, bytes, last_id)
    SELECT shelf.id, mod(pg_backend_pid(), 32), a.messages, a.bytes, a.last_id
    FROM unnest(%(messages)s::bigint[], %(bytes)s::bigint[], %(last_ids)s::uuid[])
        WITH ORDINALITY AS a (messages, bytes, last_id, nth)
    JOIN shelf ON shelf.nth = a.nth ORDER BY shelf.id
--include: tallied
)
SELECT name FROM shelf;

-- name: tell_published
-- Events of a publication: itself, or the arrivals in a queue.
INSERT INTO history (
    count, bytes, at, events, queues, ids, receives, sizes, reasons, bodies, content_types, messages, targets
) VALUES (
    %(count)s, %(bytes)s, %(now)s, array_fill(%(event)s::text, ARRAY[%(count)s::int]),
    array_fill(%(queue)s::text, ARRAY[%(count)s::int]), %(ids)s::text[], array_fill(0, ARRAY[%(count)s::int]),
    %(sizes)s::bigint[], array_fill(%(reason)s::text, ARRAY[%(count)s::int]), %(bodies)s::bytea[],
    %(content_types)s::text[], %(messages)s, %(targets)s::text[]
);

