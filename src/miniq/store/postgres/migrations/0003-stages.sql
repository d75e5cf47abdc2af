-- Stages: messages that are uploaded unseen, and published at once.

-- What tasks of a job have uploaded and nobody has published.
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

-- One row is a stretch of a part: up to 128 messages of the same priority and delay, in arrays. One that stands alone has
-- a row for itself. An array is null where it has nothing to say.
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
    sizes         integer[],                            -- where they are not those of the bodies
    ttls          bigint[],
    abouts        text[],                               -- with 0 where the end of the ttl will stand
    content_types text[],                               -- where one is not JSON
    bodies        bytea[] NOT NULL,
    PRIMARY KEY (stage, part, nth)
);
ALTER TABLE staged ALTER COLUMN bodies SET STORAGE EXTERNAL;
