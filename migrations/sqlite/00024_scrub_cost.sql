-- What scrubbing may cost, and what it proves of the journal. Binaries of version 11 can work with this schema: their scrubs go by the
-- limits of bytes and requests alone.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (24, 11);
-- Prices of 1,000 requests and of 1 GiB, and what may be spent a day (0: no limit), in billionths.
ALTER TABLE scrub ADD COLUMN price_requests INTEGER NOT NULL DEFAULT 0;
ALTER TABLE scrub ADD COLUMN price_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE scrub ADD COLUMN spend INTEGER NOT NULL DEFAULT 0;

-- The proofs of the journal: slice 0 to 255 has the segments and commit records of the snapshots
-- whose ids begin with this byte, and slice 256 the catalogs and the copies of the index.
CREATE TABLE journal_proofs (
    slice   INTEGER  NOT NULL PRIMARY KEY,
    noted   INTEGER  NOT NULL,            -- when this row was made
    proven  INTEGER  NOT NULL DEFAULT 0,  -- when the last proof of all of it was begun; 0: never
    begun   INTEGER  NOT NULL DEFAULT 0,  -- when the proof in progress was begun; 0: there is none
    reached text   NOT NULL DEFAULT '', -- the last object that it has read
    damaged INTEGER  NOT NULL DEFAULT 0,  -- objects that the last proof, or the one in progress, has found to be damaged
    damage  text   NOT NULL DEFAULT ''  -- the first of them
);
WITH RECURSIVE slices (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM slices WHERE n < 256)
INSERT INTO journal_proofs (slice, noted) SELECT n, CAST(unixepoch('subsec') * 1000000 AS INTEGER) FROM slices;

-- +goose Down
DROP TABLE journal_proofs;
ALTER TABLE scrub DROP COLUMN spend;
ALTER TABLE scrub DROP COLUMN price_bytes;
ALTER TABLE scrub DROP COLUMN price_requests;
DELETE FROM schema_versions WHERE version = 24;
