-- How messages that have left their queue were finished.
CREATE TABLE results (
    queue       integer NOT NULL,
    id          uuid NOT NULL,
    status      text NOT NULL,                          -- done or dead
    finished_at bigint NOT NULL,
    until       bigint NOT NULL,                        -- when it can be removed
    result      bytea,                                  -- JSON text
    error       text,
    PRIMARY KEY (queue, id)
);
CREATE INDEX results_until ON results (until);

-- Rows of no queue, so that a plan is never made for an empty table.
INSERT INTO results (queue, id, status, finished_at, until)
SELECT -1 - n % 100, gen_random_uuid(), 'done', 0, 9223372036854775807 - n FROM generate_series(1, 1000) n;
