-- The current tables of a store. `migrations/` leads here from every earlier version; a test compares the results.
-- All tables are in one schema of the database, named by the connection's search_path.
--
-- Moments are microseconds since 1970 UTC, given by the brokers; no query reads the server's clock.
-- Text chosen by users is escaped (rows.py), because text in PostgreSQL cannot contain the character 0.

CREATE TABLE meta (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    version  integer NOT NULL,                          -- of this schema
    revision bigint NOT NULL DEFAULT 1                  -- rises with every change of queues and records
);

CREATE TABLE queues (
    id       integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- never reused, not even for the same name
    name     text COLLATE "C" NOT NULL UNIQUE,
    settings text NOT NULL                              -- JSON
);

CREATE TABLE records (
    kind  text COLLATE "C" NOT NULL,
    name  text COLLATE "C" NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (kind, name)
);

-- A row is a message with its state, or a parcel: messages that were sent together, differ only in id and body, and
-- share their state. Their ids are consecutive in a run, and `body` has their bodies one after the other. A call that
-- needs only some of them splits the row first, which has no visible effect.
-- A message is ready from visible_at on; before that it is leased if it has a receipt, else delayed.
CREATE TABLE messages (
    id         uuid NOT NULL,
    sent_at    bigint NOT NULL,
    due_at     bigint NOT NULL,
    visible_at bigint NOT NULL,
    taken_at   bigint,                                  -- when the last lease began
    queue      integer NOT NULL,
    size       integer NOT NULL,                        -- its bytes for max_bytes
    receives   integer NOT NULL DEFAULT 0,
    rank       smallint NOT NULL,                       -- minus its priority: rows are taken by rising (rank, id)
    blocked    boolean NOT NULL DEFAULT false,          -- in a group, and not its head
    leased     boolean NOT NULL DEFAULT false,          -- not in line: leased, and not yet found to be expired
    receipt    text COLLATE "C",
    consumer   text COLLATE "C",
    recipient  text COLLATE "C",
    grp        text COLLATE "C",
    about      text,                                    -- JSON: its less common fields (rows.py)
    body       bytea NOT NULL,
    count      integer NOT NULL DEFAULT 1,              -- messages in this row
    last       uuid,                                    -- of a parcel: the id of its last message
    sizes      integer[],                               -- of a parcel: the bytes of each, in order
    PRIMARY KEY (queue, id)
) WITH (
    -- A message is short-lived and leaves two dead rows, which must be removed before scans have to skip many.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE messages ALTER COLUMN body SET STORAGE EXTERNAL;  -- compression costs more than it saves here
ALTER TABLE messages ALTER COLUMN sizes SET STORAGE PLAIN;

-- A lease changes every index that a message is in, so there are few indexes, and leased messages are not in line. A
-- take first puts messages with expired leases back in line (`return_expired`); nothing else sweeps.
--
-- Messages without a recipient, and messages of each recipient, in queue order. With visible_at at the end, a scan
-- skips delayed messages without reading the row.
CREATE INDEX messages_line ON messages (queue, rank, id, visible_at)
    WHERE recipient IS NULL AND NOT blocked AND NOT leased;
CREATE INDEX messages_own ON messages (queue, recipient, rank, id, visible_at)
    WHERE recipient IS NOT NULL AND NOT blocked AND NOT leased;
-- Messages that are or were leased or delayed, with their number, so that they can be counted. A message that was ready
-- on arrival is not in it.
CREATE INDEX messages_later ON messages (queue, leased, visible_at, id) INCLUDE (count)
    WHERE receipt IS NOT NULL OR visible_at > sent_at;
CREATE INDEX messages_group ON messages (queue, grp, blocked, id) WHERE grp IS NOT NULL;

-- What a queue holds, as the sum of up to 32 rows, so that calls need not wait for each other.
CREATE TABLE tallies (
    queue    integer NOT NULL,
    slot     smallint NOT NULL,
    messages bigint NOT NULL,
    bytes    bigint NOT NULL,
    last_id  uuid,                                      -- the highest id counted in this slot
    PRIMARY KEY (queue, slot)
) WITH (fillfactor = 25, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- What must not be added again until `until`: messages by dedup_id, calls by name.
CREATE TABLE dedup (
    queue  integer NOT NULL,
    call   boolean NOT NULL,
    name   text COLLATE "C" NOT NULL,
    ids    text NOT NULL,                               -- separated by commas
    until  bigint NOT NULL,
    PRIMARY KEY (queue, call, name)
);
CREATE INDEX dedup_until ON dedup (until);

-- Queues that were deleted and may have left rows behind.
CREATE TABLE remains (
    queue integer PRIMARY KEY,
    until bigint                                        -- when it may be removed; null until it was found empty
);

-- A row has the events of one change: array elements at the same position belong together. The change adds it without
-- an offset; the next read assigns offsets, under a lock, in order of seq.
CREATE TABLE history (
    seq           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    first         bigint,                               -- the offset of its first event
    count         integer NOT NULL,
    bytes         bigint NOT NULL,
    at            bigint NOT NULL,
    events        text[] NOT NULL,
    queues        text[] NOT NULL,
    ids           text[] NOT NULL,
    receives      integer[] NOT NULL,
    sizes         bigint[] NOT NULL,
    consumers     text[],
    waits         bigint[],
    helds         bigint[],
    reasons       text[],
    bodies        bytea[],
    content_types text[],
    messages      bigint                                -- how many messages one event covers, if not 1
);
CREATE UNIQUE INDEX history_first ON history (first) WHERE first IS NOT NULL;
CREATE INDEX history_pending ON history (seq) WHERE first IS NULL;

CREATE TABLE history_state (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    first bigint NOT NULL DEFAULT 1,
    last  bigint NOT NULL DEFAULT 0,
    bytes bigint NOT NULL DEFAULT 0
);
INSERT INTO history_state DEFAULT VALUES;

-- The id `place` positions after another. Ids of a parcel differ only in the last byte.
CREATE FUNCTION id_at(first uuid, place integer) RETURNS uuid
LANGUAGE sql IMMUTABLE AS $$
    SELECT encode(set_byte(uuid_send(first), 15, get_byte(uuid_send(first), 15) + place), 'hex')::uuid;
$$;

-- The messages of a row, each with its id, its size and the start of its body.
CREATE FUNCTION unpacked(first uuid, whole integer, sizes integer[])
RETURNS TABLE (nth integer, id uuid, size integer, start integer)
LANGUAGE sql IMMUTABLE AS $$
    SELECT e.nth::integer, CASE WHEN e.nth = 1 THEN first ELSE id_at(first, e.nth::integer - 1) END, e.size,
        (1 - e.size + sum(e.size) OVER (ORDER BY e.nth ROWS UNBOUNDED PRECEDING))::integer
    FROM unnest(coalesce(sizes, ARRAY[whole])) WITH ORDINALITY AS e (size, nth);
$$;

-- Rejects a put: what the queue holds, and what should be added.
CREATE FUNCTION refuse_full(held bigint, bytes bigint, more bigint, more_bytes bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'MQ001', MESSAGE = format('%s %s %s %s', held, bytes, more, more_bytes);
END $$;

-- A transaction that adds to a group or removes its head holds this lock until it ends.
CREATE FUNCTION lock_group(queue integer, grp text) RETURNS void
LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtextextended(grp, queue));
$$;

-- Chooses new heads for groups whose heads were removed, and returns their recipients. Called inside the statement that
-- removes the old heads: each statement of a function sees what was committed before it, also while it waited for the
-- lock.
CREATE FUNCTION advance_groups(of_queue integer, groups text[]) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    name  text;
    next  uuid;
    owner text;
    found_heads text[] := '{}';
BEGIN
    FOREACH name IN ARRAY groups LOOP
        PERFORM lock_group(of_queue, name);
        LOOP
            EXIT WHEN EXISTS (SELECT FROM messages WHERE queue = of_queue AND grp = name AND NOT blocked);
            SELECT id INTO next FROM messages WHERE queue = of_queue AND grp = name AND blocked ORDER BY id LIMIT 1;
            EXIT WHEN next IS NULL;
            UPDATE messages SET blocked = false WHERE queue = of_queue AND id = next RETURNING recipient INTO owner;
            IF FOUND THEN
                found_heads := array_append(found_heads, owner);
                EXIT;
            END IF;  -- somebody removed it meanwhile: look again
        END LOOP;
    END LOOP;
    RETURN found_heads;
END $$;

-- Claim groups of a queue.
CREATE TABLE readers (
    id    integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue integer NOT NULL,
    name  text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL DEFAULT 0,
    acked bigint NOT NULL DEFAULT 0,                    -- the last claim that was acked or ended
    last  bigint NOT NULL DEFAULT 0,                    -- the last claim that was made
    UNIQUE (queue, name)
);

CREATE TABLE claims (
    readers  integer NOT NULL,
    number   bigint NOT NULL,
    messages integer NOT NULL,
    bytes    bigint NOT NULL,
    made_at  bigint NOT NULL,
    acked_at bigint,
    until    bigint,                                    -- when it can be removed: null while held, 0 if it is gone
    PRIMARY KEY (readers, number)
);
CREATE INDEX claims_until ON claims (until) WHERE until IS NOT NULL;

-- The messages of a claim, in order, as they were when it was made. While the claim is held its messages are also in
-- `messages`, leased without end, and nothing changes them.
CREATE TABLE claimed (
    readers  integer NOT NULL,
    number   bigint NOT NULL,
    place    integer NOT NULL,                          -- of its first message: from 0, by (rank, id)
    id       uuid NOT NULL,
    sent_at  bigint NOT NULL,
    due_at   bigint NOT NULL,
    size     integer NOT NULL,
    receives integer NOT NULL,
    rank     smallint NOT NULL,
    about    text,
    body     bytea NOT NULL,
    count    integer NOT NULL DEFAULT 1,                -- as in `messages`
    sizes    integer[],
    PRIMARY KEY (readers, number, place)
);
ALTER TABLE claimed ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE claimed ALTER COLUMN sizes SET STORAGE PLAIN;

-- Whether a claim may take a message: it was sent, or dead-lettered, after `since`, was received fewer than `most`
-- times, and its ttl has not passed. Both times are numbers in `about`, and no text in it can look like them, because
-- quotes in strings are escaped.
CREATE FUNCTION is_fit(about text, sent_at bigint, receives integer, now bigint, since bigint, most bigint)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT receives < most
        AND coalesce(substring(about FROM '"dead":\[.*,([0-9]+)\]\}$')::bigint, sent_at) > since
        AND coalesce(substring(about FROM '"expires_at":([0-9]+)')::bigint > now, true);
$$;

-- Uploaded messages that are not committed.
CREATE TABLE stages (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue     integer NOT NULL,
    job       text COLLATE "C" NOT NULL,
    batch     text COLLATE "C" NOT NULL,
    partition text COLLATE "C" NOT NULL,
    attempt   text COLLATE "C" NOT NULL,
    made_at   bigint NOT NULL,
    until     bigint NOT NULL,
    UNIQUE (queue, job, batch, partition, attempt)
);
CREATE INDEX stages_until ON stages (until);

CREATE TABLE stage_parts (
    stage     bigint NOT NULL REFERENCES stages ON DELETE CASCADE,
    part      bigint NOT NULL,
    messages  integer NOT NULL,
    bytes     bigint NOT NULL,
    alone     integer NOT NULL,                         -- have a recipient, group or dedup id
    stretches integer NOT NULL,
    PRIMARY KEY (stage, part)
);

-- A row is a stretch of a part: up to 128 messages of the same priority and delay, in arrays, or one message with a
-- recipient, group or dedup id. An array is null if all its elements would be the default.
CREATE TABLE staged (
    stage         bigint NOT NULL REFERENCES stages ON DELETE CASCADE,
    part          bigint NOT NULL,
    nth           integer NOT NULL,
    messages      integer NOT NULL,
    bytes         bigint NOT NULL,
    delay         bigint NOT NULL,
    rank          smallint NOT NULL,
    recipient     text COLLATE "C",
    grp           text COLLATE "C",
    dedup_id      text COLLATE "C",
    sizes         integer[],                            -- if they differ from those of the bodies
    ttls          bigint[],
    abouts        text[],                               -- with 0 in place of the end of the ttl
    content_types text[],                               -- if one is not JSON
    bodies        bytea[] NOT NULL,
    PRIMARY KEY (stage, part, nth)
);
ALTER TABLE staged ALTER COLUMN bodies SET STORAGE EXTERNAL;
