-- Delayed messages are no longer in line: a receive had to skip all of them.

DROP INDEX messages_line;
DROP INDEX messages_own;
DROP INDEX messages_later;
ALTER TABLE messages ADD COLUMN later boolean NOT NULL DEFAULT false;
UPDATE messages SET later = true WHERE leased OR (receipt IS NULL AND visible_at > sent_at);
ALTER TABLE messages DROP COLUMN leased;
ALTER TABLE messages ADD COLUMN leased boolean NOT NULL GENERATED ALWAYS AS (receipt IS NOT NULL) STORED;
CREATE INDEX messages_line ON messages (queue, rank, id) WHERE recipient IS NULL AND NOT blocked AND NOT later;
CREATE INDEX messages_own ON messages (queue, recipient, rank, id)
    WHERE recipient IS NOT NULL AND NOT blocked AND NOT later;
CREATE INDEX messages_later ON messages (queue, leased, visible_at, id) INCLUDE (count) WHERE later;
