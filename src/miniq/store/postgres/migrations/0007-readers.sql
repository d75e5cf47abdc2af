-- Who reads: an id for each group, and who fetched a claim. What is not known of older claims is an unnamed reader.

ALTER TABLE readers ADD COLUMN uid text NOT NULL DEFAULT '';
ALTER TABLE claims ADD COLUMN reader text DEFAULT '';
