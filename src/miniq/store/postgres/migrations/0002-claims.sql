-- Claims: batches that readers take, read as often as they like, and ack.

-- Groups of readers of a queue by claims.
CREATE TABLE readers (
    id    integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue integer NOT NULL,
    name  text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL DEFAULT 0,
    acked bigint NOT NULL DEFAULT 0,                    -- the last claim that is finished
    last  bigint NOT NULL DEFAULT 0,                    -- the last one that was made
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

-- What is in a claim, in order, as it was when it was made. While the claim is held its messages also stand in
-- `messages`, leased until a moment that does not come, and nothing changes them.
CREATE TABLE claimed (
    readers  integer NOT NULL,
    number   bigint NOT NULL,
    place    integer NOT NULL,                          -- from 0, by (rank, id)
    id       uuid NOT NULL,
    sent_at  bigint NOT NULL,
    due_at   bigint NOT NULL,
    size     integer NOT NULL,
    receives integer NOT NULL,
    rank     smallint NOT NULL,
    about    text,
    body     bytea NOT NULL,
    PRIMARY KEY (readers, number, place)
);
ALTER TABLE claimed ALTER COLUMN body SET STORAGE EXTERNAL;

-- Whether a claim may take a message: it came, or died, after `since`, was handed out less than `most` times, and its
-- ttl is not over. Both moments are numbers in `about` where no text can look like them: in a string each quote has
-- a backslash before it.
CREATE FUNCTION is_fit(about text, sent_at bigint, receives integer, now bigint, since bigint, most bigint)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT receives < most
        AND coalesce(substring(about FROM '"dead":\[.*,([0-9]+)\]\}$')::bigint, sent_at) > since
        AND coalesce(substring(about FROM '"expires_at":([0-9]+)')::bigint > now, true);
$$;
