-- The queries for results; see queries.sql. `drop` and `move` write them.

-- name: results
WITH shelf AS (
    SELECT id FROM queues WHERE name = %(queue)s
), asked AS MATERIALIZED (
    SELECT shelf.id AS queue, a.id FROM shelf CROSS JOIN unnest(%(ids)s::uuid[]) AS a (id)
), found AS (
    SELECT r.* FROM asked a JOIN results r ON r.queue = a.queue AND r.id = a.id WHERE r.until > %(now)s
)
SELECT f.id::text, f.status, f.finished_at, f.result, f.error FROM shelf LEFT JOIN found f ON true;

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
