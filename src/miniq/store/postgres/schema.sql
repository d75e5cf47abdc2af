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
    settings text NOT NULL,                             -- JSON
    tokens   double precision,                          -- of its bucket, if its rate is limited
    drawn_at bigint                                     -- when they were drawn last
);

CREATE TABLE records (
    kind  text COLLATE "C" NOT NULL,
    name  text COLLATE "C" NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (kind, name)
);

-- A row is a message with its state, or a block: messages that were sent together, differ only in id and body, and
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
    blocked    boolean NOT NULL DEFAULT false,          -- in a group, and not the one that can be taken
    later      boolean NOT NULL DEFAULT false,          -- not in line: leased or delayed, and not yet found to be due
    receipt    text COLLATE "C",
    leased     boolean NOT NULL GENERATED ALWAYS AS (receipt IS NOT NULL) STORED,
    consumer   text COLLATE "C",
    recipient  text COLLATE "C",
    grp        text COLLATE "C",
    about      text,                                    -- JSON: its less common fields (rows.py)
    body       bytea NOT NULL,
    count      integer NOT NULL DEFAULT 1,              -- messages in this row
    last       uuid,                                    -- of a block: the id of its last message
    sizes      integer[],                               -- of a block: the bytes of each, in order
    error      text,                                    -- why it failed last
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

-- A lease changes every index that a message is in, so there are few indexes, and a message is either in line or in
-- `messages_later`. A take first puts the messages that are due in line (`return_due`); nothing else sweeps.
--
-- Messages without a recipient, and messages of each recipient, in queue order.
CREATE INDEX messages_line ON messages (queue, rank, id) WHERE recipient IS NULL AND NOT blocked AND NOT later;
CREATE INDEX messages_own ON messages (queue, recipient, rank, id)
    WHERE recipient IS NOT NULL AND NOT blocked AND NOT later;
-- Leased messages, and delayed ones, by the time at which they are due, with their number, so that they can be counted.
CREATE INDEX messages_later ON messages (queue, leased, visible_at, id) INCLUDE (count) WHERE later;
CREATE INDEX messages_group ON messages (queue, grp, blocked, id) WHERE grp IS NOT NULL;
-- Messages that were taken together with others of their group. While one of them is leased all of them are blocked.
CREATE INDEX messages_front ON messages (queue, grp, id) WHERE blocked AND receives > 0;

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
    messages      bigint,                               -- how many messages one event covers, if not 1
    errors        text[],
    targets       text[]                                -- of a publication, which is one event: queues with copies
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

-- The id `place` positions after another. Ids of a block differ only in the last byte.
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

-- Chooses new heads for groups whose heads were removed, or whose front changed, and returns their recipients. While
-- others of the front are leased there is none. Called inside the statement that makes the change: each statement of a
-- function sees what was committed before it, also while it waited for the lock.
CREATE FUNCTION advance_groups(of_queue integer, groups text[], moment bigint) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    name  text;
    next  uuid;
    owner text;
    found_heads text[] := '{}';
BEGIN
    FOREACH name IN ARRAY groups LOOP
        PERFORM lock_group(of_queue, name);
        IF EXISTS (
            SELECT FROM messages
            WHERE queue = of_queue AND grp = name AND blocked AND receives > 0 AND leased AND visible_at > moment
        ) THEN
            UPDATE messages SET blocked = true WHERE queue = of_queue AND id = (
                SELECT id FROM messages WHERE queue = of_queue AND grp = name AND NOT blocked
                LIMIT 1 FOR UPDATE SKIP LOCKED  -- another call is leasing or removing it
            );
            CONTINUE;
        END IF;
        LOOP
            EXIT WHEN EXISTS (SELECT FROM messages WHERE queue = of_queue AND grp = name AND NOT blocked);
            SELECT id INTO next FROM messages
            WHERE queue = of_queue AND grp = name AND blocked AND receives > 0 ORDER BY id LIMIT 1;
            IF next IS NULL THEN
                SELECT id INTO next FROM messages WHERE queue = of_queue AND grp = name AND blocked ORDER BY id LIMIT 1;
            END IF;
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

-- The rows of a take that gets several messages of a group, in order, and which of them have others of their group beside
-- them. They are locked, one by one until there are enough. A row may be a block of which not all fit.
CREATE FUNCTION line_up(of_queue integer, of_consumer text, moment bigint, most integer, max_bytes bigint)
RETURNS TABLE (ids text[], together boolean[])
LANGUAGE plpgsql AS $$
DECLARE
    common CURSOR FOR
        SELECT m.id, m.rank, m.grp, m.count, m.size, m.sizes FROM messages m
        WHERE m.queue = of_queue AND m.recipient IS NULL AND NOT m.blocked AND NOT m.later AND m.visible_at <= moment
        ORDER BY m.rank, m.id FOR UPDATE SKIP LOCKED;
    own CURSOR FOR
        SELECT m.id, m.rank, m.grp, m.count, m.size, m.sizes FROM messages m
        WHERE m.queue = of_queue AND m.recipient = of_consumer AND NOT m.blocked AND NOT m.later
            AND m.visible_at <= moment
        ORDER BY m.rank, m.id FOR UPDATE SKIP LOCKED;
    members    refcursor;
    in_front   boolean;
    next_common boolean := true;
    next_own   boolean := true;
    for_all    record;
    for_one    record;
    head       record;
    member     record;
    count_left integer := most;
    bytes_left bigint := max_bytes;
    is_full    boolean := false;
    following  uuid[];
    locked     integer;
