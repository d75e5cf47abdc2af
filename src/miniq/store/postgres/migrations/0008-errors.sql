-- The last error of a message, and errors in the history. A dead letter has its error after the time of its death.

ALTER TABLE messages ADD COLUMN error text;
ALTER TABLE history ADD COLUMN errors text[];

-- The token bucket of a queue.
ALTER TABLE queues ADD COLUMN tokens double precision;
ALTER TABLE queues ADD COLUMN drawn_at bigint;
CREATE OR REPLACE FUNCTION is_fit(about text, sent_at bigint, receives integer, now bigint, since bigint, most bigint)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT receives < most
        AND coalesce(substring(about FROM '"dead":\["[^"]*","[^"]*",[0-9]+,([0-9]+)')::bigint, sent_at) > since
        AND coalesce(substring(about FROM '"expires_at":([0-9]+)')::bigint > now, true);
$$;
