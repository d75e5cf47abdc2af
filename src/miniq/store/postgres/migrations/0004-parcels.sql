-- Parcels: messages that were sent together and are alike share a row.

ALTER TABLE messages
    ADD COLUMN count integer NOT NULL DEFAULT 1,        -- messages in this row
    ADD COLUMN last  uuid,                              -- of a parcel: the id of its last message
    ADD COLUMN sizes integer[];                         -- of a parcel: the bytes of each, in order
ALTER TABLE messages ALTER COLUMN sizes SET STORAGE PLAIN;

DROP INDEX messages_later;
CREATE INDEX messages_later ON messages (queue, leased, visible_at, id) INCLUDE (count)
    WHERE receipt IS NOT NULL OR visible_at > sent_at;

ALTER TABLE claimed
    ADD COLUMN count integer NOT NULL DEFAULT 1,
    ADD COLUMN sizes integer[];
ALTER TABLE claimed ALTER COLUMN sizes SET STORAGE PLAIN;

-- The id so many places after another. Ids of a parcel differ in the last byte alone.
CREATE FUNCTION id_at(first uuid, place integer) RETURNS uuid
LANGUAGE sql IMMUTABLE AS $$
    SELECT encode(set_byte(uuid_send(first), 15, get_byte(uuid_send(first), 15) + place), 'hex')::uuid;
$$;

-- The messages of a row: of a parcel each with its id, its bytes and where they start, of others the one it is.
CREATE FUNCTION unpacked(first uuid, whole integer, sizes integer[])
RETURNS TABLE (nth integer, id uuid, size integer, start integer)
LANGUAGE sql IMMUTABLE AS $$
    SELECT e.nth::integer, CASE WHEN e.nth = 1 THEN first ELSE id_at(first, e.nth::integer - 1) END, e.size,
        (1 - e.size + sum(e.size) OVER (ORDER BY e.nth ROWS UNBOUNDED PRECEDING))::integer
    FROM unnest(coalesce(sizes, ARRAY[whole])) WITH ORDINALITY AS e (size, nth);
$$;
