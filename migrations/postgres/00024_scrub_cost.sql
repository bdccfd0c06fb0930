-- What scrubbing may cost, and what it proves of the journal. Binaries of version 2 can work with this schema: their scrubbers go by
-- the limits of bytes and requests alone.

-- +goose Up
SET LOCAL lock_timeout = '5s';
INSERT INTO schema_versions (version, oldest) VALUES (24, 2);
-- Prices of 1,000 requests and of 1 GiB, and what may be spent a day (0: no limit), in billionths.
ALTER TABLE scrub ADD COLUMN price_requests bigint NOT NULL DEFAULT 0, ADD COLUMN price_bytes bigint NOT NULL DEFAULT 0,
    ADD COLUMN spend bigint NOT NULL DEFAULT 0;

-- The proofs of the journal: slice 0 to 255 has the segments and commit records of the snapshots
-- whose ids begin with this byte, and slice 256 the catalogs and the copies of the index.
CREATE TABLE journal_proofs (
    slice   bigint  NOT NULL PRIMARY KEY,
    noted   bigint  NOT NULL,            -- when this row was made
    proven  bigint  NOT NULL DEFAULT 0,  -- when the last proof of all of it was begun; 0: never
    begun   bigint  NOT NULL DEFAULT 0,  -- when the proof in progress was begun; 0: there is none
    reached text   NOT NULL DEFAULT '', -- the last object that it has read
    damaged bigint  NOT NULL DEFAULT 0,  -- objects that the last proof, or the one in progress, has found to be damaged
    damage  text   NOT NULL DEFAULT ''  -- the first of them
);
INSERT INTO journal_proofs (slice, noted) SELECT n, CAST(extract(epoch FROM now()) * 1000000 AS bigint) FROM generate_series(0, 256) AS n;

-- +goose Down
DROP TABLE journal_proofs;
ALTER TABLE scrub DROP COLUMN spend, DROP COLUMN price_bytes, DROP COLUMN price_requests;
DELETE FROM schema_versions WHERE version = 24;
