-- A receive may get several messages of a group.

CREATE INDEX messages_front ON messages (queue, grp, id) WHERE blocked AND receives > 0;

-- Rows of no queue, so that a plan for it is never made for an empty index.
INSERT INTO messages (id, sent_at, due_at, visible_at, queue, size, receives, rank, blocked, grp, body)
SELECT gen_random_uuid(), 0, 0, n, -1 - n % 1000, 0, 1, 0, true, n::text, '' FROM generate_series(1, 1000) n;

DROP FUNCTION advance_groups(integer, text[]);
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
