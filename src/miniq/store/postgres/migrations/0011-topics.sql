-- The queues that got copies of a publication.

ALTER TABLE history ADD COLUMN targets text[];