BEGIN
    ids := '{}';
    together := '{}';
    OPEN common;
    OPEN own;
    WHILE count_left > 0 AND NOT is_full LOOP
        -- Only now: a row that is fetched is locked.
        IF next_common THEN
            FETCH common INTO for_all;
        END IF;
        IF next_own THEN
            FETCH own INTO for_one;
        END IF;
        EXIT WHEN for_all IS NULL AND for_one IS NULL;
        next_common := for_one IS NULL OR coalesce((for_all.rank, for_all.id) < (for_one.rank, for_one.id), false);
        next_own := NOT next_common;
        IF next_common THEN
            head := for_all;
        ELSE
            head := for_one;
        END IF;
        EXIT WHEN coalesce(head.sizes[1], head.size) > bytes_left AND ids <> '{}';
        ids := ids || head.id::text;
        count_left := count_left - head.count;
        bytes_left := bytes_left - head.size;
        following := '{}';
        IF head.grp IS NOT NULL THEN
            in_front := true;
            OPEN members FOR
                SELECT m.id, m.size, m.visible_at, m.recipient FROM messages m
                WHERE m.queue = of_queue AND m.grp = head.grp AND m.blocked AND m.receives > 0 ORDER BY m.id;
            WHILE count_left > cardinality(following) LOOP
                FETCH members INTO member;
                IF NOT FOUND AND in_front THEN
                    in_front := false;
                    CLOSE members;
                    OPEN members FOR
                        SELECT m.id, m.size, m.visible_at, m.recipient FROM messages m
                        WHERE m.queue = of_queue AND m.grp = head.grp AND m.blocked AND m.receives = 0 ORDER BY m.id;
                    CONTINUE;
                END IF;
                EXIT WHEN member IS NULL OR member.visible_at > moment OR member.recipient <> of_consumer
                    OR (member.recipient IS NOT NULL AND of_consumer IS NULL);
                is_full := member.size > bytes_left;
                EXIT WHEN is_full;
                bytes_left := bytes_left - member.size;
                following := following || member.id;
            END LOOP;
            CLOSE members;
            -- Others may be changing some of them: those after the first of these have to wait.
            SELECT coalesce(min(f.nth) FILTER (WHERE l.id IS NULL) - 1, cardinality(following)) INTO locked
            FROM unnest(following) WITH ORDINALITY AS f (id, nth) LEFT JOIN (
                SELECT m.id FROM messages m
                WHERE m.queue = of_queue AND m.id = ANY (following) AND m.blocked AND m.visible_at <= moment
                FOR UPDATE SKIP LOCKED
            ) l ON l.id = f.id;
            ids := ids || following[:locked]::text[];
            count_left := count_left - locked;
        END IF;
        together := together
            || array_fill(following <> '{}' AND locked > 0, ARRAY[cardinality(ids) - cardinality(together)]);
    END LOOP;
    RETURN NEXT;
END $$;

-- Claim groups of a queue.
CREATE TABLE readers (
    id    integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue integer NOT NULL,
    name  text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL DEFAULT 0,
    acked bigint NOT NULL DEFAULT 0,                    -- the last claim that was acked or ended
    last  bigint NOT NULL DEFAULT 0,                    -- the last claim that was made
    uid   text NOT NULL DEFAULT '',                     -- made with the group
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
    reader   text DEFAULT '',                           -- which reader fetched it, null if none did
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
        AND coalesce(substring(about FROM '"dead":\["[^"]*","[^"]*",[0-9]+,([0-9]+)')::bigint, sent_at) > since
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

-- Rows of no queue, which nothing reads. A plan is kept while messages come and go. One that is made after the last
-- message has left, and VACUUM has counted none, would go through all messages for each that is asked for. With these
-- rows the planner never takes a table for empty, nor for one of few queues.
INSERT INTO messages (id, sent_at, due_at, visible_at, queue, size, rank, later, receipt, recipient, grp, body)
SELECT gen_random_uuid(), 0, 0, n, -1 - n % 1000, 0, -(n % 10), n % 5 > 2, CASE WHEN n % 5 = 3 THEN '' END,
    CASE WHEN n % 5 = 1 THEN n::text END, CASE WHEN n % 5 = 2 THEN n::text END, ''
FROM generate_series(1, 5000) n;
INSERT INTO messages (id, sent_at, due_at, visible_at, queue, size, receives, rank, blocked, grp, body)
SELECT gen_random_uuid(), 0, 0, n, -1 - n % 1000, 0, 1, 0, true, n::text, '' FROM generate_series(1, 1000) n;
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
INSERT INTO results (queue, id, status, finished_at, until)
SELECT -1 - n % 100, gen_random_uuid(), 'done', 0, 9223372036854775807 - n FROM generate_series(1, 1000) n;
