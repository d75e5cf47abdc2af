-- The queries for results; see queries.sql. `drop`, `move` and `put` write them.

-- name: results
WITH shelf AS (
    SELECT id FROM queues WHERE name = %(queue)s
), asked AS MATERIALIZED (
    SELECT shelf.id AS queue, a.id FROM shelf CROSS JOIN unnest(%(ids)s::uuid[]) AS a (id)
), found AS (
    SELECT r.* FROM asked a JOIN results r ON r.queue = a.queue AND r.id = a.id WHERE r.until > %(now)s
)
SELECT f.id::text, f.status, f.finished_at, f.result, f.error FROM shelf LEFT JOIN found f ON true;

-- name: put_result
WITH shelf AS (
    SELECT id FROM queues WHERE name = %(queue)s
), changed AS (
    INSERT INTO results AS r (queue, id, status, finished_at, result, error, until)
    SELECT id, %(id)s::uuid, %(status)s::text, %(finished_at)s::bigint, %(result)s::bytea, %(error)s::text, %(until)s::bigint
    FROM shelf
    ON CONFLICT (queue, id) DO UPDATE SET status = excluded.status, finished_at = excluded.finished_at,
        result = excluded.result, error = excluded.error, until = excluded.until
    WHERE %(expected)s::bigint IS NULL OR r.until <= %(now)s::bigint
    RETURNING 1
)
SELECT EXISTS (SELECT FROM changed) FROM shelf;

-- name: replace_result
WITH shelf AS (
    SELECT id FROM queues WHERE name = %(queue)s
), changed AS (
    UPDATE results r SET status = %(status)s::text, finished_at = %(finished_at)s::bigint, result = %(result)s::bytea,
        error = %(error)s::text, until = %(until)s::bigint
    FROM shelf
    WHERE r.queue = shelf.id AND r.id = %(id)s::uuid AND r.until > %(now)s::bigint
        AND r.finished_at = %(expected)s::bigint
    RETURNING 1
)
SELECT EXISTS (SELECT FROM changed) FROM shelf;

-- name: forget_result
WITH shelf AS (
    SELECT id FROM queues WHERE name = %(queue)s
), gone AS (
    DELETE FROM results r USING shelf WHERE r.queue = shelf.id AND r.id = %(id)s::uuid
        AND (%(expected)s::bigint IS NULL OR (r.until > %(now)s::bigint AND r.finished_at = %(expected)s::bigint))
    RETURNING 1
)
SELECT EXISTS (SELECT FROM gone) OR coalesce(%(expected)s::bigint, 0) = 0 FROM shelf;

-- name: tidy_results
WITH gone AS (
    DELETE FROM results WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM results WHERE until <= %(now)s ORDER BY until LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    )) RETURNING 1
)
SELECT count(*) FROM gone;

-- name: dump_results
SELECT id::text, status, finished_at, result, error, until FROM results
WHERE queue = (SELECT id FROM queues WHERE name = %(queue)s) AND id > %(after)s::uuid ORDER BY id LIMIT %(limit)s;

-- name: load_results
INSERT INTO results (queue, id, status, finished_at, result, error, until)
SELECT q.id, g.id, g.status, g.finished_at, nullif(g.result, ''), g.error, g.until FROM queues q, unnest(
    %(kept)s::uuid[], %(kept_status)s::text[], %(kept_at)s::bigint[], %(kept_results)b::bytea[],
    %(kept_errors)s::text[], %(kept_untils)s::bigint[]
) AS g (id, status, finished_at, result, error, until)
WHERE q.name = %(queue)s;
